"""A report as one HTML file: drawings and style inside, no script, nothing from the network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib import resources

from dflash2_mlx.report import tables
from dflash2_mlx.report.blocks import Block, Heatmap, Plot, Report, Table, Text
from dflash2_mlx.report.svg import NARROW, svg
from dflash2_mlx.report.svg_parts import clean

# A text of so many signs is not broken over lines: the table is moved sideways instead.
_ONE_LINE = 28


def html_page(report: Report) -> str:
    """The whole page."""
    style = (resources.files(__package__) / "page.css").read_text(encoding="utf-8")
    body = "\n".join([_facts(report.facts), *map(block_html, report.blocks)])
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(report.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_text(report.title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def block_html(block: Block) -> str:
    """One block as HTML, all of it escaped; its look is in page.css."""
    match block:
        case Text():
            return _paragraph(block)
        case Table():
            return _table(block)
        case Plot():
            drawings = svg(block, titled=False), svg(block, titled=False, width=NARROW)
            wide, narrow = (_classed(drawing, name) for drawing, name in zip(drawings, ("wide", "narrow"), strict=True))
            return _figure(block, wide + narrow)
        case Heatmap():
            return _figure(block, _scroll(svg(block, titled=False, width=0), block.title))


def _text(words: str) -> str:
    return escape(clean(words))


def _paragraph(block: Text) -> str:
    if block.kind == "heading":
        return f"<h2>{_text(block.text)}</h2>"
    look = ' class="note"' if block.kind == "note" else ""
    return f"<p{look}>{_text(block.text)}</p>"


def _facts(facts: Mapping[str, str]) -> str:
    if not facts:
        return ""
    pairs = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>\n" for name, value in facts.items())
    return f'<section class="card" aria-label="Facts"><dl>\n{pairs}</dl></section>'


def _note(words: str) -> str:
    return f'<p class="note">{_text(words)}</p>' if words else ""


def _scroll(inner: str, name: str) -> str:
    """A part that may be wider than the screen; it takes the focus, so that the keyboard can move it."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{_text(name)}">{inner}</div>'


def _figure(block: Plot | Heatmap, drawing: str) -> str:
    return f'<figure class="card"><figcaption>{_text(block.title)}</figcaption>{drawing}{_note(block.note)}</figure>'


def _classed(drawing: str, name: str) -> str:
    return drawing.replace("<svg ", f'<svg class="{name}" ', 1)


def _table(table: Table) -> str:
    numeric = tables.numeric(table)
    head = "".join(map(_head, tables.columns(table), numeric))
    rows = "\n".join(f"<tr>{''.join(map(_cell, row, numeric))}</tr>" for row in tables.cells(table))
    inner = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    return f'<div class="card"><h3>{_text(table.title)}</h3>{_scroll(inner, table.title)}{_note(table.note)}</div>'


def _head(words: str, numeric: bool) -> str:
    return f'<th scope="col" class="{"number" if numeric else "name"}">{_text(words)}</th>'


def _cell(words: str, numeric: bool) -> str:
    look = "number" if numeric else "name one-line" if len(words) <= _ONE_LINE else "name"
    return f'<td class="{look}">{_text(words)}</td>'
