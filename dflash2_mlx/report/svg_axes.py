"""The frame of a plot: where its area lies, ticks with grid lines, labels, legend, baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dflash2_mlx.report import points, scale
from dflash2_mlx.report.blocks import Plot
from dflash2_mlx.report.format import finite, short, tick
from dflash2_mlx.report.svg_parts import (
    SMALL,
    Attribute,
    colour,
    cut,
    dash,
    element,
    line,
    marker,
    text,
    tooltip,
    width_of,
)

AREA_HEIGHT = 230.0
_ANGLE = 35  # degrees, of names that do not fit side by side
_LONGEST = 130.0  # px of a name on the x axis
_LEAST = 12.0  # px of a name: it is not cut to less
_LEGEND_ROW = 19.0
GRID: dict[str, Attribute] = {"stroke": "currentColor", "stroke_opacity": 0.14}


@dataclass(frozen=True, kw_only=True)
class Area:
    """Where the plot's area lies, in px, with its scales; `names` are the x where they are names, else empty."""

    left: float
    right: float
    top: float
    bottom: float
    height: float  # of the whole drawing
    x: scale.Scale
    y: scale.Scale
    y_range: scale.Range
    x_marks: Sequence[tuple[float, str]]
    names: Sequence[str]
    rotated: bool

    def name_at(self, name: str) -> float:
        """The middle of a name's band."""
        return self.x.at(self.names.index(name) + 0.5)

    def at(self, x: float | str) -> float:
        return self.name_at(points.name(x)) if self.names else self.x.at(float(x))

    @property
    def band(self) -> float:
        """The width that each name has."""
        return (self.right - self.left) / max(len(self.names), 1)


def lay_out(plot: Plot, *, width: float, top: float) -> Area:
    """The area below `top`, where title and legend end."""
    y_range = scale.y_range(
        points.values(plot), y_from=finite(plot.y_from), zero=plot.kind == "bars" and plot.y_from is None
    )
    names = points.names(plot) if points.has_names(plot) else []
    left = 12 + max([width_of(tick(value, y_range.step)) for value in y_range.ticks], default=0)
    right = width - 14
    widest = min(_LONGEST, max(map(width_of, names), default=0))
    rotated = bool(names) and widest > (right - left) / len(names) - 8
    if rotated:  # the first name reaches to the left of its band
        left = max(left, widest * math.cos(math.radians(_ANGLE)) - (right - left) / len(names) / 2 + 4)
    top += 28  # the label of y, and half a tick's text
    bottom = top + AREA_HEIGHT
    below = 12 + widest * math.sin(math.radians(_ANGLE)) if rotated else 20
    x, x_marks = _x_axis(plot, names, left, right)
    return Area(
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        height=bottom + below + 26,
        x=x,
        y=scale.Scale(low=y_range.low, high=y_range.high, start=bottom, end=top),
        y_range=y_range,
        x_marks=x_marks,
        names=names,
        rotated=rotated,
    )


def _x_axis(
    plot: Plot, names: Sequence[str], left: float, right: float
) -> tuple[scale.Scale, Sequence[tuple[float, str]]]:
    if names:
        found = scale.Scale(low=0, high=len(names), start=left, end=right)
        return found, [(found.at(i + 0.5), name) for i, name in enumerate(names)]
    xs = points.numbers(plot) or [0.0, 1.0]
    log = scale.is_log(xs)
    low, high = (xs[0], xs[-1]) if log else scale.apart(xs[0], xs[-1])
    found = scale.Scale(low=low, high=high, start=left + 10, end=right - 10, log=log)
    return found, _thinned([(found.at(value), words) for value, words in _x_ticks(xs, low, high, log, right - left)])


def _x_ticks(xs: Sequence[float], low: float, high: float, log: bool, room: float) -> list[tuple[float, str]]:
    """Few x are marked each, many by round numbers."""
    if len(xs) <= 12 and (log or len(xs) == 1 or all(value == round(value) for value in xs)):
        return [(value, short(value)) for value in xs]
    if log:
        return [(value, short(value)) for value in scale.log_ticks(low, high)]
    step = scale.step_for(high - low, max(2, int(room / 60)))
    if all(value == round(value) for value in xs):
        step = max(step, 1.0)
    return [(value, tick(value, step)) for value in scale.ticks(low, high, step)]


