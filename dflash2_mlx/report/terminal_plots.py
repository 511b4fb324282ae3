"""Plots as lines of text: bars of blocks with their numbers, lines as signs in a small grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from dflash2_mlx.report import points, scale
from dflash2_mlx.report.blocks import Plot, Series
from dflash2_mlx.report.format import finite, short, tick

# One sign and colour a series, in both kinds of plots: without colour the signs tell them apart.
_SIGNS = "●■▲◆○□△◇"
_STYLES = ("blue", "yellow", "green", "magenta", "red", "cyan", "white", "bright_blue")
_EIGHTHS = " ▏▎▍▌▋▊▉"
_ROWS = 11
_WIDEST_GRID, _WIDEST_BAR = 72, 46
_LONGEST_NAME = 24

Grid = list[list[tuple[str, str]]]  # rows of columns of a sign and its style


def plot_lines(plot: Plot, width: int) -> list[Text]:
    """The plot in lines of at most `width` cells; "no data" where there is nothing to draw."""
    if not points.values(plot):
        return [Text(" no data", style="dim")]
    return _bars(plot, width) if plot.kind == "bars" else _grid(plot, width)


def _bars(plot: Plot, width: int) -> list[Text]:
    """For each name of x a line per series: name, bar, number and spread. Bars begin at 0."""
    values = points.values(plot)
    most = max(map(abs, values))
    names = [*points.names(plot), *(series.name for series in plot.series)]
    label = min(_LONGEST_NAME, max(map(cell_len, names)) + 2, max(width // 3, 4))
    room = max(4, min(_WIDEST_BAR, width - label - 28))
    lines = [Text(f" {plot.y_label} by {plot.x_label}", style="dim")]
    for name in points.names(plot):
        if len(plot.series) > 1:
            lines.append(Text(" " + name))
        for look, series in zip(points.looks(plot), plot.series, strict=True):
            point = next((p for p in points.points(series) if points.name(p.x) == name and p.y is not None), None)
            if point is not None and point.y is not None:
                said = name if len(plot.series) == 1 else "  " + series.name
                line = Text(" " + set_cell_size(said, label) + " ")
                line.append(_bar(point.y, most, room), style=_STYLES[look % len(_STYLES)])
                line.append(" " + _figures(point))
                line.truncate(width)
                lines.append(line)
    if (base := finite(plot.baseline)) is not None:
        lines.append(Text(f" baseline {short(base)}", style="dim"))
    return lines


def _bar(value: float, most: float, room: int) -> str:
    eighths = round(abs(value) / most * room * 8) if most else 0
    bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return set_cell_size(bar if value >= 0 else "▒" * max(1, round(eighths / 8)), room)


def _figures(point: points.Point) -> str:
    told = short(point.y or 0.0)
    spread = "" if point.low is None or point.high is None else f" ({short(point.low)} to {short(point.high)})"
    return told + spread


def _grid(plot: Plot, width: int) -> list[Text]:
    """The y axis at the left, the signs of the series, the x axis below, the legend."""
    y = scale.y_range(points.values(plot), y_from=finite(plot.y_from), count=5)
    labels = {_row(value, y): tick(value, y.step) for value in y.ticks}
    margin = max(map(cell_len, labels.values())) + 2
    columns = max(8, min(_WIDEST_GRID, width - margin - 3))
    place, marks = _x_axis(plot, columns)
    grid: Grid = [[(" ", "")] * columns for _ in range(_ROWS)]
    if (base := finite(plot.baseline)) is not None and y.low <= base <= y.high:
        grid[_row(base, y)] = [("╌", "dim")] * columns
    drawn = [_cells(series, place, y) for series in plot.series]
    looks = points.looks(plot)
    for look, runs in zip(looks, drawn, strict=True):
        for run in runs:
            _join(grid, run, _STYLES[look % len(_STYLES)])
    for look, runs in zip(looks, drawn, strict=True):
        for column, row in (cell for run in runs for cell in run):
            taken = grid[row][column][0] in _SIGNS
            grid[row][column] = ("*" if taken else _SIGNS[look % len(_SIGNS)], _STYLES[look % len(_STYLES)])
    lines = [Text(f" {plot.y_label}", style="dim")]
    for row, cells in enumerate(grid):
        line = Text(labels.get(row, "").rjust(margin) + (" ┤" if row in labels else " │"))
        for sign, style in cells:
            line.append(sign, style=style)
        lines.append(line)
    lines += [Text(" " * margin + " └" + "─" * columns), Text(" " * (margin + 2) + _marks(marks, columns))]
    lines.append(Text(f"{' ' * (margin + 2)}{plot.x_label}", style="dim"))
    return [*lines, *_legend(plot, width)]


def _row(value: float, y: scale.Range) -> int:
    share = (min(max(value, y.low), y.high) - y.low) / (y.high - y.low)
    return _ROWS - 1 - round(share * (_ROWS - 1))


def _x_axis(plot: Plot, columns: int) -> tuple[dict[float | str, int], list[tuple[int, str]]]:
    """The column of each x, and what is written below which."""
    if points.has_names(plot):
        names = points.names(plot)
        at = {name: int((i + 0.5) * columns / len(names)) for i, name in enumerate(names)}
        every = [p.x for series in plot.series for p in points.points(series)]
        return {x: at[points.name(x)] for x in every}, [(column, name) for name, column in at.items()]
    xs = points.numbers(plot)
    log = scale.is_log(xs)
    low, high = (xs[0], xs[-1]) if log else scale.apart(xs[0], xs[-1])
    axis = scale.Scale(low=low, high=high, start=0, end=columns - 1, log=log)
    place: dict[float | str, int] = {x: round(axis.at(x)) for x in xs}
    return place, [(round(axis.at(x)), short(x)) for x in xs]


def _cells(series: Series, place: dict[float | str, int], y: scale.Range) -> list[list[tuple[int, int]]]:
    found = sorted(points.points(series), key=lambda p: place[p.x])
    return [[(place[p.x], _row(p.y, y)) for p in run if p.y is not None] for run in points.runs(found)]


def _join(grid: Grid, run: Sequence[tuple[int, int]], style: str) -> None:
    """Dots from each point to the next."""
    for (x1, y1), (x2, y2) in pairwise(run):
        for column in range(x1 + 1, x2):
            row = round(y1 + (y2 - y1) * (column - x1) / (x2 - x1))
            if grid[row][column][0] in " ╌":
                grid[row][column] = ("·", style)


def _marks(marks: Sequence[tuple[int, str]], columns: int) -> str:
    """The words below their columns, without those that would touch the one before."""
    line = ""
    for column, words in marks:
        start = max(0, min(column - cell_len(words) // 2, columns - cell_len(words)))
        if not line or start > cell_len(line):
            line += " " * (start - cell_len(line)) + words
    return line


def _legend(plot: Plot, width: int) -> list[Text]:
    """Sign and name of each series that has one, in as many lines as they need."""
    parts = [
        Text(f"{_SIGNS[look % len(_SIGNS)]} ", style=_STYLES[look % len(_STYLES)]).append(series.name, style="default")
        for look, series in zip(points.looks(plot), plot.series, strict=True)
        if series.name
    ]
    if len(parts) > 1:
        parts.append(Text("* where they meet", style="dim"))
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + part.cell_len + 3 <= width:
            lines[-1].append("  ").append_text(part)
        else:
            lines.append(Text("  ").append_text(part))
    return lines
