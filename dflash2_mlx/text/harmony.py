"""gpt-oss' answers: messages with channels, one of which thinks, one of which calls tools, one of which answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .markers import START, Marker, Markers, Stretch
from .parts import Caller, Content, Flow, Part, Reasoning, merged
from .tools import ToolFormat

_HEADER, _BODY, _GAP = "header", "body", "gap"
_MESSAGE, _CALL = "<|message|>", "<|call|>"
# A header may also begin with the recipient: the prompt ends with the role, before which it may stand.
_OPENINGS = ("<|channel|>", "<|start|>", "<|constrain|>", "to=")
_TRANSITIONS = {
    START: [*((opening, _HEADER) for opening in _OPENINGS), (_MESSAGE, _BODY)],
    _HEADER: [(_MESSAGE, _BODY)],
    _BODY: [("<|end|>", _GAP), (_CALL, _GAP), ("<|return|>", _GAP), ("<|start|>", _HEADER)],
    _GAP: [("<|start|>", _HEADER), ("<|channel|>", _HEADER), (_MESSAGE, _BODY)],
}
_BETWEEN_MESSAGES = "\n\n"


class HarmonyParser:
    """`AnswerParser` for harmony. A message to another than the tools at hand is content, its header included."""

    def __init__(self, prompt_text: str, calls: ToolFormat, *, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._caller = Caller(calls, tools)
        self._content = Flow(exact=True)
        self._reasoning = Flow(exact=False)
        self._body = ""  # of a message that may be a call
        self._between = ""  # what stands after a message, with no header
        # The message that the prompt leaves open, where there is one.
        _, opened, last = prompt_text.rpartition("<|start|>")
        header, has_body, _ = last.partition(_MESSAGE) if opened else ("", "", "")
        self._header = header if "<|channel|>" in header else ""
        state = START
        if opened and not re.search(r"<\|(end|call|return)\|>", last) and self._header:
            state = _BODY if has_body else _HEADER
        self._markers = Markers(_TRANSITIONS, state)

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        return merged(self._parts(self._markers.feed(text)))

    def finish(self) -> list[Part]:
        """What was held back: the text has ended, with or without the token that ends a message."""
        return merged(self._rest())

    def _parts(self, found: Iterable[Stretch | Marker]) -> Iterator[Part]:
        for one in found:
            if isinstance(one, Marker):
                yield from self._at(one)
            elif one.state == _HEADER:
                self._header += one.text
            elif one.state == _BODY and self._recipient:
                self._body += one.text
            elif one.state == _BODY and self._channel == "analysis":
                yield Reasoning(self._reasoning.add(one.text))
            elif one.state == _GAP:
                yield Content(self._content.add(self._said_between(one.text)))
            else:
                yield Content(self._content.add(one.text))

    def _said_between(self, text: str) -> str:
        """Blanks after a message are not said, unless something follows them that is no header."""
        before, self._between = self._between, self._between + text
        if before.strip():
            return text
        return self._between if self._between.strip() else ""

    def _at(self, marker: Marker) -> Iterator[Part]:
        self._between = ""
        if marker.before == _BODY:
            yield from self._end_message(marker.text if marker.after == _GAP else "")
        if marker.after == _HEADER:
            self._header = "" if marker.text == "<|start|>" else marker.text
        if marker.after == _BODY:
            self._header = self._header if marker.before == _HEADER else ""
            self._content.interrupt(_BETWEEN_MESSAGES)
            self._reasoning.interrupt(_BETWEEN_MESSAGES)

    def _end_message(self, closing: str) -> Iterator[Part]:
        yield from self._called(closing)
        self._header = self._body = ""

    def _called(self, closing: str) -> Iterator[Part]:
        if not self._recipient:
            return
        # A call without arguments has none, or was cut off before them: only its end can tell.
        call = self._call() if self._body.strip() or closing == _CALL else None
        if call is None:
            yield Content(self._content.add(self._header + _MESSAGE + self._body + closing))
        else:
            self._content.interrupt(_BETWEEN_MESSAGES)
            yield call

    def _rest(self) -> Iterator[Part]:
        yield from self._parts(self._markers.flush())
        state = self._markers.state
        if state == _HEADER and "<|" not in self._header:
            yield Content(self._content.add(self._header))  # a text that only looked like the beginning of one
        if state == _BODY:
            yield from self._called("")
        yield Content(self._content.finish())

    def _call(self) -> Any:
        try:
            return self._caller.call(self._recipient.removeprefix("functions."), self._body.strip() or None)
        except RecursionError:
            return None

    @property
    def _recipient(self) -> str:
        found = re.search(r"\bto=([^\s<]+)", self._header)
        return found[1] if found else ""

    @property
    def _channel(self) -> str:
        found = re.search(r"<\|channel\|>\s*(\w+)", self._header)
        return found[1] if found else ""
