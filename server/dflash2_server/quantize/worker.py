"""The process of a quantise job: `python -m dflash2_server.quantize.worker DRAFTER --out DIR …`.

It is `dflash2-mlx quantize` with the same arguments, but for its end: when stdin closes, which is when its parent is
gone, it is over at once.
"""

from __future__ import annotations

import os
import sys
import threading


def main() -> int:
    sys.stdin.readline()  # the parent's first line, which has nothing in it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from dflash2_mlx import cli

    return cli.main(["quantize", *sys.argv[1:], "--progress-json"])


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the thread still reads stdin
