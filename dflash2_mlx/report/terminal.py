"""A report in the terminal: rich's tables, plots as text. As wide as the console is, with colour or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from dflash2_mlx.report import tables
from dflash2_mlx.report.blocks import Block, Heatmap, Plot, Report, Table, Text
from dflash2_mlx.report.terminal_plots import plot_lines


def show(report: Report, console: Console | None = None) -> None:
    """Print it, to standard output where no console is given."""
    console = console or Console()
    console.print(RichText(report.title, style="bold"))
    if report.facts:
        facts = RichTable.grid(padding=(0, 2, 0, 0))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        for name, value in report.facts.items():
            facts.add_row(RichText(name), RichText(value))
        console.print(facts)
    for block in report.blocks:
        console.print()
        for part in _parts(block, console.width):
            console.print(part)


def _parts(block: Block, width: int) -> list[RenderableType]:
    match block:
        case Text():
            style = {"heading": "bold", "note": "dim"}.get(block.kind, "")
            return [RichText(block.text, style=style)]
        case Table():
            return [*_title(block.title), *_tables(block, width), *_note(block.note)]
        case Heatmap():
            return [*_title(block.title), *_tables(_as_table(block), width), *_note(block.note)]
        case Plot():
            lines: list[RenderableType] = list(plot_lines(block, width))
            return [*_title(block.title), *lines, *_note(block.note)]


def _title(words: str) -> list[RenderableType]:
    return [RichText(words, style="bold")] if words else []


def _note(words: str) -> list[RenderableType]:
    return [Padding(RichText(words, style="dim"), (0, 0, 0, 1))] if words else []


def _as_table(heatmap: Heatmap) -> Table:
    rows = [
        [name, *(None if value is None else float(value) for value in values)]
        for name, values in zip(heatmap.rows, heatmap.values, strict=False)
    ]
    return Table(title="", columns=["", *heatmap.columns], rows=rows, digits=heatmap.digits)


def _tables(table: Table, width: int) -> list[RenderableType]:
    """One table, or several that have the first column in common where the console is too narrow for all columns.

    A number is never cut: it would read as another one.
    """
    columns = _columns(table)
    return [_drawn([columns[i] for i in chosen], width) for chosen in _groups(columns, width)]


@dataclass(frozen=True)
class _Column:
    """`least` and `natural` are widths in cells: at the narrowest, and with nothing broken over lines."""

    name: str
    numeric: bool
    cells: Sequence[str]
    least: int
    natural: int


def _columns(table: Table) -> list[_Column]:
    names, numeric, rows = tables.columns(table), tables.numeric(table), tables.cells(table)
    return [_column(names[i], numeric[i], [row[i] for row in rows], first=i == 0) for i in range(len(names))]


def _column(name: str, numeric: bool, cells: Sequence[str], *, first: bool) -> _Column:
    """Numbers stay whole; texts may be broken between words, or within words of more than 16 signs."""
    natural = max([cell_len(name), 1, *map(cell_len, cells)])
    longest = max(map(cell_len, cells), default=0)
    words = max((cell_len(word) for words in (name, *([] if numeric else cells)) for word in words.split()), default=0)
    least = max(min(words, 16), longest if numeric else min(longest, 24) if first else 1, 1)
    return _Column(name, numeric, cells, least, max(least, natural))


def _groups(columns: Sequence[_Column], width: int) -> list[list[int]]:
    """The columns of each table: as many as fit, the first in all."""
    groups = [[0]] if columns else []
    for i in range(1, len(columns)):
        if sum(columns[j].least + 3 for j in [*groups[-1], i]) - 1 > width and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(i)
    return groups


def _drawn(columns: Sequence[_Column], width: int) -> RichTable:
    drawn = RichTable(show_edge=False, header_style="")
    spare = width + 1 - sum(column.least + 3 for column in columns)
    for column in columns:
        more = max(0, min(spare, column.natural - column.least))
        spare -= more
        side: JustifyMethod = "right" if column.numeric else "left"
        drawn.add_column(RichText(column.name), justify=side, width=column.least + more, overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        drawn.add_row(*map(RichText, row))
    return drawn
