"""A grid of cells whose colour, over the ground's own, grows with the value; the number stands in each."""

from __future__ import annotations

from collections.abc import Sequence

from dflash2_mlx.report.blocks import Heatmap
from dflash2_mlx.report.format import finite, number
from dflash2_mlx.report.svg_parts import COLOURS, SMALL, cut, element, text, tooltip, width_of

_ROW = 24.0
_LONGEST = 190.0
_KEY_WIDTH = 140.0
# Of the colour over the ground: text in the ground's own colour stays readable on all of them, light and dark.
_LEAST, _MOST = 0.05, 0.72


def heatmap(block: Heatmap, *, top: float) -> tuple[str, float, float]:
    """The grid below `top`; its width and the height where it ends."""
    values = [[_value(block, r, c) for c in range(len(block.columns))] for r in range(len(block.rows))]
    known = [value for row in values for value in row if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    left = min(_LONGEST, max((width_of(name) for name in block.rows), default=0)) + 12
    cell = _cell_width(block, values)
    head = "".join(
        text(left + (i + 0.5) * cell, top + 16, name, text_anchor="middle") for i, name in enumerate(block.columns)
    )
    rows = "".join(
        _row(block, values, r, left=left, y=top + 24 + r * _ROW, cell=cell, low=low, high=high)
        for r in range(len(block.rows))
    )
    bottom = top + 24 + len(block.rows) * _ROW
    width = max(left + cell * len(block.columns) + 4, left + _KEY_WIDTH + 110)
    key = _key(low, high, block.digits, left, bottom + 10) if known else text(left, bottom + 20, "no data")
    return element("g", head, rows, key, fill="currentColor"), width, bottom + 36


def _value(block: Heatmap, row: int, column: int) -> float | None:
    if row >= len(block.values) or column >= len(block.values[row]):
        return None
    value = finite(block.values[row][column])
    return None if value is None else float(value)


def _cell_width(block: Heatmap, values: Sequence[Sequence[float | None]]) -> float:
    """As wide as the widest number or column's name."""
    words = [number(value, block.digits) for row in values for value in row if value is not None]
    widest = max([width_of(word, SMALL) for word in words] + [width_of(name) for name in block.columns], default=0)
    return max(34.0, widest + 10)


def _row(
    block: Heatmap,
    values: Sequence[Sequence[float | None]],
    r: int,
    *,
    left: float,
    y: float,
    cell: float,
    low: float,
    high: float,
) -> str:
    name = block.rows[r]
    shown = cut(name, _LONGEST)
    label = text(left - 8, y + 16, shown, text_anchor="end")
    drawn = [element("g", label, tooltip(name)) if shown != name else label]
    for c, value in enumerate(values[r]):
        x = left + c * cell
        told = f"{name}, {block.columns[c]}: {number(value, block.digits)}"
        box = {"x": x + 0.5, "y": y + 0.5, "width": cell - 1, "height": _ROW - 1, "rx": 2}
        if value is None:
            drawn.append(element("rect", tooltip(told), **box, fill="none", stroke="currentColor", stroke_opacity=0.15))
            continue
        opacity = _opacity(value, low, high)
        drawn.append(element("rect", tooltip(told), **box, fill=COLOURS[0], fill_opacity=opacity))
        drawn.append(text(x + cell / 2, y + 16, number(value, block.digits), size=SMALL, text_anchor="middle"))
    return "".join(drawn)


def _opacity(value: float, low: float, high: float) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(_LEAST + share * (_MOST - _LEAST), 2)


def _key(low: float, high: float, digits: int, left: float, y: float) -> str:
    """From the least to the greatest, in steps of the colour."""
    words = number(low, digits)
    start = left + width_of(words, SMALL) + 8
    steps = 14
    each = _KEY_WIDTH / steps
    drawn = [
        element(
            "rect", x=start + i * each, y=y, width=each, height=12, fill=COLOURS[0], fill_opacity=_opacity(i, 0, 13)
        )
        for i in range(steps)
    ]
    ends = text(left, y + 10, words, size=SMALL) + text(
        start + _KEY_WIDTH + 8, y + 10, number(high, digits), size=SMALL
    )
    return ends + "".join(drawn)
