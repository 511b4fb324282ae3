"""In place of `dflash2_server.quantize.worker`: what it does is in the variable QUANTIZE_SCRIPT."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def main() -> int:
    sys.stdin.readline()
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    script = os.environ["QUANTIZE_SCRIPT"]
    out.mkdir()
    (out / "half.safetensors").write_bytes(b"half")
    say(event="progress", stage="writing", share=0.5)
    if script == "hang":
        sys.stdin.read()  # until it is killed, or its parent is gone
    if script == "refuse":
        print("a warning of a library", flush=True)
        print("dflash2-mlx: error: group size 64 does not divide 96 columns: use 32", file=sys.stderr)
        return 2
    if script == "die":
        print("Killed by nobody", file=sys.stderr)
        return 3
    say(event="done", path=str(out), bytes=4, summary="8.0 MB to 4.0 MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
