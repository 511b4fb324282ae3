"""What a report is made of: texts, tables and plots as plain data. Who shows them is told apart from who has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class Text:
    """A paragraph. `kind` heading begins a section."""

    text: str
    kind: Literal["paragraph", "heading", "note"] = "paragraph"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells; numbers are shown with `digits` decimals, None as a dash."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    digits: int = 2
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A named line, or the bars of one name: x and y of each point. `low` and `high` (same length) are its spread.

    `colour` is the number of its colour, sign and dashes, the same in all plots of a report; None: its place.
    """

    name: str
    x: Sequence[float | str]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    colour: int | None = None


@dataclass(frozen=True, kw_only=True)
class Plot:
    """Lines over numbers, or grouped bars over names (`kind`). `baseline` is a horizontal line, such as 1.0."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: Literal["lines", "bars"] = "lines"
    baseline: float | None = None
    y_from: float | None = None  # None: from the data
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Heatmap:
    """A value for each row and column, drawn by colour and told as a number; None is left empty."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    digits: int = 2
    note: str = ""


Block = Text | Table | Plot | Heatmap


@dataclass(frozen=True, kw_only=True)
class Report:
    """A title, the facts it stands on (machine, versions, pair, quantisation, digests, command) and its blocks."""

    title: str
    facts: Mapping[str, str]
    blocks: Sequence[Block] = field(default_factory=tuple)
