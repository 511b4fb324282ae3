"""The streamed text of an answer, cut into reasoning, content and tool calls at the markers of the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .harmony import HarmonyParser
from .markers import NORMAL, REASONING, START, TOOL, Marker, Markers, Stretch
from .parts import Call, Caller, Content, Flow, Parser, Part, Reasoning, merged
from .reasoning import thinking_transitions
from .tools import ToolFormat, tool_format

_HIDDEN = "header"  # a state of mlx-lm's response formats: its text says whom a message is for
_BETWEEN_MESSAGES = "\n\n"


def answer_parser(
    tokenizer: Any,
    prompt_text: str,
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    calls: ToolFormat | None = None,
) -> Parser:
    """The parser for the answer to a rendered prompt, whose end tells what the answer begins in.

    `tokenizer` is mlx-lm's `TokenizerWrapper`; the text is decoded with the texts of special tokens, but for those that
    end it. Without `tools` the markers of calls are content. `calls` is `tool_format(tokenizer)`, where it is at hand.
    """
    calls = calls or tool_format(tokenizer)
    if calls.name == "harmony":
        return HarmonyParser(prompt_text, calls, tools=tools)
    return AnswerParser(tokenizer, prompt_text, calls, tools=tools)


class AnswerParser:
    """For models with tags around thinking and calls, and for mlx-lm's response formats.

    A call that does not parse, or is one of an unknown tool, is content, its markers included. So is one that is
    not closed when the text ends, unless it parses. Markers of calls inside reasoning are reasoning.
    """

    def __init__(
        self, tokenizer: Any, prompt_text: str, calls: ToolFormat, *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        transitions, state = thinking_transitions(tokenizer, prompt_text)
        if tools:
            _add_calls(transitions, calls)
        for marker in getattr(tokenizer, "structural_markers", None) or ():
            for place in (START, NORMAL):
                transitions.setdefault(place, []).append((marker, NORMAL))
        self._markers = Markers(transitions, state)
        self._format = calls
        self._caller = Caller(calls, tools)
        self._content = Flow(exact=True, holds=bool(tools))
        self._reasoning = Flow(exact=False)
        self._opening = ""  # the marker of the call that is being read
        self._call = ""

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        return merged(self._parts(self._markers.feed(text)))

    def finish(self) -> list[Part]:
        """What was held back: the text has ended."""
        return merged(self._rest())

    def _parts(self, found: Iterable[Stretch | Marker]) -> Iterator[Part]:
        for one in found:
            if isinstance(one, Marker):
                yield from self._at(one)
            elif one.state == TOOL:
                self._call += one.text
            elif one.state == REASONING:
                yield Reasoning(self._reasoning.add(one.text))
            elif one.state != _HIDDEN:
                yield Content(self._content.add(one.text))

    def _rest(self) -> Iterator[Part]:
        yield from self._parts(self._markers.flush())
        if self._markers.state == TOOL:
            whole = self._format.proves_whole or not self._format.end
            yield from self._read(self._caller.calls(self._call.strip()) if whole else None, "")
        yield Content(self._content.finish())

    def _at(self, marker: Marker) -> Iterator[Part]:
        if marker.before == TOOL:
            yield from self._close(marker)
        elif marker.after == TOOL:
            self._opening, self._call = marker.text, ""
        elif REASONING in (marker.before, marker.after):
            self._reasoning.interrupt(_BETWEEN_MESSAGES)
            self._content.interrupt(_BETWEEN_MESSAGES)
        elif _HIDDEN in (marker.before, marker.after):
            self._content.interrupt(_BETWEEN_MESSAGES)

    def _close(self, marker: Marker) -> Iterator[Part]:
        calls = self._caller.calls(self._call.strip())
        if calls is None and _is_inside_json_text(self._call):
            self._call += marker.text  # the marker is told of, not written
            self._markers.state = TOOL
            return
        yield from self._read(calls, marker.text)

    def _read(self, calls: Sequence[Call] | None, closing: str) -> Iterator[Part]:
        if calls is None:
            yield Content(self._content.add(self._opening + self._call + closing))
        else:
            self._content.interrupt()
            yield from calls
        self._call = ""


def _add_calls(transitions: dict[str, list[tuple[str, str]]], calls: ToolFormat) -> None:
    """Where a call may begin: in the answer, unless a response format says where; never in the reasoning."""
    if not any(after == TOOL for edges in transitions.values() for _, after in edges):
        for state in (START, NORMAL):
            transitions.setdefault(state, []).append((calls.start, TOOL))
    transitions[TOOL] = [(calls.end, NORMAL)] if calls.end else []


def _is_inside_json_text(text: str) -> bool:
    """Whether JSON of a call, or of a list of them, breaks off inside a string: a marker there is part of it."""
    try:
        json.loads(text.strip())
    except json.JSONDecodeError as error:
        return text.lstrip().startswith(("{", "[")) and error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False
