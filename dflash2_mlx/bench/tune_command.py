"""`dflash2-mlx tune`: measures what cycles cost on this machine, in about a minute, and keeps it for the pair."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash2_mlx.chat import options
from dflash2_mlx.errors import RequestError

if TYPE_CHECKING:
    from dflash2_mlx.bench.survey import DepthCosts, Report
    from dflash2_mlx.pairs import Pair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "What is measured is kept for the pair on this machine; verify mode adaptive and automatic sizes use it."
    )
    options.add_model_arguments(parser)
    group = parser.add_argument_group("measuring")
    group.add_argument("--depths", default=None, metavar="N,N,…", help="tokens of context (default: 256,2048,8192)")
    group.add_argument("--seconds", type=float, default=60.0, metavar="S", help="about how long (default: 60)")
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="print one JSON object")
    group.add_argument("--out", type=Path, metavar="FILE", help="write the report too: .html, .md or .json")


def run(args: argparse.Namespace) -> int:
    """Raises RequestError for bad input before anything is loaded, PairError where there is no drafter."""
    from dflash2_mlx.report.files import check_suffix, write_report

    depths = depths_of(args.depths)
    if not 1 <= args.seconds <= 3600:
        raise RequestError(f"--seconds {args.seconds:g}: from 1 to 3600", param="seconds")
    if args.out is not None:
        check_suffix(args.out)
    from dflash2_mlx.bench.tune import DEPTHS, tune, tune_report
    from dflash2_mlx.chat.backend import Library
    from dflash2_mlx.chat.progress import loading

    with loading() as progress:
        pair = Library().load(options.model_choice(args), progress)
    with measuring() as report:
        found = tune(pair, depths=depths or DEPTHS, seconds=args.seconds, report=report)
    made = tune_report(pair, found, shlex.join(["dflash2-mlx", *sys.argv[1:]]))
    if args.out is not None:
        write_report(made, args.out)
    if args.json:
        print(json.dumps(as_dict(pair, found), ensure_ascii=False))
    else:
        from dflash2_mlx.report.terminal import show

        show(made)
    return 0


def depths_of(text: str | None) -> tuple[int, ...]:
    """The depths of `--depths`; none where it was not given. Raises RequestError."""
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 16 <= int(word) <= 1 << 20 for word in words):
        raise RequestError(
            f"--depths {text!r}: numbers of tokens from 16 to {1 << 20}, such as 256,2048", param="depths"
        )
    return tuple(sorted({int(word) for word in words}))


def as_dict(pair: Pair, found: list[DepthCosts]) -> dict[str, Any]:
    """Median seconds by depth and width, and what the controller makes of them."""
    assert pair.widths is not None, "a pair with a drafter has one"
    figures = pair.widths.figures()
    store = pair.widths.store
    return {
        "pair": {"model": pair.model_name, "draft": pair.drafter_name},
        "costs": {str(item.depth): {str(w): s[0] for w, s in item.seconds.items()} for item in found},
        "samples": {str(item.depth): item.samples for item in found},
        "acceptance": {kind: list(shares) for kind, shares in figures.acceptance.items()},
        "best_block": {str(i.depth): pair.widths.best_block("greedy", pair.block_size, i.depth)[0] for i in found},
        "source": figures.source,
        "kept": str(store.path) if store is not None else None,
    }


@contextmanager
def measuring() -> Iterator[Report]:
    """A bar on stderr for each stage; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    bars = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def report(stage: str, share: float) -> None:
        if stage not in tasks:
            tasks[stage] = bars.add_task(stage, total=1.0)
        bars.update(tasks[stage], completed=share)

    with bars:
        yield report
