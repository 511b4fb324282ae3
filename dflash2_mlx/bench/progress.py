"""How a run goes on, on stderr: how long it takes, then a bar with the latest sample."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .model import Progress, Sample


@contextmanager
def measuring(arms: int) -> Iterator[Callable[[Progress], None]]:
    """Gives the callback for `run`. Where stderr is no terminal it prints the estimate alone."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    bars = Bars(*columns, console=Console(stderr=True), transient=True)
    task = bars.add_task(f"warming {arms} arms up", total=None)

    def show(progress: Progress) -> None:
        if progress.seconds_left is not None:
            words = f"{duration(progress.seconds_left)} left{_told(progress.sample)}"
            bars.update(task, completed=progress.done, total=progress.total, description=words)

    with bars:
        yield show


class _Lines:
    """One line: how much there is to do."""

    def __init__(self) -> None:
        self._told = False

    def __call__(self, progress: Progress) -> None:
        if not self._told and progress.seconds_left is not None:
            self._told = True
            print(f"{progress.total} samples, up to {duration(progress.seconds_left)}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, as one would say it."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _told(sample: Sample | None) -> str:
    return f" · {sample.arm} on {sample.prompt}: {sample.tokens_per_second:.1f} tokens/s" if sample else ""
