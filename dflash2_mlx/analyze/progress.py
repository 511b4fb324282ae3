"""A bar on stderr while texts are written and read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Told = Callable[[str, float], None]


@contextmanager
def working(texts: int) -> Iterator[Told]:
    """Gives a function to tell what is done and how many texts, parts included; silent without a terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} texts"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task("", total=texts)
    with bar:
        yield lambda stage, done: bar.update(task, description=stage, completed=done)
