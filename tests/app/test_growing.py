"""A growing text: what is settled is sent once, and slow rendering neither takes the processor nor stops the stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Self

import pytest

from dflash2_app import growing
from dflash2_mlx.chat.render import finished_markdown


class Element:
    """An element of a page, and the pieces of HTML in it."""

    def __init__(self, pieces: list[Element], html: str = "") -> None:
        self.pieces, self.html, self.sent = pieces, html, 1

    def classes(self, names: str) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing."""

    def set_content(self, html: str) -> None:
        self.html, self.sent = html, self.sent + 1


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> list[Element]:
    pieces: list[Element] = []

    def html(content: str) -> Element:
        pieces.append(Element([], content))
        return pieces[-1]

    monkeypatch.setattr(growing, "ui", SimpleNamespace(element=lambda tag: Element(pieces), html=html))
    return pieces


class Clock:
    """Wall and processor time; rendering takes `cost` of both."""

    def __init__(self, cost: float) -> None:
        self.cost, self.time, self.used = cost, 100.0, 0.0

    def monotonic(self) -> float:
        return self.time

    def thread_time(self) -> float:
        return self.used

    def render(self, text: str) -> str:
        self.time += self.cost
        self.used += self.cost
        return f"<{text}>"


def test_settled_blocks_are_sent_once(page: list[Element], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.0)
    monkeypatch.setattr(growing, "time", clock)
    text = growing.GrowingText(finished_markdown, clock.render)
    whole = "\n\n".join(f"Paragraph {n}: " + "word " * 60 for n in range(6))
    for end in range(0, len(whole), 17):
        text.show(whole[:end])
    text.show(whole, last=True)
    assert "".join(piece.html[1:-1] for piece in page) == whole
    assert len(page) > 2
    assert all(len(piece.html) < 1200 for piece in page)
    sent = page[0].sent
    text.show(whole + "\n\nOne more.", last=True)
    assert page[0].sent == sent


@pytest.mark.parametrize(("cost", "pause"), [(0.001, 0.1), (0.01, 1.0), (3.0, 1.5)])
def test_slow_rendering_waits_but_not_for_long(
    page: list[Element], monkeypatch: pytest.MonkeyPatch, cost: float, pause: float
) -> None:
    clock: Any = Clock(cost)
    monkeypatch.setattr(growing, "time", clock)
    text = growing.GrowingText(lambda text: 0, clock.render)
    text.show("a")
    clock.time += pause * 0.9
    text.show("ab")
    assert page[0].html == "<a>"
    clock.time += pause * 0.2
    text.show("ab")
    assert page[0].html == "<ab>"
    text.show("abc", last=True)
    assert page[0].html == "<abc>"
