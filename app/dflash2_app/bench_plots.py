"""The plots of a bench as data for ECharts: speed and ratio to plain decoding, by kind or depth. Pure functions.

Colours of texts and lines come from the style sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dflash2_app.bench_words import group_words
from dflash2_mlx.bench.cells import By, Cell

# Readable on light and on dark ground; the first is the baseline's, the rest are taken in turn.
BASELINE = "#8a969f"
COLOURS = ("#1f8a70", "#c2702e", "#7a5fc0", "#2f7d9c", "#b0476f", "#8a7a1f")


def speed_options(cells: Sequence[Cell], by: By) -> dict[str, Any]:
    """Bars: the median tokens per second of each arm, groups side by side."""
    groups, arms = _names(cells)
    options = _options(groups, arms, by)
    options["yAxis"]["name"] = "tok/s"
    options["series"] = [
        {
            "name": arm,
            "type": "bar",
            "color": colour(cells, arm),
            "barMaxWidth": 34,
            "data": [_rounded(_speed(cells, arm, group), 1) for group in groups],
        }
        for arm in arms
    ]
    return options


def ratio_options(cells: Sequence[Cell], by: By) -> dict[str, Any]:
    """Boxes: median and quartiles of the ratio to the baseline, whiskers its interval; a line at no difference."""
    compared = [cell for cell in cells if cell.ratio is not None]
    groups, arms = _names(compared)
    options = _options(groups, arms, by)
    options["tooltip"] = {"trigger": "item"}
    options["yAxis"] |= {"name": "times plain", "min": 0}
    options["series"] = [
        {
            "name": arm,
            "type": "boxplot",
            "color": colour(cells, arm),
            "itemStyle": {"color": colour(cells, arm) + "55", "borderColor": colour(cells, arm), "borderWidth": 2},
            "boxWidth": [8, 34],
            "data": [_box(compared, arm, group) for group in groups],
            **({"markLine": _no_difference()} if not place else {}),
        }
        for place, arm in enumerate(arms)
    ]
    return options


def speed_said(cells: Sequence[Cell], by: By) -> str:
    """The plot in words."""
    said = [f"{group_words(cell.group, by)}: {cell.arm} {cell.speed:.1f}" for cell in cells if cell.speed is not None]
    return "Tokens per second. " + ("; ".join(said) if said else "No samples yet")


def ratio_said(cells: Sequence[Cell], by: By) -> str:
    said = [f"{group_words(cell.group, by)}: {cell.arm} {cell.ratio:.2f}" for cell in cells if cell.ratio is not None]
    return "Times the speed of plain decoding. " + ("; ".join(said) if said else "No pairs yet")


def colour(cells: Sequence[Cell], arm: str) -> str:
    """Of an arm, the same in both plots."""
    compared = list(dict.fromkeys(cell.arm for cell in cells if cell.baseline is not None))
    return COLOURS[compared.index(arm) % len(COLOURS)] if arm in compared else BASELINE


def _names(cells: Sequence[Cell]) -> tuple[list[str], list[str]]:
    return list(dict.fromkeys(cell.group for cell in cells)), list(dict.fromkeys(cell.arm for cell in cells))


def _speed(cells: Sequence[Cell], arm: str, group: str) -> float | None:
    return next((cell.speed for cell in cells if (cell.arm, cell.group) == (arm, group)), None)


def _box(cells: Sequence[Cell], arm: str, group: str) -> list[float]:
    """Low end, lower quartile, median, upper quartile, high end; nothing where there is no ratio."""
    cell = next((cell for cell in cells if (cell.arm, cell.group) == (arm, group)), None)
    if cell is None or cell.ratio is None or cell.ratio_low is None or cell.ratio_high is None:
        return []
    low, high = cell.interval or (cell.ratio_low, cell.ratio_high)
    # An interval of few pairs may be within the quartiles: a whisker never ends in its box.
    ends = min(low, cell.ratio_low), max(high, cell.ratio_high)
    return [round(value, 3) for value in (ends[0], cell.ratio_low, cell.ratio, cell.ratio_high, ends[1])]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _no_difference() -> dict[str, Any]:
    return {
        "silent": True,
        "symbol": "none",
        "label": {"show": False},
        "lineStyle": {"color": "#8a969f", "type": "dashed"},
        "data": [{"yAxis": 1}],
    }


def _options(groups: Sequence[str], arms: Sequence[str], by: By) -> dict[str, Any]:
    return {
        "animation": False,
        "textStyle": {"fontFamily": "system-ui, sans-serif"},
        "grid": {"left": 44, "right": 12, "top": 62, "bottom": 28},
        "legend": {"type": "scroll", "top": 0, "left": 0, "right": 0, "icon": "roundRect", "itemHeight": 8,
                   "data": list(arms)},
        "tooltip": {"trigger": "axis", "axisPointer": {"type": "shadow"}},
        "xAxis": {
            "type": "category",
            "data": [group_words(group, by) for group in groups],
            "axisTick": {"show": False},
            "axisLabel": {"interval": 0, "hideOverlap": True},
        },
        "yAxis": {
            "type": "value",
            "min": 0,
            "splitNumber": 4,
            "nameTextStyle": {"align": "left"},
            "splitLine": {"lineStyle": {"color": "#8884"}},
        },
    }  # fmt: skip
