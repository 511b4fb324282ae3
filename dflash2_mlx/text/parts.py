"""What an answer is made of, and the blanks between: clients expect none around calls and thinking."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .arguments import arguments_of, as_texts, coerce
from .tools import ToolFormat

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reasoning:
    """More of what the model thinks."""

    text: str


@dataclass(frozen=True)
class Content:
    """More of the answer itself."""

    text: str


@dataclass(frozen=True)
class Call:
    """A whole call of a known tool; the arguments are of the types that its schema asks for."""

    name: str
    arguments: dict[str, Any]


Part = Reasoning | Content | Call


class Parser(Protocol):
    """Cuts the streamed text of one answer into parts; the same ones, joined, however it is chunked."""

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        ...

    def finish(self) -> list[Part]:
        """What was held back: the text has ended."""
        ...


class Flow:
    """One kind of text, shown as it comes.

    `exact` is for text that nothing came before: its first blanks belong to it. `holds` keeps blanks at its end until
    it is known what follows them.
    """

    def __init__(self, *, exact: bool, holds: bool = True) -> None:
        self._held = ""
        self._holds = holds
        self._trims = not exact
        self._shown = False
        self._between = ""

    def add(self, text: str) -> str:
        """What can be shown now."""
        self._held += text
        size = len(self._held.rstrip())
        if not self._holds and (size or (self._shown and not self._trims)):
            size = len(self._held)
        if not size:
            return ""
        shown, self._held = self._held[:size], self._held[size:]
        if self._trims and not self._shown:
            shown = shown.lstrip("\n")
        elif self._between:
            shown = self._between + shown.lstrip("\n")
        self._trims, self._shown, self._between = False, True, ""
        return shown

    def interrupt(self, between: str = "") -> None:
        """Something else has come: the blanks before it go, and `between` stands before what may follow."""
        self._held, self._trims, self._between = "", True, between

    def finish(self) -> str:
        """The blanks at the end, where they belong to the text."""
        held, self._held = self._held, ""
        return "" if self._trims else held


class Caller:
    """Turns the text of a call into calls of the tools at hand."""

    def __init__(self, calls: ToolFormat, tools: Sequence[Mapping[str, Any]]) -> None:
        self._parse = calls.parse
        # GLM's parser also reads calls in JSON, where it would make Python's text of what is no string.
        self._tools = [as_texts(tool, every=calls.name not in ("glm47", "laguna")) for tool in tools]
        functions = [tool.get("function", tool) for tool in tools]
        self._schemas = {function["name"]: function.get("parameters") for function in functions}

    def calls(self, text: str) -> list[Call] | None:
        """The calls that a text says; None where it is no call, or one of an unknown tool."""
        try:
            parsed = self._parse(text, self._tools)
        except Exception as error:  # mlx-lm's parsers raise whatever their text leads them to
            _log.debug("a tool call could not be parsed: %s", error)
            return None
        found = [self._call(one) for one in (parsed if isinstance(parsed, list) else [parsed])]
        known = [call for call in found if call is not None]
        return known if known and len(known) == len(found) else None

    def call(self, name: str, arguments: Any) -> Call | None:
        """A call by name; None where there is no such tool or the arguments are no object of JSON."""
        given = arguments_of(arguments)
        if name not in self._schemas or given is None:
            return None
        sendable = _sendable(coerce(given, self._schemas[name]))
        return None if sendable is None else Call(name, sendable)

    def _call(self, parsed: Any) -> Call | None:
        if not isinstance(parsed, Mapping) or not isinstance(parsed.get("name"), str):
            return None
        return self.call(parsed["name"], parsed.get("arguments", parsed.get("parameters")))


def _sendable(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Arguments that can be sent: without halves of characters, which no encoding has; None where JSON has no word.

    That is for numbers that are not finite, which Python's reader takes, and for what only Python has.
    """
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        whole: dict[str, Any] = json.loads(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
    except (TypeError, ValueError, RecursionError):
        return None
    return whole


def merged(parts: Iterable[Part]) -> list[Part]:
    """The parts without empty ones, neighbours of one kind joined."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, Call):
            found.append(part)
        elif part.text:
            last = found[-1] if found else None
            if isinstance(last, Reasoning | Content) and type(last) is type(part):
                found[-1] = type(part)(last.text + part.text)
            else:
                found.append(part)
    return found
