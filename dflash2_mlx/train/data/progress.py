"""How a preparation is shown: a bar with tokens a second and the time left, or a line for each shard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..wording import duration
from .prepare import Progress
from .tokens import SHARD


@dataclass
class Meter:
    """Counts what is generated; `share` is of the plan, or of the answer tokens that are wanted."""

    wanted: int | None
    started: float = field(default_factory=time.monotonic)
    generated: int = 0
    shards: int | None = None
    first_share: float | None = None

    def rate(self) -> float:
        """Tokens a second since the start."""
        return self.generated / max(time.monotonic() - self.started, 1e-9)

    def share(self, now: Progress) -> float:
        through = now.done / max(now.planned, 1)
        return through if self.wanted is None else max(through, min(now.answer_tokens / max(self.wanted, 1), 1.0))

    def seconds_left(self, share: float) -> float | None:
        """By the share that was done since the start; None before there is any."""
        if self.first_share is None:
            self.first_share = share
        gained = share - self.first_share
        return None if gained <= 0 else (time.monotonic() - self.started) * (1 - share) / gained


@contextmanager
def preparing(meter: Meter) -> Iterator[tuple[Callable[[Progress], None], Callable[[int], None]]]:
    """The callbacks for `prepare` and for `answers`; on a terminal a bar, else a line on stderr for each shard."""
    if not sys.stderr.isatty():
        print(f"answers begin; a line for each shard of {SHARD} follows", file=sys.stderr, flush=True)
        yield (lambda now: _line(meter, now)), (lambda count: _count(meter, count))
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.percentage:>5.1f}%"), BarColumn(), TextColumn("{task.description}"))
    with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("reading the first prompts", total=1.0)
        last = ""

        def show(now: Progress) -> None:
            nonlocal last
            share = meter.share(now)
            last = f"{now.conversations} conversations, {now.answer_tokens:,} answer tokens, {_left(meter, share)}"
            bars.update(task, completed=share, description=f"{last}, {meter.rate():.0f} tok/s")

        def count(tokens: int) -> None:
            _count(meter, tokens)
            bars.update(task, description=f"{last or 'first answers'}, {meter.rate():.0f} tok/s")

        yield show, count


@contextmanager
def joining() -> Iterator[Callable[[int, int], None]]:
    """The callback for `join`: on a terminal a bar, else nothing, since copying takes seconds."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bars

    with Bars(console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("shards", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _count(meter: Meter, tokens: int) -> None:
    meter.generated += tokens


def _line(meter: Meter, now: Progress) -> None:
    left = _left(meter, meter.share(now))
    if now.shards == meter.shards:
        return
    known, meter.shards = meter.shards, now.shards
    if known is not None:
        rate = f"{meter.rate():.0f} tok/s, " if meter.generated else ""
        told = f"{now.done} of {now.planned} planned, {now.answer_tokens:,} answer tokens, {rate}{left}"
        print(f"shard {now.shards}: {told}", file=sys.stderr, flush=True)


def _left(meter: Meter, share: float) -> str:
    seconds = meter.seconds_left(share)
    if seconds is None:
        return "time left unknown"
    return f"{duration(seconds)} left"
