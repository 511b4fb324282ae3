"""A report to a file, by the file's suffix."""

from __future__ import annotations

import json
from pathlib import Path

from dflash2_mlx.errors import RequestError
from dflash2_mlx.report.blocks import Report
from dflash2_mlx.report.markdown import write_markdown
from dflash2_mlx.report.page import html_page
from dflash2_mlx.report.plain import as_dict
from dflash2_mlx.report.whole import write_whole

SUFFIXES = (".html", ".md", ".json")


def check_suffix(path: Path) -> str:
    """Its suffix in lower case. Raises RequestError for one that no report is written to: ask before long work."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        allowed = ", ".join(SUFFIXES[:-1]) + f" or {SUFFIXES[-1]}"
        raise RequestError(f"{path}: a report is written to a file that ends in {allowed}", param="report")
    return suffix


def write_report(report: Report, path: Path) -> None:
    """A page, Markdown with its plots beside it, or JSON. Raises RequestError for another suffix, DFlashError."""
    match check_suffix(path):
        case ".html":
            write_whole(path, html_page(report))
        case ".md":
            write_markdown(report, path)
        case _:
            write_whole(path, json.dumps(as_dict(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
