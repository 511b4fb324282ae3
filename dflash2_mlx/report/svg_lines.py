"""Lines with markers; the spread as a band behind them, or as a whisker where a point stands alone."""

from __future__ import annotations

from collections.abc import Sequence

from dflash2_mlx.report import points
from dflash2_mlx.report.blocks import Plot
from dflash2_mlx.report.format import short
from dflash2_mlx.report.points import Point
from dflash2_mlx.report.svg_axes import Area
from dflash2_mlx.report.svg_parts import colour, dash, element, line, marker, path

# More points than this in one line are not marked one by one.
_MARKED = 60


def lines(plot: Plot, area: Area) -> str:
    """All series, the bands below all lines. What lies outside the axis (`y_from`) is cut off at its edge."""
    found = [_in_order(points.points(series), area) for series in plot.series]
    looks = points.looks(plot)
    bands = [_band(run, area, looks[index]) for index, all_ in enumerate(found) for run in points.runs(all_)]
    drawn = [
        _line(run, area, looks[index])
        + _markers(run, area, looks[index], plot.series[index].name, len(all_) <= _MARKED)
        for index, all_ in enumerate(found)
        for run in points.runs(all_)
    ]
    return element("g", *bands) + element("g", *drawn)


def _in_order(found: list[Point], area: Area) -> list[Point]:
    return sorted(found, key=lambda point: area.at(point.x))


def _place(point: Point, value: float, area: Area) -> tuple[float, float]:
    inside = min(max(value, area.y_range.low), area.y_range.high)
    return area.at(point.x), area.y.at(inside)


def _line(run: Sequence[Point], area: Area, index: int) -> str:
    places = [_place(point, point.y, area) for point in run if point.y is not None]
    if len(places) < 2:
        return ""
    stroke = colour(index)
    return path(
        places, fill="none", stroke=stroke, stroke_width=2, stroke_linejoin="round", stroke_dasharray=dash(index)
    )


def _markers(run: Sequence[Point], area: Area, index: int, name: str, every: bool) -> str:
    if not every and len(run) > 1:
        return ""
    return "".join(
        marker(index, *_place(point, point.y, area), point_words(point, name)) for point in run if point.y is not None
    )


def _band(run: Sequence[Point], area: Area, index: int) -> str:
    spread = [point for point in run if point.low is not None and point.high is not None]
    low = [_place(point, point.low, area) for point in spread if point.low is not None]
    high = [_place(point, point.high, area) for point in spread if point.high is not None]
    if len(spread) == 1:
        return line(*low[0], *high[0], stroke=colour(index), stroke_width=1.5)
    if not spread:
        return ""
    return path([*low, *reversed(high)], closed=True, fill=colour(index), fill_opacity=0.16)


def point_words(point: Point, name: str) -> str:
    told = f"{name + ', ' if name else ''}{points.name(point.x)}: {short(point.y or 0.0)}"
    if point.low is not None and point.high is not None:
        told += f" ({short(point.low)} to {short(point.high)})"
    return told
