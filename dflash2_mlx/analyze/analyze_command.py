"""`dflash2-mlx analyze`: the method's own figures of a pair, on fresh or recorded text of its target."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dflash2_mlx.analyze.progress import working
from dflash2_mlx.chat import options
from dflash2_mlx.chat.progress import loading
from dflash2_mlx.errors import RequestError

if TYPE_CHECKING:
    from dflash2_mlx.analyze.run import Analysis
    from dflash2_mlx.analyze.text import RecordedText
    from dflash2_mlx.chat.backend import Backend
    from dflash2_mlx.pairs import Pair
    from dflash2_mlx.prompts import Prompt

_INTERRUPTED = 130
_FRESH_ONLY = ("prompts", "record", "per_kind", "tokens", "seed", "greedy_only")
_PER_KIND, _TOKENS = 2, 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Ctrl-C ends the analysis with the figures of the texts that are done."
    options.add_model_arguments(parser)
    group = parser.add_argument_group("texts (default: the target answers prompts of the package)")
    group.add_argument("--prompts", metavar="FILE", help="prompts, JSON Lines with `prompt` or `messages`, and `kind`")
    group.add_argument("--kinds", metavar="A,B", help="kinds of content, such as code,chat (default: all)")
    group.add_argument("--per-kind", type=int, metavar="N", help=f"most prompts of each kind (default: {_PER_KIND})")
    group.add_argument("--tokens", type=int, metavar="N", help=f"most tokens of an answer (default: {_TOKENS})")
    group.add_argument("--seed", type=int, metavar="N", help="of the texts drawn at temperature 1 (default: 0)")
    group.add_argument("--greedy-only", action="store_true", default=None, help="leave out temperature 1")
    group.add_argument("--record", metavar="FILE", help="keep the texts, as JSON Lines; a file there is replaced")
    group.add_argument("--replay", metavar="FILE", help="read texts that --record kept, in place of fresh ones")
    group = parser.add_argument_group("analysis")
    group.add_argument("--stride", type=int, default=1, metavar="N", help="draft at every Nth token (default: 1)")
    group.add_argument("--out", metavar="FILE", help="write the report, by its ending: .html, .md or .json")


def run(args: argparse.Namespace, backend: Backend | None = None) -> int:
    """Raises RequestError for bad input, before the model is loaded where that can be told."""
    _check(args)
    recorded = _recorded(args)
    prompts = [] if args.replay else _prompts(args)
    if backend is None:
        from dflash2_mlx.chat.backend import Library

        backend = Library()
    with loading() as progress:
        pair = backend.load(options.model_choice(args), progress)
    from dflash2_mlx.analyze.run import Analysis
    from dflash2_mlx.analyze.text import check_target

    analysis = Analysis(pair, stride=args.stride)
    check_target(recorded, pair)
    if not args.replay:
        _check_tokens(args, pair)
    temperatures = (0.0,) if args.greedy_only else (0.0, 1.0)
    count = len(recorded) or len(prompts) * len(temperatures)
    with working(count) as told:
        texts = recorded or _fresh(args, pair, prompts, temperatures, told)
        whole = _read(analysis, texts, told)
    _show(args, pair, analysis, whole)
    return 0 if whole else _INTERRUPTED


def command_of(args: argparse.Namespace) -> str:
    """The command line that gives these arguments: whatever is not at its default."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["dflash2-mlx", "analyze"]
    for name, value in vars(args).items():
        if value != parser.get_default(name):
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def _check(args: argparse.Namespace) -> None:
    from dflash2_mlx.report.files import check_suffix

    if args.draft == "none":
        raise RequestError("--draft none: an analysis is of a drafter; leave it out, or name one", param="draft")
    for name in ("per_kind", "stride"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise RequestError(f"--{name.replace('_', '-')} {value}: give 1 or more", param=name)
    if args.tokens is not None and args.tokens < 2:
        raise RequestError(
            f"--tokens {args.tokens}: a block needs a token after its anchor, give 2 or more", param="tokens"
        )
    if args.seed is not None and args.seed < 0:
        raise RequestError(f"--seed {args.seed}: give 0 or more", param="seed")
    for name in _FRESH_ONLY:
        if args.replay is not None and getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise RequestError(f"{flag} is of fresh texts: leave it out, or --replay", param=name)
    if args.out is not None:
        check_suffix(Path(args.out))
    for name in ("out", "record"):
        if getattr(args, name) is not None:
            _check_writable(Path(getattr(args, name)), name)


def _check_writable(path: Path, name: str) -> None:
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise RequestError(f"--{name} {path}: {folder} is no folder that can be written to; make it first", param=name)
    if path.is_dir():
        raise RequestError(f"--{name} {path} is a folder: name a file", param=name)


def _kinds(args: argparse.Namespace) -> list[str] | None:
    if args.kinds is None:
        return None
    kinds = [kind.strip() for kind in args.kinds.split(",") if kind.strip()]
    if not kinds:
        raise RequestError(f"--kinds {args.kinds!r} names no kind: leave it out for all of them", param="kinds")
    return kinds


def _recorded(args: argparse.Namespace) -> list[RecordedText]:
    if args.replay is None:
        return []
    from dflash2_mlx.analyze.text import read_texts

    texts = read_texts(Path(args.replay))
    kinds = _kinds(args)
    _check_kinds(kinds, {text.kind for text in texts}, args.replay)
    return [text for text in texts if kinds is None or text.kind in kinds]


def _prompts(args: argparse.Namespace) -> list[Prompt]:
    """Of each kind the first few."""
    from dflash2_mlx.prompts import KINDS, from_jsonl, own

    kinds, most = _kinds(args), args.per_kind or _PER_KIND
    if args.prompts is None:
        return own(KINDS if kinds is None else kinds, most)
    found = from_jsonl(Path(args.prompts))
    present = list(dict.fromkeys(prompt.kind for prompt in found))
    _check_kinds(kinds, set(present), args.prompts)
    # All of a user's own file, unless a number is given.
    return [
        prompt
        for kind in present
        if kinds is None or kind in kinds
        for prompt in [prompt for prompt in found if prompt.kind == kind][: args.per_kind]
    ]


def _check_kinds(kinds: list[str] | None, present: set[str], place: str) -> None:
    for kind in kinds or []:
        if kind not in present:
            raise RequestError(f"no kind {kind!r} in {place}: there are {', '.join(sorted(present))}", param="kinds")


def _check_tokens(args: argparse.Namespace, pair: Pair) -> None:
    tokens = args.tokens or _TOKENS
    if tokens < pair.block_size:
        raise RequestError(
            f"--tokens {tokens}: a block of this drafter has {pair.block_size} rows; give that many at least",
            param="tokens",
        )


def _fresh(
    args: argparse.Namespace,
    pair: Pair,
    prompts: list[Prompt],
    temperatures: tuple[float, ...],
    told: Callable[[str, float], None],
) -> Iterable[RecordedText]:
    """The target's answers, one at a time; each is recorded as soon as it is there."""
    from dflash2_mlx.analyze.text import append_text
    from dflash2_mlx.analyze.writing import prompt_ids, write_texts

    record = None if args.record is None else Path(args.record)
    if record is not None:
        record.unlink(missing_ok=True)
    ids = [(prompt_ids(pair, prompt.messages), prompt.kind) for prompt in prompts]
    told(f"writing {ids[0][1]}", 0)
    for text in write_texts(pair, ids, temperatures, tokens=args.tokens or _TOKENS, seed=args.seed or 0):
        if record is not None:
            append_text(record, text)
        yield text


def _read(analysis: Analysis, texts: Iterable[RecordedText], told: Callable[[str, float], None]) -> bool:
    """Whether all texts were read; after Ctrl-C those that were count, and with none it is passed on."""
    try:
        for number, text in enumerate(texts):
            stage = f"reading {text.kind}, temperature {text.temperature:g}"
            analysis.add(text, lambda done, of, n=number, s=stage: told(s, n + done / of))  # type: ignore[misc]
            told("writing", number + 1)
    except KeyboardInterrupt:
        if not analysis.texts:
            raise
        return False
    return True


def _show(args: argparse.Namespace, pair: Pair, analysis: Analysis, whole: bool) -> None:
    from dflash2_mlx.analyze.blocks import report
    from dflash2_mlx.analyze.facts import facts_of
    from dflash2_mlx.report.files import write_report
    from dflash2_mlx.report.terminal import show

    figures = analysis.figures()
    facts = facts_of(pair, figures, command_of(args))
    if not whole:
        facts["interrupted"] = "the figures are of the texts that were done"
    found = report(figures, facts)
    show(found)
    if args.out is not None:
        write_report(found, Path(args.out))
        print(f"report: {args.out}", file=sys.stderr)
