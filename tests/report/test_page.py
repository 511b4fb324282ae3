"""The report as a page: one file, all of it escaped, nothing fetched or run."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from dflash2_mlx.report.blocks import Report, Table, Text
from dflash2_mlx.report.page import html_page
from tests.report.samples import everything, nasty

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(HTMLParser):
    """The tags in order; `open` is empty at the end where all were closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


def test_the_page_is_whole_and_holds_every_block() -> None:
    text = html_page(everything())
    page = Page(text)
    assert page.open == []
    assert text.startswith("<!DOCTYPE html>")
    assert {"h1", "h2", "dl", "table", "svg", "figure", "figcaption"} <= page.names()
    for words in ("A report", "A section", "A paragraph.", "A remark.", "Figures", "a machine", "12,345", "1.23", "–"):
        assert f">{words}<" in text


def test_nothing_is_run_or_fetched() -> None:
    for report in (everything(), nasty()):
        text = html_page(report)
        page = Page(text)
        assert page.names().isdisjoint({"script", "link", "img", "iframe", "object", "b"})
        assert not [
            name for _, attrs in page.tags for name in attrs if name.startswith("on") or name in ("src", "href")
        ]
        assert "@import" not in text
        assert "url(" not in text
        assert re.findall(r"https?://[^\"']+", text.replace("http://www.w3.org/2000/svg", "")) == []


def test_every_text_is_escaped() -> None:
    page = Page(html_page(nasty()))
    assert page.open == []
    assert "\x00" not in html_page(nasty())


def test_light_dark_narrow_and_print_are_cared_for() -> None:
    text = html_page(everything())
    for rule in ("prefers-color-scheme: dark", "max-width: 620px", "@media print", 'name="viewport"'):
        assert rule in text


def test_numbers_are_set_to_the_right_and_texts_to_the_left() -> None:
    page = Page(html_page(everything()))
    heads = [attrs["class"] for tag, attrs in page.tags if tag == "th"]
    assert heads == ["name", "number", "number", "number"]


def test_drawings_are_described() -> None:
    page = Page(html_page(everything()))
    drawings = [attrs for tag, attrs in page.tags if tag == "svg"]
    assert len(drawings) == 5  # both plots in two widths, the heatmap in one
    assert all(attrs["role"] == "img" and attrs["aria-label"] for attrs in drawings)


def test_rows_of_other_lengths_than_the_head_are_filled() -> None:
    uneven = Table(title="", columns=["a"], rows=[[1, 2], [], ["x"]])
    text = html_page(Report(title="t", facts={}, blocks=[uneven]))
    assert text.count("<td") == 6


def test_the_page_is_the_same_each_time_and_empty_where_there_is_nothing() -> None:
    assert html_page(everything()) == html_page(everything())
    text = html_page(Report(title="Only a title", facts={}, blocks=[Text(text="")]))
    assert Page(text).open == []
    assert "<dl>" not in text
