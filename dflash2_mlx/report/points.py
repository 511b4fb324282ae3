"""What a plot's series hold, made ready to draw: places on the x axis, values without what cannot be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dflash2_mlx.report.blocks import Plot, Series
from dflash2_mlx.report.format import finite, short


@dataclass(frozen=True)
class Point:
    """y, low and high are finite or None."""

    x: float | str
    y: float | None
    low: float | None
    high: float | None


def points(series: Series) -> list[Point]:
    """Its points in order; what has no finite x is left out."""
    return [
        Point(x, _at(series.y, i), _at(series.low, i), _at(series.high, i))
        for i, x in enumerate(series.x)
        if isinstance(x, str) or finite(x) is not None
    ]


def looks(plot: Plot) -> list[int]:
    """For each series the number of its colour and sign."""
    return [index if series.colour is None else series.colour for index, series in enumerate(plot.series)]


def values(plot: Plot) -> list[float]:
    """All finite y, spreads and the baseline: what the y axis has to span."""
    found = [v for series in plot.series for p in points(series) for v in (p.y, p.low, p.high) if v is not None]
    baseline = finite(plot.baseline)
    return found + ([baseline] if baseline is not None and found else [])


def has_names(plot: Plot) -> bool:
    """Whether x are names, all or some: then they stand side by side in order of appearance."""
    return plot.kind == "bars" or any(isinstance(p.x, str) for series in plot.series for p in points(series))


def names(plot: Plot) -> list[str]:
    """The x of all series as names, each once; numbers alone are in order of size."""
    found = list(dict.fromkeys(p.x for series in plot.series for p in points(series)))
    numbers = [x for x in found if not isinstance(x, str)]
    if len(numbers) == len(found):
        found = sorted(numbers)
    return list(dict.fromkeys(name(x) for x in found))


def numbers(plot: Plot) -> list[float]:
    """The x of all series, each once, in order of size; none of them is a name."""
    return sorted({p.x for series in plot.series for p in points(series) if not isinstance(p.x, str)})


def name(x: float | str) -> str:
    return x if isinstance(x, str) else short(x)


def runs(found: Sequence[Point]) -> list[list[Point]]:
    """The points split where one has no y: a gap is not drawn over."""
    result: list[list[Point]] = [[]]
    for point in found:
        if point.y is None:
            result.append([])
        else:
            result[-1].append(point)
    return [run for run in result if run]


def _at(sequence: Sequence[float | None], index: int) -> float | None:
    return finite(sequence[index]) if index < len(sequence) else None
