"""A bar on stderr while a pair is loaded: the target, then the drafter, then what is checked of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash2_mlx.chat.backend import LoadProgress

_TITLES = {
    "convert": "preparing the demo",
    "target": "loading the target",
    "drafter": "loading the drafter",
    "exactness": "checking exactness",
}


@contextmanager
def loading() -> Iterator[LoadProgress | None]:
    """Gives the callback for `load`; None when stderr is no terminal. The bars vanish at the end."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    bars = Progress(
        TextColumn("{task.description:<19}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    tasks: dict[str, TaskID] = {}

    def report(part: str, done: float) -> None:
        if part not in tasks:
            tasks[part] = bars.add_task(_TITLES.get(part, part), total=1.0)
        bars.update(tasks[part], completed=done)

    with bars:
        yield report
