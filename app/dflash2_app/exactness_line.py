"""Whether a verify gives what single steps give on this machine, in a line that is a warning where it does not."""

from __future__ import annotations

from nicegui import ui

from dflash2_app.live import Part
from dflash2_app.wording import Tone
from dflash2_mlx.decode.exactness_report import ExactnessReport

_CLASSES: dict[str, str] = {"warn": "note note-warn small wrap", "good": "soft small wrap"}


def tone(report: ExactnessReport) -> Tone:
    """Rounding is as it should be: near-ties may fall otherwise. What differs by more is told as a warning."""
    return "warn" if report.verdict == "different" else "good"


def words(report: ExactnessReport) -> str:
    return f"Exactness, {report.dtype}: {report.summary}"


class ExactnessLine:
    """Nothing is shown without a report."""

    def __init__(self) -> None:
        self._part = Part[ExactnessReport | None](_key, _build)

    def show(self, report: ExactnessReport | None) -> None:
        self._part.show(report)


def _key(report: ExactnessReport | None) -> object:
    return None if report is None else (words(report), tone(report))


def _build(report: ExactnessReport | None) -> None:
    if report is None:
        return
    line = ui.label(words(report)).classes(_CLASSES[tone(report)])
    line.props("data-testid=exactness")
