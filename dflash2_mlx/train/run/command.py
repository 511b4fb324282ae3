"""`dflash2-mlx train`: trains a drafter for a target on data of `train data`, and exports it."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dflash2_mlx.errors import RequestError
from dflash2_mlx.train.recipe.flags import add_recipe_arguments, recipe_from

if TYPE_CHECKING:
    from dflash2_mlx.train.recipe.values import Recipe

_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} --out RUN [--model ID|PATH] [--data DIR] [--recipe FILE] [options]"
    parser.epilog = (
        "`dflash2-mlx train data` prepares the data. Ctrl-C saves the state and ends; the same command, or `--out RUN` "
        "alone, goes on with it."
    )
    parser.add_argument("--out", required=True, metavar="RUN", help="folder of the run; one that is there goes on")
    parser.add_argument(
        "--recipe", metavar="FILE|demo", help="TOML file with all that follows (default: RUN's own, if it has one)"
    )
    parser.add_argument("--minutes", type=float, metavar="X", help="stop after that time, with the state saved")
    parser.add_argument(
        "--evaluate-only", action="store_true", help="decode and export the best weights so far, without training"
    )
    parser.add_argument("--quantize", metavar="SPEC", help="pack the export too, such as w4a16:gs64")
    parser.add_argument(
        "--decode", type=int, metavar="N", help="held-out prompts decoded at the end, kinds in turn (default: all)"
    )
    add_recipe_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Raises a DFlashError; whatever can be told without the target's weights is told before they are loaded."""
    out = Path(args.out).expanduser()
    recipe = recipe_of(args, out)
    if args.minutes is not None and not (math.isfinite(args.minutes) and args.minutes > 0):
        raise RequestError(f"--minutes {args.minutes:g}: give more than 0", param="minutes")
    if args.decode is not None and args.decode < 1:
        raise RequestError(f"--decode {args.decode}: give 1 or more, or leave it out for all", param="decode")
    from dflash2_mlx.drafter.quantization import parse_spec
    from dflash2_mlx.train.run.folder import check_folder, is_run
    from dflash2_mlx.train.run.job import Job, run_job

    spec = parse_spec(args.quantize)
    check_folder(out)
    job = Job(recipe, out, minutes=args.minutes, evaluate_only=args.evaluate_only, quantize=spec, decode=args.decode)
    try:
        outcome = run_job(job)
    except KeyboardInterrupt:
        if not is_run(out):
            raise
        _say_how_to_go_on(out, args)
        return _INTERRUPTED
    if outcome.stopped == "cancelled":
        _say_how_to_go_on(out, args)
        return _INTERRUPTED if outcome.interrupted else 0
    return 0


def recipe_of(args: argparse.Namespace, out: Path) -> Recipe:
    """The flags over `--recipe`, else over the recipe of the run in `out`, else over the defaults.

    Raises RequestError: also where no run is in `out`, perhaps mistyped, and none is begun by `--data` or `--recipe`.
    """
    from dflash2_mlx.train.recipe.file import read_recipe
    from dflash2_mlx.train.run.folder import RunFolder, is_run

    if is_run(out):
        return recipe_from(args, read_recipe(RunFolder(out).recipe))
    if args.data is None and args.recipe is None:
        raise RequestError(f"{out} holds no run; to begin one give --data (or --recipe)", param="out")
    return recipe_from(args)


def _say_how_to_go_on(out: Path, args: argparse.Namespace) -> None:
    """With what no recipe keeps and the end of the run still needs."""
    kept = [("--quantize", args.quantize), ("--decode", args.decode)]
    further = [word for flag, value in kept if value for word in (flag, str(value))]
    command = shlex.join(["dflash2-mlx", "train", "--out", str(out), *further])
    print(f"not finished: {command} goes on", file=sys.stderr)
