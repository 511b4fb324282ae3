"""`dflash2-mlx quantize`: its arguments, checked; the work is in `job`."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from dflash2_mlx.errors import RequestError

if TYPE_CHECKING:
    from .job import Job

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} DRAFTER --out DIR [options]"
    parser.add_argument("drafter", metavar="DRAFTER", help="a folder, a Hub id or demo: unpacked, bfloat16 or float32")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the packed checkpoint")
    parser.add_argument(
        "--spec",
        default="w4a16:gs64",
        metavar="SPEC",
        help="bits of the weights, stored type of the rest (a16: bfloat16, a32: float32) and group size "
        "(default: w4a16:gs64)",
    )
    parser.add_argument("--force", action="store_true", help="replace a drafter that is in DIR")
    _add_measuring(parser)
    group = parser.add_argument_group("choosing the bits of each module (needs --target)")
    group.add_argument("--search", action="store_true", help="choose 2, 4, 8 bits or none by what each costs, measured")
    group.add_argument("--max-size", metavar="BYTES", help="the most that the weights may take, such as 1.2GB")
    group.add_argument(
        "--min-acceptance",
        type=float,
        metavar="X",
        help="least share of the unpacked drafter's tokens per cycle, such as 0.98",
    )
    group = parser.add_argument_group("output")
    group.add_argument("--upload", metavar="REPO", help="put the result on the Hub, as owner/name")
    group.add_argument("--private", action="store_true", help="with --upload: a repository that others cannot see")
    group.add_argument("--progress-json", action="store_true", help="print progress and result as lines of JSON")


def _add_measuring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("measuring")
    group.add_argument("--target", metavar="ID|PATH", help="target with which acceptance is measured before and after")
    group.add_argument("--prompts", type=int, default=7, metavar="N", help="prompts to measure on (default: 7)")
    group.add_argument("--tokens", type=int, default=64, metavar="N", help="most tokens of each answer (default: 64)")
    group.add_argument("--block-size", type=int, metavar="N", help="rows of a block (default: the checkpoint's)")


def run(args: argparse.Namespace) -> int:
    """Raises a DFlashError; RequestError for bad arguments, before anything is read."""
    job = make_job(args)
    from .job import run_job
    from .report import JsonLines, Terminal

    run_job(job, JsonLines() if args.progress_json else Terminal())
    return 0


def make_job(args: argparse.Namespace) -> Job:
    """The job that a command line asks for."""
    from dflash2_mlx.drafter.quantization import parse_spec

    from .job import Job
    from .search import Limit
    from .target import Measuring

    spec = parse_spec(args.spec)
    if spec is None:
        raise RequestError(f"--spec {args.spec}: a checkpoint that is not packed is the source itself", param="spec")
    if not args.search and (args.max_size is not None or args.min_acceptance is not None):
        raise RequestError("--max-size and --min-acceptance are limits of a search: add --search", param="search")
    if args.private and not args.upload:
        raise RequestError("--private is about an upload: add --upload REPO", param="private")
    most = None if args.max_size is None else size_in_bytes(args.max_size)
    return Job(
        drafter=args.drafter,
        out=_folder(args.out),
        spec=spec,
        target=args.target,
        limit=Limit(most, args.min_acceptance) if args.search else None,
        measuring=Measuring(args.prompts, args.tokens, args.block_size),
        repository=args.upload,
        private=args.private,
        force=args.force,
    )


def _folder(text: str) -> Path:
    """Absolute and without links: the folder is renamed into its place, and has a name of its own."""
    if not text:
        raise RequestError("--out is empty: give a folder", param="out")
    try:
        return Path(text).expanduser().resolve()
    except (RuntimeError, OSError) as error:
        raise RequestError(f"--out {text}: {error}", param="out") from None


def size_in_bytes(text: str) -> int:
    """`800MB`, `1.2 GB`, `1GiB` or a number of bytes. Raises RequestError (param max_size)."""
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None or not float(match[1]):
        raise RequestError(f"--max-size {text!r}: write bytes, or a number with KB, MB, GB or GiB", param="max_size")
    return math.floor(float(match[1]) * unit)
