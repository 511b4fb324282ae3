"""The command line's values: lists, prompts, files. Raises RequestError before anything is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

from ..errors import RequestError
from ..prompts import KINDS, SETS, Prompt, from_jsonl, from_set, own

PER_KIND = 3
PER_SET = 8
# What `--quick` sets where nothing else is given.
QUICK_KINDS = ("code", "chat", "prose")
QUICK_PER_KIND = 2
QUICK = {"rounds": 2, "max_tokens": 48}
USUAL = {"rounds": 3, "max_tokens": 128}

T = TypeVar("T")


def listed(text: str, flag: str, read: Callable[[str], T]) -> list[T]:
    """The values of a list with commas, without repeats."""
    values = []
    for part in text.split(","):
        try:
            values.append(read(part.strip()))
        except ValueError:
            raise RequestError(f"--{flag} {text}: {part.strip()!r} is none of its values", param=flag) from None
    return list(dict.fromkeys(values))


def block_size(text: str) -> int | None:
    """A block size, None for the word auto."""
    return None if text == "auto" else int(text)


def chosen_prompts(args: argparse.Namespace) -> list[Prompt]:
    """The prompts that the flags ask for: a file, sets, or our own by kind."""
    count: int | None = args.prompts_per_kind
    if count is not None and count < 1:
        raise RequestError(f"--prompts-per-kind is {count}: it must be at least 1", param="prompts-per-kind")
    file = Path(args.prompts).expanduser() if args.prompts else None
    if args.set:
        return _of_sets(listed(args.set, "set", str), count or PER_SET, file, args.kinds)
    if file is not None:
        return _of_kinds(from_jsonl(file), count, args.kinds)
    quick = args.quick
    kinds = listed(args.kinds, "kinds", str) if args.kinds else list(QUICK_KINDS if quick else KINDS)
    try:
        return own(kinds, count or (QUICK_PER_KIND if quick else PER_KIND))
    except RequestError as error:
        param = "prompts-per-kind" if error.param == "prompts_per_kind" else error.param
        raise RequestError(f"--{param}: {error}", param=param) from None


def _of_sets(names: list[str], count: int, file: Path | None, kinds: str | None) -> list[Prompt]:
    unknown = [name for name in names if name not in SETS]
    if unknown:
        raise RequestError(f"--set {unknown[0]}: there are {', '.join(SETS)}", param="set")
    if file is not None and len(names) > 1:
        raise RequestError(f"--prompts {file} can be one set only, not {', '.join(names)}", param="prompts")
    found = [prompt for name in names for prompt in from_set(name, count, file=file)]
    return _of_kinds(found, None, kinds)


def _of_kinds(prompts: list[Prompt], count: int | None, kinds: str | None) -> list[Prompt]:
    """The first `count` of each kind, of those kinds that are asked for."""
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_kind.setdefault(prompt.kind, []).append(prompt)
    wanted = listed(kinds, "kinds", str) if kinds else list(by_kind)
    missing = [kind for kind in wanted if kind not in by_kind]
    if missing:
        raise RequestError(f"--kinds {missing[0]}: these prompts are {', '.join(by_kind)}", param="kinds")
    return [prompt for kind in wanted for prompt in by_kind[kind][:count]]


def checked_files(args: argparse.Namespace) -> list[Path]:
    """Where the results go. A name that cannot be written is refused now, not after an hour."""
    from ..report.files import check_suffix

    named = {flag: Path(name).expanduser() for flag, name in (("json", args.json), ("html", args.html)) if name}
    if args.html and check_suffix(named["html"]) == ".json":
        raise RequestError(f"--html {args.html}: for JSON there is --json", param="html")
    for flag, path in named.items():
        _check_writable(path, flag)
    if len({path.resolve() for path in named.values()}) < len(named):
        raise RequestError(f"--json and --html are both {named['html']}: give each a file of its own", param="html")
    return list(named.values())


def _check_writable(path: Path, flag: str) -> None:
    """Raises RequestError where no file can be made there; a folder that is missing is made with the file."""
    if path.is_dir():
        raise RequestError(f"--{flag} {path} is a folder: name a file", param=flag)
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    try:
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(
            f"--{flag} {path} cannot be written ({error.strerror or error}): name a file in a folder of yours",
            param=flag,
        ) from None
