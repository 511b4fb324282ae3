"""Reports to files: by suffix, whole or not at all, Markdown with its plots beside it."""

from __future__ import annotations

import json
import re
from math import nan
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.report import whole
from dflash2_mlx.report.blocks import Report, Series, Text
from dflash2_mlx.report.files import write_report
from dflash2_mlx.report.markdown import file_names, markdown, slug
from tests.report.samples import NASTY, everything, lines, nasty


def test_the_suffix_chooses(tmp_path: Path) -> None:
    for name in ("r.html", "r.MD", "deep/er/r.json"):
        write_report(everything(), tmp_path / name)
    assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
    assert (tmp_path / "r.MD").read_text().startswith("# A report\n")
    assert json.loads((tmp_path / "deep/er/r.json").read_text())["title"] == "A report"


@pytest.mark.parametrize("name", ["r.pdf", "r", ".html"])
def test_another_suffix_is_refused_by_the_allowed_ones(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError, match=r"\.html, \.md or \.json") as caught:
        write_report(everything(), tmp_path / name)
    assert name in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_json_holds_all_blocks_and_null_for_what_is_no_number(tmp_path: Path) -> None:
    plot = lines(series=(Series(name="a", x=[1, "b"], y=[nan, 2.0]),))
    write_report(Report(title="t", facts={"a": "b"}, blocks=[plot, *everything().blocks]), tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert [block["type"] for block in found["blocks"]][:4] == ["plot", "text", "text", "text"]
    assert found["blocks"][0]["series"][0] | {"low": [], "high": []} == {
        "name": "a",
        "x": [1, "b"],
        "y": [None, 2.0],
        "low": [],
        "high": [],
        "colour": None,
    }
    assert found["facts"] == {"a": "b"}


def test_markdown_shows_plots_that_are_there(tmp_path: Path) -> None:
    write_report(everything(), tmp_path / "Bench one.md")
    text = (tmp_path / "Bench one.md").read_text()
    links = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert links == [f"plots/bench-one-{name}.svg" for name in ("speed-by-depth", "speed-by-kind", "shares")]
    for link in links:
        drawing = (tmp_path / link).read_text()
        ET.fromstring(drawing)
        assert "prefers-color-scheme:dark" in drawing
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(link[6:] for link in links)


def test_markdown_tables_align_their_numbers() -> None:
    report = everything()
    text = markdown(report, file_names(report, "r"))
    assert "| kind | ratio | count | share |\n| --- | ---: | ---: | ---: |\n| code | 1.23 | 12,345 | – |" in text


def test_markdown_is_read_as_the_text_that_it_was() -> None:
    shown = " ".join(NASTY.split())
    report = nasty()
    html = MarkdownIt("commonmark").enable("table").render(markdown(report, file_names(report, "r")))
    assert "<b>" not in html
    plain = MarkdownIt("commonmark").enable("table").parse(f"{markdown(report, file_names(report, 'r'))}")
    headings = [token.children for token in plain if token.type == "inline"][:1]
    assert "".join(child.content for child in headings[0] or []) == shown.replace("\x00", "\ufffd")


@pytest.mark.parametrize("words", ["1. no list", "- no list", "a_b_c _d_", "# no heading", "a\n\nb", "=== x", "~~x~~"])
def test_a_paragraph_stays_a_paragraph(words: str) -> None:
    report = Report(title="t", facts={}, blocks=[Text(text=words)])
    html = MarkdownIt("commonmark").render(markdown(report, [""]))
    body = html.split("</h1>\n", 1)[1]
    assert body == "".join(f"<p>{part}</p>\n" for part in words.split("\n\n"))


def test_equal_titles_get_files_of_their_own() -> None:
    report = Report(title="t", facts={}, blocks=[lines(), Text(text=""), lines(), lines(title="Größe α/β")])
    names = file_names(report, "r")
    assert names == [
        "plots/r-speed-by-depth.svg",
        "",
        "plots/r-speed-by-depth-2.svg",
        "plots/r-grosse.svg".replace("grosse", slug("Größe α/β")),
    ]
    assert slug("α") == "plot"


def test_a_file_is_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.html"
    path.write_text("before")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole.os, "replace", refuse)
    with pytest.raises(DFlashError, match=r"r\.html cannot be written: No space left on device"):
        write_report(everything(), path)
    assert path.read_text() == "before"
    assert [one.name for one in tmp_path.iterdir()] == ["r.html"]


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DFlashError, match="cannot be written"):
        write_report(everything(), tmp_path / "file" / "r.html")


def test_the_mode_of_a_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_report(everything(), path)
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    write_report(everything(), path)
    assert path.stat().st_mode & 0o777 == 0o600
