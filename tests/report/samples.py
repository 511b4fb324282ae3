"""Reports to draw: one with all kinds of blocks, and pieces that are hard to draw."""

from __future__ import annotations

from math import inf, nan

from dflash2_mlx.report.blocks import Heatmap, Plot, Report, Series, Table, Text

NASTY = "<b>\"it's\" & 'that'</b>\x00\x1b|`*_é漢"


def lines(**changes: object) -> Plot:
    """Two lines over numbers, one with a gap and a spread."""
    given: dict[str, object] = {
        "title": "Speed by depth",
        "x_label": "tokens",
        "y_label": "tokens per second",
        "series": (
            Series(name="plain", x=[1, 2, 3, 4], y=[4.0, 3.0, 2.0, 1.0]),
            Series(name="block 5", x=[1, 2, 3, 4], y=[8.0, 7.0, None, 5.0], low=[7, 6, 5, 4], high=[9, 8, 7, 6]),
        ),
    }
    return Plot(**(given | changes))  # type: ignore[arg-type]


def bars(**changes: object) -> Plot:
    """Two arms over three names; one value is missing."""
    given: dict[str, object] = {
        "title": "Speed by kind",
        "x_label": "kind",
        "y_label": "tokens per second",
        "kind": "bars",
        "baseline": 1.0,
        "series": (
            Series(name="plain", x=["code", "chat", "prose"], y=[1.0, 1.1, None]),
            Series(name="block 5", x=["code", "chat", "prose"], y=[2.0, 1.5, 0.9], low=[1, 1, 0.8], high=[3, 2, 1]),
        ),
    }
    return Plot(**(given | changes))  # type: ignore[arg-type]


def heat() -> Heatmap:
    return Heatmap(title="Shares", rows=["layer 0", "layer 1"], columns=["a", "b"], values=[[0.1, None], [1.0, nan]])


def table() -> Table:
    rows = [["code", 1.23456, 12345, None], ["chat", inf, 7, 0.5]]
    return Table(title="Figures", columns=["kind", "ratio", "count", "share"], rows=rows, note="a note")


def everything() -> Report:
    """All kinds of blocks, with nothing that would be markup."""
    return Report(
        title="A report",
        facts={"machine": "a machine", "command": "dflash2-mlx bench --report x.md"},
        blocks=[
            Text(text="A section", kind="heading"),
            Text(text="A paragraph."),
            Text(text="A remark.", kind="note"),
            table(),
            lines(),
            bars(),
            heat(),
        ],
    )


def nasty() -> Report:
    """Every text is one that has to be escaped."""
    series = (Series(name=NASTY, x=[NASTY, "b"], y=[1, 2]),)
    return Report(
        title=NASTY,
        facts={NASTY: NASTY},
        blocks=[
            Text(text=NASTY, kind="heading"),
            Text(text=NASTY),
            Table(title=NASTY, columns=[NASTY], rows=[[NASTY]], note=NASTY),
            Plot(title=NASTY, x_label=NASTY, y_label=NASTY, series=series, note=NASTY),
            Plot(title=NASTY, x_label=NASTY, y_label=NASTY, series=series, kind="bars"),
            Heatmap(title=NASTY, rows=[NASTY], columns=[NASTY], values=[[1.0]], note=NASTY),
        ],
    )
