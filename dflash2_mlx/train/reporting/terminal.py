"""A training run in the terminal: a bar with the latest figures; plain lines where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..wording import duration, in_brackets
from . import figures
from .history import EvaluationLine, StepLine

if TYPE_CHECKING:
    import rich.console
    import rich.progress

    from ...report.blocks import Report

# Seconds between plain lines, which stay in a log file of hours.
EVERY = 60.0


class Console:
    """Tells of steps and evaluations on stderr, and shows the report at the end on stdout.

    `total` steps are to be done, `done` of them were before this process; `best` was the best evaluation then.
    """

    def __init__(self, total: int, done: int = 0, best: EvaluationLine | None = None, *, every: float = EVERY) -> None:
        self._total = total
        self._done = done
        self._best = best
        self._last = best
        self._recent: list[StepLine] = []
        self._every = every
        self._told = -float("inf")
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    @contextmanager
    def running(self) -> Iterator[Console]:
        """The bar stands from here to the end of the block; also an error or Ctrl-C leaves the terminal as it was."""
        if not sys.stderr.isatty():
            yield self
            return
        self._bar = _bar()
        self._task = self._bar.add_task("", total=self._total, completed=self._done, figures="")
        try:
            with self._bar:
                yield self
        finally:
            self._bar = self._task = None

    def step(self, line: StepLine) -> None:
        """After each step."""
        self._recent = [*self._recent[1 - figures.LATEST :], line]
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=line.step, figures=self._figures())
        elif time.monotonic() - self._told >= self._every or line.step >= self._total:
            self._told = time.monotonic()
            self.say(f"step {line.step:,}/{self._total:,} · {self._figures()}")

    def evaluation(self, line: EvaluationLine) -> None:
        """After each evaluation: a line that stays."""
        better = self._best is None or line.tokens_per_cycle > self._best.tokens_per_cycle
        self._last, self._best = line, line if better else self._best
        told = f"step {line.step:,}: {line.tokens_per_cycle:.3f} tokens per cycle{in_brackets(line.by_kind)}"
        assert self._best is not None
        self.say(
            told if better else f"{told}; the best is {self._best.tokens_per_cycle:.3f} of step {self._best.step:,}"
        )

    def say(self, text: str) -> None:
        """A line that stays, above the bar where there is one."""
        if self._bar is not None:
            from rich.text import Text

            self._bar.console.print(Text(text))
        else:
            print(text, file=sys.stderr, flush=True)

    def show(self, report: Report, console: rich.console.Console | None = None) -> None:
        """At the end: the summary of the report and its main plots."""
        from ...report.terminal import show
        from .blocks import brief

        show(brief(report), console)

    def _figures(self) -> str:
        now = figures.stretch(self._recent)
        left = figures.seconds_left(self._recent, self._total)
        parts = [
            f"loss {_number(now.loss.mean, 3)}",
            f"{self._last.tokens_per_cycle:.2f} per cycle" if self._last is not None else "",
            f"{duration(left)} left" if left else "",
            f"{_number(now.tokens_per_second, 0)} tokens/s",
            f"top-1 {_number(now.top1[0], 2)}" if now.top1 else "",
        ]  # a narrow terminal cuts the end off
        return " · ".join(part for part in parts if part)


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _bar() -> rich.progress.Progress:
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    return Progress(
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        console=RichConsole(stderr=True),
        transient=True,
    )
