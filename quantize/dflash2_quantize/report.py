"""What a run tells while it goes on and at its end: bars and tables for people, or lines of JSON for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from dflash2_mlx.chat.progress import loading

from .checkpoint import Written
from .job import Stages
from .packing import Packing
from .search import Found

# A share that has grown by less is not told: a table of modules has hundreds of steps.
_STEP = 0.01


class JsonLines:
    """One object a line on stdout."""

    def __init__(self) -> None:
        self._last = ("", 0.0)

    def stage(self, stage: str, share: float) -> None:
        before, told = self._last
        if stage == before and share < 1 and share - told < _STEP:
            return
        self._last = (stage, share)
        _print({"event": "progress", "stage": stage, "share": round(share, 3)})

    @contextmanager
    def stages(self) -> Iterator[Stages]:
        yield self.stage

    def found(self, found: Found) -> None:
        """The table is in the card."""

    def done(self, written: Written, summary: str) -> None:
        _print({"event": "done", "path": str(written.folder), "bytes": written.bytes, "summary": summary})


class Terminal:
    """Bars on stderr where that is a terminal, the result on stdout."""

    @contextmanager
    def stages(self) -> Iterator[Stages]:
        with loading() as report:
            yield report or (lambda stage, share: None)

    def found(self, found: Found) -> None:
        from rich.console import Console
        from rich.table import Table

        choices = sorted({p for losses in found.losses.values() for p in losses if p}, key=lambda p: -p.bits)
        table = Table(title="tokens per cycle lost by each module alone (expected)", title_justify="left")
        table.add_column("module")
        for packing in choices:
            table.add_column(f"w{packing.bits}", justify="right")
        table.add_column("chosen")
        for path, losses in found.losses.items():
            cells = [f"{losses[packing]:.4f}" if packing in losses else "-" for packing in choices]
            table.add_row(path, *cells, shown(found.plan.get(path)))
        console = Console()
        console.print(table)
        console.print(
            f"along the recorded text: {found.before.tokens_per_cycle:.3f} tokens per cycle unpacked, "
            f"{found.after.tokens_per_cycle:.3f} as chosen",
            highlight=False,
        )

    def done(self, written: Written, summary: str) -> None:
        print(f"{written.folder}: {summary}")


def shown(packing: Packing | None) -> str:
    return f"w{packing.bits}" if packing else "unpacked"


def _print(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)
