"""How a long wait outside of the steps is shown: a bar, or a plain line now and then where there is no terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from .terminal import EVERY


@contextlib.contextmanager
def counting(what: str, *, every: float = EVERY) -> Iterator[Callable[[int, int], None]]:
    """Gives the callback (done, of); without a terminal it writes a line at most every so many seconds."""
    if not sys.stderr.isatty():
        yield _lines(what, every)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, of: bars.update(task, completed=done, total=of)


def _lines(what: str, every: float) -> Callable[[int, int], None]:
    told = time.monotonic()  # what is quick says nothing

    def tell(done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told >= every:
            told = time.monotonic()
            print(f"{what}: {done}/{of}", file=sys.stderr, flush=True)

    return tell