def _thinned(marks: list[tuple[float, str]]) -> list[tuple[float, str]]:
    """The marks without those whose text would touch the one before, or the last one, which stays."""
    kept: list[tuple[float, str]] = []
    for place, words in [*marks[-1:], *marks[:-1]]:
        if all(abs(place - other) > (width_of(words) + width_of(said)) / 2 + 4 for other, said in kept):
            kept.append((place, words))
    return sorted(kept)


def axes(plot: Plot, area: Area) -> str:
    """Grid, ticks and labels."""
    drawn = [
        line(area.left, area.y.at(value), area.right, area.y.at(value), **GRID)
        + text(area.left - 7, area.y.at(value) + 4, tick(value, area.y_range.step), text_anchor="end")
        for value in area.y_range.ticks
    ]
    drawn.append(line(area.left, area.bottom, area.right, area.bottom, stroke="currentColor", stroke_opacity=0.55))
    drawn += [_x_mark(area, place, words) for place, words in area.x_marks]
    room = area.right - 4
    drawn.append(text(4, area.top - 12, cut(plot.y_label, room), fill_opacity=0.75))
    middle = (area.left + area.right) / 2
    drawn.append(text(middle, area.height - 8, cut(plot.x_label, room), text_anchor="middle", fill_opacity=0.75))
    return element("g", *drawn, fill="currentColor")


def _x_mark(area: Area, place: float, words: str) -> str:
    if not area.rotated:
        shown = cut(words, max(area.band - 8, _LEAST)) if area.names else words
        drawn = text(place, area.bottom + 17, shown, text_anchor="middle")
        if area.names:
            return drawn if shown == words else element("g", tooltip(words), drawn)
        return line(place, area.bottom, place, area.bottom + 4, stroke="currentColor") + drawn
    shown = cut(words, _LONGEST)
    turn = f"translate({place + 4:.2f} {area.bottom + 14:.2f}) rotate(-{_ANGLE})"
    inner = text(0, 0, shown, text_anchor="end")
    return element("g", inner + (tooltip(words) if shown != words else ""), transform=turn)


def baseline(plot: Plot, area: Area) -> str:
    """The horizontal line that the values are compared with, where the axis reaches it."""
    value = finite(plot.baseline)
    if value is None or not area.y_range.low <= value <= area.y_range.high:
        return ""
    y = area.y.at(value)
    drawn = line(area.left, y, area.right, y, stroke="currentColor", stroke_width=1.4, stroke_dasharray="5 4")
    return element("g", tooltip(f"baseline {short(value)}"), drawn)


def legend(plot: Plot, *, width: float, top: float) -> tuple[str, float]:
    """The names of the series in rows, and where they end; nothing where there is no name."""
    x, y = 4.0, top + 13
    drawn: list[str] = []
    for index, series in zip(points.looks(plot), plot.series, strict=True):
        if not series.name:
            continue
        shown = cut(series.name, width - 40)
        room = 26 + width_of(shown) + 14
        if x > 4 and x + room > width:
            x, y = 4.0, y + _LEGEND_ROW
        drawn.append(_swatch(plot.kind, index, x, y - 4) + text(x + 26, y, shown, fill="currentColor"))
        x += room
    return element("g", *drawn) if drawn else "", y + 6 if drawn else top


def _swatch(kind: str, index: int, x: float, y: float) -> str:
    if kind == "bars":
        return element("rect", x=x + 4, y=y - 6, width=14, height=12, rx=2, fill=colour(index))
    drawn = line(x, y, x + 20, y, stroke=colour(index), stroke_width=2, stroke_dasharray=dash(index))
    return drawn + marker(index, x + 10, y)


def value_text(x: float, y: float, words: str) -> str:
    """The number of a bar, above or below it."""
    return text(x, y, words, size=SMALL, text_anchor="middle", fill="currentColor")
