"""Flags of `train data`: what they are, and what they become. Wrong values are refused by name."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...chat.options import DTYPES, REASONING
from ...errors import RequestError

if TYPE_CHECKING:
    from .sources import Sources

# Options that decide what is in the data: a preparation goes on only with the same. --tokens and --batch may change.
_KEPT = (
    "prompts",
    "texts",
    "set",
    "templates",
    "completions",
    "exclude",
    "limit",
    "max_tokens",
    "max_prompt_tokens",
    "temperatures",
    "answers_per_prompt",
    "keep_short",
    "reasoning",
    "dtype",
    "seed",
)
_LEAST = {
    "limit": 1,
    "tokens": 1,
    "max_tokens": 1,
    "max_prompt_tokens": 1,
    "answers_per_prompt": 1,
    "keep_short": 1,
    "batch": 1,
    "seed": 0,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="demo", metavar="ID|PATH", help="target model (default: the embedded demo)")
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="folder of the data; one that was begun is gone on with"
    )
    _add_sources(parser)
    _add_answers(parser)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prompts (one or more; each may be repeated)")
    add = group.add_argument
    many: dict[str, Any] = {"action": "append", "default": []}
    add("--prompts", metavar="FILE.jsonl", **many, help="JSON Lines with `prompt` or `messages`; .gz is unpacked")
    add("--texts", metavar="DIR", **many, help="text and source files: the target goes on from their beginnings")
    add("--set", metavar="NAME", **many, help="a set of `bench`, or a Hub data set: owner/name[:config[:split]]")
    add(
        "--templates",
        action="store_true",
        help="our own templates: more than 20,000 prompts, almost half of them code and structured text",
    )
    add("--completions", metavar="FILE.jsonl", **many, help="answers that the target gave before, with their prompts")
    add(
        "--exclude",
        metavar="FILE",
        help="prompts that stay out with their close variants: a text, one a line, or JSON Lines",
    )
    add("--limit", type=int, metavar="N", help="most prompts of each source (a Hub data set: 2,000 where not given)")
    add(
        "--join",
        metavar="DIR",
        **many,
        help="a prepared folder of the same target, such as another machine's: its shards are copied, nothing is "
        "generated; no other option goes along",
    )


def _add_answers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers")
    add = group.add_argument
    add("--tokens", type=int, metavar="N", help="stop after so many answer tokens; more may be asked for later")
    add("--max-tokens", type=int, default=256, metavar="N", help="most tokens of an answer (default: 256)")
    add("--max-prompt-tokens", type=int, default=1024, metavar="N", help="longer prompts are left out (default: 1024)")
    add("--temperatures", default="0,0.7", metavar="LIST", help="taken in turn; 0 is greedy (default: 0,0.7)")
    add("--answers-per-prompt", type=int, default=2, metavar="N", help="answers to each prompt (default: 2)")
    add("--keep-short", type=int, default=2, metavar="N", help="fewest tokens of an answer that is kept (default: 2)")
    add("--reasoning", choices=REASONING, metavar="MODE", help="on, off, low, medium or high: as in `generate`")
    add("--batch", type=int, default=32, metavar="N", help="answers that run at a time (default: 32)")
    add("--dtype", choices=DTYPES, metavar="TYPE", help="compute type of the target: float32, bfloat16 or float16")
    add("--seed", type=int, default=0, metavar="N", help="of the order and of sampling (default: 0)")


def check(args: argparse.Namespace) -> None:
    """Raises RequestError for a number that is too small, temperatures that are none, sources that do not go along."""
    for name, least in _LEAST.items():
        value = getattr(args, name)
        if value is not None and value < least:
            raise RequestError(f"--{name.replace('_', '-')} {value}: it has to be {least} or more", param=name)
    temperatures(args)
    if args.join:
        _check_alone(args)


def _check_alone(args: argparse.Namespace) -> None:
    """Raises RequestError for every option beside --join: nothing is generated that it could be for."""
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    given = [name for name in vars(parser.parse_args(["--out", ""])) if getattr(args, name) != parser.get_default(name)]
    others = [f"--{name.replace('_', '-')}" for name in given if name not in ("model", "out", "join")]
    if others:
        message = (
            f"--join takes folders as they are, without {', '.join(others)}: prepare such a folder first, then join"
        )
        raise RequestError(message, param="join")


def temperatures(args: argparse.Namespace) -> list[float]:
    """Of the flag's list. Raises RequestError."""
    try:
        found = [float(word) for word in args.temperatures.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one <= 10 and math.isfinite(one) for one in found):
        message = f"--temperatures {args.temperatures}: give numbers from 0 to 10, such as 0,0.7"
        raise RequestError(message, param="temperatures")
    return found


def kept(args: argparse.Namespace) -> dict[str, Any]:
    """The options that are stored with the data."""
    return {name: getattr(args, name) for name in _KEPT}


def sources(args: argparse.Namespace) -> Sources:
    from .sources import Sources

    return Sources(
        prompts=tuple(Path(path).expanduser() for path in args.prompts),
        texts=tuple(Path(path).expanduser() for path in args.texts),
        sets=tuple(args.set),
        templates=args.templates,
        completions=tuple(Path(path).expanduser() for path in args.completions),
        exclude=Path(args.exclude).expanduser() if args.exclude else None,
        limit=args.limit,
    )
