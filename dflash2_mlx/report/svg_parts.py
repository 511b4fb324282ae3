"""The pieces that every drawing is put together from: elements, texts, colours, markers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

# Contrast 3:1 or more on white and on the dark ground, apart for the usual kinds of colour blindness; marker and
# dashes differ too, for those who see none of it and for print.
COLOURS = ("#2b7bba", "#d06a10", "#1a9873", "#9063c8", "#cf4f7c", "#8a8420", "#71808f", "#a8623a")
DASHES = ("", "6 3", "2 3", "9 3 2 3")
TEXT, SMALL, TITLE = 12.0, 11.0, 15.0  # sizes of fonts in px
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"
Attribute = str | float | None
# What XML 1.0 does not allow, escaped or not.
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def clean(text: str) -> str:
    """The text without characters that XML forbids."""
    return _NO_XML.sub("\ufffd", text)


def element(name: str, /, *children: str, **attributes: Attribute) -> str:
    """An element; children are markup already. `stroke_width` becomes stroke-width, None is left out."""
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(clean(_value(value)))}"
        for key, value in attributes.items()
        if value is not None
    )
    inner = "".join(children)
    return f"<{name}{given}>{inner}</{name}>" if inner else f"<{name}{given}/>"


def text(x: float, y: float, words: str, *, size: float = TEXT, **attributes: Attribute) -> str:
    """A text whose base line begins (or, by `text_anchor`, ends or has its middle) at x, y."""
    return element("text", escape(clean(words)), x=x, y=y, font_size=size, **attributes)


def tooltip(words: str) -> str:
    return element("title", escape(clean(words)))


def line(x1: float, y1: float, x2: float, y2: float, **attributes: Attribute) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def path(places: Sequence[tuple[float, float]], *, closed: bool = False, **attributes: Attribute) -> str:
    steps = " ".join(f"{'L' if i else 'M'}{_value(x)} {_value(y)}" for i, (x, y) in enumerate(places))
    return element("path", d=steps + (" Z" if closed else ""), **attributes)


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str | None:
    """Series that share a colour are told apart by their dashes."""
    return DASHES[index // len(COLOURS) % len(DASHES)] or None


def marker(index: int, x: float, y: float, words: str = "") -> str:
    """A dot, square, triangle or diamond of the series' colour; `words` are shown where the pointer rests on it."""
    inner = tooltip(words) if words else ""
    fill = colour(index)
    match index % 4:
        case 0:
            return element("circle", inner, cx=x, cy=y, r=3.2, fill=fill)
        case 1:
            return element("rect", inner, x=x - 3, y=y - 3, width=6, height=6, fill=fill)
        case 2:
            places = f"{_value(x)},{_value(y - 4)} {_value(x + 4)},{_value(y + 3)} {_value(x - 4)},{_value(y + 3)}"
            return element("polygon", inner, points=places, fill=fill)
        case _:
            corners = ((x, y - 4.2), (x + 4.2, y), (x, y + 4.2), (x - 4.2, y))
            return element("polygon", inner, points=" ".join(f"{_value(a)},{_value(b)}" for a, b in corners), fill=fill)


def width_of(words: str, size: float = TEXT) -> float:
    """About the pixels that a text takes, rather too many: no font is at hand to measure with."""
    return sum(_share(sign) for sign in words) * size


def cut(words: str, room: float, size: float = TEXT) -> str:
    """The text, or as much of its beginning as fits with dots after it."""
    if width_of(words, size) <= room:
        return words
    while words and width_of(words + "…", size) > room:
        words = words[:-1]
    return words.rstrip() + "…"


def wrapped(words: str, room: float, size: float) -> list[str]:
    """The text in lines that fit; a word that does not is cut."""
    lines: list[str] = []
    for word in words.split():
        if lines and width_of(f"{lines[-1]} {word}", size) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(cut(word, room, size))
    return lines


def _share(sign: str) -> float:
    if sign in " .,:;'|!ijl()[]":
        return 0.32
    if sign in "mwMW@%":
        return 0.95
    return 1.05 if ord(sign) > 0x2E80 else 0.68 if sign.isupper() else 0.58


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))
