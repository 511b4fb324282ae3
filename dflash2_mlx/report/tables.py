"""A table's cells as text, all rows of one length, and which columns hold numbers."""

from __future__ import annotations

from dflash2_mlx.report.blocks import Table
from dflash2_mlx.report.format import cell


def cells(table: Table) -> list[list[str]]:
    """The rows as text; a row that is too short is filled with empty cells."""
    width = _width(table)
    return [[cell(value, table.digits) for value in row] + [""] * (width - len(row)) for row in table.rows]


def columns(table: Table) -> list[str]:
    """The names of the columns, empty for cells beyond the last name."""
    return [*table.columns, *[""] * (_width(table) - len(table.columns))]


def numeric(table: Table) -> list[bool]:
    """For each column whether it holds numbers and no text: such are set to the right."""
    found = [[row[i] for row in table.rows if i < len(row)] for i in range(_width(table))]
    return [
        any(isinstance(value, int | float) for value in column) and not any(isinstance(value, str) for value in column)
        for column in found
    ]


def _width(table: Table) -> int:
    return max([len(table.columns), *(len(row) for row in table.rows)])
