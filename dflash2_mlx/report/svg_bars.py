"""Grouped bars with whiskers for their spread, and their numbers where these fit."""

from __future__ import annotations

from dflash2_mlx.report import points
from dflash2_mlx.report.blocks import Plot
from dflash2_mlx.report.format import finite, short
from dflash2_mlx.report.points import Point
from dflash2_mlx.report.svg_axes import Area, value_text
from dflash2_mlx.report.svg_lines import point_words
from dflash2_mlx.report.svg_parts import SMALL, Attribute, colour, element, line, tooltip, width_of

_WIDEST = 46.0


def bars(plot: Plot, area: Area) -> str:
    """For each name of x the bars of all series side by side; a value that is missing leaves its place empty.

    The numbers stand at the bars where all of them fit.
    """
    count = max(len(plot.series), 1)
    width = min(_WIDEST, area.band * 0.82 / count)
    found = [(index, point) for index, series in enumerate(plot.series) for point in points.points(series)]
    told = all(width_of(_number(point.y), SMALL) <= width - 1 for _, point in found if point.y is not None)
    avoid = finite(plot.baseline)
    looks = points.looks(plot)
    drawn: list[str] = []
    for index, point in found:
        left = area.at(point.x) + (index - count / 2) * width
        if point.y is not None:
            drawn.append(_bar(point, point.y, area, looks[index], left, width, plot.series[index].name))
            drawn.append(_told(point, point.y, area, left + width / 2, avoid) if told else "")
    return element("g", *drawn)


def _bar(point: Point, y: float, area: Area, look: int, left: float, width: float, name: str) -> str:
    foot = area.y.at(_inside(0.0, area))
    head = area.y.at(_inside(y, area))
    gap = min(2.0, width * 0.1)
    box = element(
        "rect",
        tooltip(point_words(point, name)),
        x=left + gap / 2,
        y=min(foot, head),
        width=width - gap,
        height=max(abs(foot - head), 0.5),
        fill=colour(look),
    )
    if point.low is None or point.high is None:
        return box
    low, high = (area.y.at(_inside(value, area)) for value in (point.low, point.high))
    return box + _whisker(left + width / 2, low, high, min(4.0, width / 4))


def _told(point: Point, y: float, area: Area, middle: float, avoid: float | None) -> str:
    """The number beyond the end of bar and whisker, and clear of the baseline."""
    up = y >= 0
    ends = [area.y.at(_inside(value, area)) for value in (y, point.low, point.high) if value is not None]
    place = min(ends) - 5 if up else max(ends) + 13
    line_at = None if avoid is None else area.y.at(_inside(avoid, area))
    if line_at is not None and place - 10 < line_at < place + 3:
        place = line_at - 5 if up else line_at + 13
    return value_text(middle, place, _number(y))


def _number(y: float | None) -> str:
    return "" if y is None else f"{y:.3g}" if abs(y) < 1000 else short(round(y))


def _whisker(x: float, low: float, high: float, half: float) -> str:
    look: dict[str, Attribute] = {"stroke": "currentColor", "stroke_width": 1.3}
    return (
        line(x, low, x, high, **look)
        + line(x - half, low, x + half, low, **look)
        + line(x - half, high, x + half, high, **look)
    )


def _inside(value: float, area: Area) -> float:
    return min(max(value, area.y_range.low), area.y_range.high)
