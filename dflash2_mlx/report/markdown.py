"""A report as a Markdown file with its plots beside it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path

from dflash2_mlx.report import tables
from dflash2_mlx.report.blocks import Block, Heatmap, Plot, Report, Table, Text
from dflash2_mlx.report.svg import standalone
from dflash2_mlx.report.whole import write_whole

_FOLDER = "plots"
# What Markdown would read as markup, or as the end of a table's cell. An underscore within a word is none.
_MARKUP = re.compile(r"[\\`*\[\]<>|~#]|(?<![^\W_])_|_(?![^\W_])")
_LINE_MARKUP = re.compile(r"^(\d+)?([-+.=])(?=\s|$|[-+=])")


def write_markdown(report: Report, path: Path) -> None:
    """`path` and, for each plot and heatmap, plots/NAME-TITLE.svg in the folder of `path`, which it shows.

    The plots come first, so that a report that is there is whole. Raises DFlashError where a file cannot be written.
    """
    names = file_names(report, path.stem)
    for block, name in zip(report.blocks, names, strict=True):
        if isinstance(block, Plot | Heatmap):
            write_whole(path.parent / name, standalone(block))
    write_whole(path, markdown(report, names))


def markdown(report: Report, names: Sequence[str]) -> str:
    """The text; `names` are the drawings' paths as links have them, empty for other blocks."""
    parts = [f"# {_line(report.title)}", _facts(report.facts)]
    parts += [_block(block, name) for block, name in zip(report.blocks, names, strict=True)]
    return "\n\n".join(part for part in parts if part) + "\n"


def file_names(report: Report, stem: str) -> list[str]:
    """A relative path for each drawing by its title, numbered where a title comes again; "" for other blocks."""
    used: dict[str, int] = {}
    found = []
    for block in report.blocks:
        if not isinstance(block, Plot | Heatmap):
            found.append("")
            continue
        name = f"{slug(stem)}-{slug(block.title)}"
        used[name] = used.get(name, 0) + 1
        found.append(f"{_FOLDER}/{name}{f'-{used[name]}' if used[name] > 1 else ''}.svg")
    return found


def slug(words: str) -> str:
    """Letters of ASCII, digits and hyphens: a name for any file system and link."""
    ascii_ = unicodedata.normalize("NFKD", words).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", ascii_).strip("-")[:80].strip("-") or "plot"


def _facts(facts: Mapping[str, str]) -> str:
    return "\n".join(f"- {_line(name)}: {_line(value)}" for name, value in facts.items())


def _block(block: Block, name: str) -> str:
    match block:
        case Text():
            return _text(block)
        case Table():
            return _titled(block.title, _table(block), block.note)
        case Plot() | Heatmap():
            return _titled(block.title, f"![{_line(block.title)}]({name})", block.note)


def _titled(title: str, body: str, note: str) -> str:
    return "\n\n".join(part for part in (f"**{_line(title)}**" if title else "", body, _line(note)) if part)


def _text(block: Text) -> str:
    if block.kind == "heading":
        return f"## {_line(block.text)}"
    paragraphs = [_line(part) for part in re.split(r"\n\s*\n", block.text.strip())]
    return "\n\n".join(f"> {part}" if block.kind == "note" else part for part in paragraphs)


def _table(table: Table) -> str:
    rule = ["---:" if numeric else "---" for numeric in tables.numeric(table)]
    rows = [list(map(_line, tables.columns(table))), rule, *(list(map(_line, row)) for row in tables.cells(table))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _line(words: str) -> str:
    """Text of one line, read as it is written."""
    joined = _MARKUP.sub(r"\\\g<0>", " ".join(words.split()))
    return _LINE_MARKUP.sub(r"\1\\\2", joined)
