"""The output items of a response, built from the events of its answer; each step is told as the protocol's events.

The events lack their sequence_number, which whoever sends them adds.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash2_server.inference import Text, ToolCall
from dflash2_server.openai.responses_tools import CUSTOM_ARGUMENT, Origin
from dflash2_server.openai.wire import TokenText, logprob_entries, new_id

Wire = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class OutputStyle:
    """How an answer is written. `origins`: the tools by the names that the model calls them by. `summary`: the
    reasoning is told as its own summary too, for clients that show those only; `reasoning` false leaves it out.
    """

    token_text: TokenText
    origins: Mapping[str, Origin] = field(default_factory=dict)
    reasoning: bool = True
    summary: bool = False
    logprobs: bool = False


class Output:
    """Items so far: those that are finished, and the message or reasoning that is still written."""

    def __init__(self, style: OutputStyle) -> None:
        self.items: list[Wire] = []
        self._style = style
        self._open = False
        self._texts: list[str] = []
        self._logprobs: list[Wire] = []

    def feed(self, event: Text | ToolCall) -> Iterator[Wire]:
        """The protocol's events of one event. It must be exhausted before the next one."""
        if isinstance(event, ToolCall):
            yield from self.close()
            yield from self._call(event)
        elif event.kind == "content" or self._style.reasoning:
            yield from self._write(event)

    def close(self, status: str = "completed") -> Iterator[Wire]:
        """Finish the item that is still written, if there is one."""
        if self._open:
            self._open = False
            self._item["status"] = status
            yield from self._end_message() if self._item["type"] == "message" else self._end_reasoning()
            yield self._about_item("response.output_item.done")

    def abandon(self) -> list[Wire]:
        """All items as they stand, after an error."""
        if self._open:
            list(self.close("incomplete"))
        return self.items

    @property
    def _item(self) -> Wire:
        return self.items[-1]

    def _write(self, event: Text) -> Iterator[Wire]:
        shown = self._style.logprobs and event.kind == "content"
        entries = logprob_entries(event.logprobs, self._style.token_text) if shown else []
        logprobs = [_with_bytes(entry) for entry in entries]
        if not event.text and not logprobs:
            return
        kind = "message" if event.kind == "content" else "reasoning"
        if not self._open or self._item["type"] != kind:
            yield from self.close()
            yield from self._begin(kind)
        self._texts.append(event.text)
        self._logprobs += logprobs
        yield from self._deltas(event.text, logprobs)

    def _begin(self, kind: str) -> Iterator[Wire]:
        self._open, self._texts, self._logprobs = True, [], []
        if kind == "message":
            item = {"id": new_id("msg_"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}
        else:
            item = {"id": new_id("rs_"), "type": kind, "status": "in_progress", "summary": [], "content": []}
        self.items.append(item)
        yield self._about_item("response.output_item.added")
        if kind == "reasoning" and self._style.summary:
            yield self._of_summary("response.reasoning_summary_part.added", part=_summary_part(""))
        yield self._of_content("response.content_part.added", part=self._part())

    def _deltas(self, delta: str, logprobs: list[Wire]) -> Iterator[Wire]:
        if self._item["type"] == "message":
            yield self._of_content("response.output_text.delta", delta=delta, logprobs=logprobs)
            return
        yield self._of_content("response.reasoning_text.delta", delta=delta)
        if self._style.summary:
            yield self._of_summary("response.reasoning_summary_text.delta", delta=delta)

    def _end_message(self) -> Iterator[Wire]:
        self._item["content"] = [self._part()]
        yield self._of_content("response.output_text.done", text=self._text(), logprobs=list(self._logprobs))
        yield self._of_content("response.content_part.done", part=self._part())

    def _end_reasoning(self) -> Iterator[Wire]:
        self._item["content"] = [self._part()]
        yield self._of_content("response.reasoning_text.done", text=self._text())
        yield self._of_content("response.content_part.done", part=self._part())
        if self._style.summary:
            self._item["summary"] = [_summary_part(self._text())]
            yield self._of_summary("response.reasoning_summary_text.done", text=self._text())
            yield self._of_summary("response.reasoning_summary_part.done", part=_summary_part(self._text()))

    def _text(self) -> str:
        return "".join(self._texts)

    def _part(self) -> Wire:
        if self._item["type"] == "reasoning":
            return {"type": "reasoning_text", "text": self._text()}
        return {"type": "output_text", "text": self._text(), "annotations": [], "logprobs": list(self._logprobs)}

    def _call(self, call: ToolCall) -> Iterator[Wire]:
        """A call, which comes whole."""
        origin = self._style.origins.get(call.name, Origin(call.name))
        custom = origin.custom
        key, text = ("input", _custom_input(call.arguments)) if custom else ("arguments", call.arguments)
        name = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
        self.items.append(
            {
                "id": new_id("ctc_" if custom else "fc_"),
                "type": "custom_tool_call" if custom else "function_call",
                "status": "in_progress",
                "call_id": call.id,
                "name": origin.name,
                key: "",
            }
            | ({} if origin.namespace is None else {"namespace": origin.namespace})
        )
        yield self._about_item("response.output_item.added")
        yield self._of_item(f"{name}.delta", delta=text)
        yield self._of_item(f"{name}.done", **{key: text}, name=origin.name)
        self._item.update({"status": "completed", key: text})
        yield self._about_item("response.output_item.done")

    def _about_item(self, kind: str) -> Wire:
        return {"type": kind, "output_index": len(self.items) - 1, "item": copy.deepcopy(self._item)}

    def _of_item(self, kind: str, **fields: Any) -> Wire:
        return {"type": kind, "item_id": self._item["id"], "output_index": len(self.items) - 1, **fields}

    def _of_content(self, kind: str, **fields: Any) -> Wire:
        return self._of_item(kind, content_index=0, **fields)

    def _of_summary(self, kind: str, **fields: Any) -> Wire:
        return self._of_item(kind, summary_index=0, **fields)


def _summary_part(text: str) -> Wire:
    return {"type": "summary_text", "text": text}


def _with_bytes(entry: Wire) -> Wire:
    """A log-probability entry as responses have it, where bytes are not optional."""
    tops = [top | {"bytes": top["bytes"] or []} for top in entry["top_logprobs"]]
    return entry | {"bytes": entry["bytes"] or [], "top_logprobs": tops}


def _custom_input(arguments: str) -> str:
    """The free text of a custom tool's call; a model that did not write the object meant what it wrote."""
    try:
        read = json.loads(arguments)
    except ValueError:
        return arguments
    given = read.get(CUSTOM_ARGUMENT) if isinstance(read, dict) else None
    return given if isinstance(given, str) else arguments
