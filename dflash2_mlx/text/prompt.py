"""A client's conversation to prompt ids, and where in them a snapshot of the caches will be of use again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RequestError
from .begun import begun_turn, gone_on_with
from .described import described
from .folds import Messages, forms, one_call_each, short_ids
from .messages import prepare
from .reasoning import thinking_markers
from .template import ChatTemplate, Known, unmarked

# Stands for a message that may be any: a noncharacter, so that no real message begins as it does.
_ANY = "\ufdd1"
_NOTHING_KNOWN = Known("", "", ())


@dataclass(frozen=True)
class Prompt:
    """`text` as one would print it, its token ids, and borders between messages: positions in the ids, rising.

    A border at n says that ids[:n] are likely to begin other prompts: those of other conversations with the same
    system message and tools, and the next ones of this conversation. There may be none. `marked` is the text as
    `ChatTemplate.known` takes it, and `template_text` the part of it that is before what the assistant has begun: its
    end tells what the answer begins in. Both are empty for a prompt that no template made.
    """

    text: str
    ids: list[int]
    borders: tuple[int, ...]
    marked: str = ""
    template_text: str = ""


@dataclass(frozen=True)
class _Rendered:
    """A marked text with what it was made of, guarded."""

    text: str
    messages: Messages
    tools: Messages
    arguments: dict[str, Any]


def build_prompt(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    reasoning: str | None = None,
    lenient: bool = True,
    extra: Mapping[str, Any] | None = None,
    known: Iterable[Known] = (),
    continue_final: bool = False,
) -> Prompt:
    """The prompt that asks for the next message; with `continue_final`, for the rest of a last one of the assistant's.

    `messages` and `tools` are as in `Inference`; `reasoning`, `lenient` and `extra` as in `ChatTemplate.render`.
    `known` are earlier prompts with their answers: the longest that this prompt begins with keeps its ids (see
    `ChatTemplate.encode`). Raises RequestError where a message is wrong (param names the place), or where
    the chat template refuses the messages in every form (param "messages", the template's own words).
    """
    arguments = template.arguments(reasoning, lenient=lenient, extra=extra)
    prepared = prepare(messages, thinking=thinking_markers(template.tokenizer))
    begun = begun_turn(prepared) if continue_final else None
    rendered = _rendered(template, prepared[:-1] if begun else prepared, tools, arguments)
    opening, marked = gone_on_with(template, rendered.text, begun) if begun else (rendered.text, rendered.text)
    best = max(known, key=lambda one: template.end_of_known(marked, one.prompt, one.answer), default=_NOTHING_KNOWN)
    ids = template.encode(marked, known_prompt=best.prompt, known_text=best.answer, known_ids=best.ids)
    found = {_shared_beginning(template, rendered, ids), _end_of_messages(template, rendered, marked, ids)}
    borders = tuple(sorted(border for border in found if 0 < border < len(ids)))
    return Prompt(unmarked(marked), ids, borders, marked, opening)


def _rendered(
    template: ChatTemplate, messages: Messages, tools: Sequence[Mapping[str, Any]], arguments: dict[str, Any]
) -> _Rendered:
    """By the first form of the messages that the template takes and whose system messages it leaves where they are."""
    adapted, tools = _adapted(template, messages, tools)
    guarded_tools = template.guarded(tools)
    refusal: RequestError | None = None
    incomplete: _Rendered | None = None
    for form in forms(adapted):
        guarded = template.guarded(form)
        try:
            text = template.apply(guarded, tools=guarded_tools, arguments=arguments)
        except RequestError as error:
            refusal = error
            continue
        rendered = _Rendered(text, guarded, guarded_tools, arguments)
        if _tells_all(template, rendered):
            return rendered
        incomplete = incomplete or rendered
    if incomplete is None:
        assert refusal is not None  # there is always a first form
        raise refusal
    return incomplete


def _adapted(
    template: ChatTemplate, messages: Messages, tools: Sequence[Mapping[str, Any]]
) -> tuple[Messages, Sequence[Mapping[str, Any]]]:
    """The messages and tools as this template wants them."""
    calls = template.tool_format
    if not calls.native:
        return described(messages, tools), ()
    if calls.name == "harmony":
        messages = one_call_each(messages)
    if calls.name == "mistral":
        messages = short_ids(messages)
    if any("tool_calls" in message for message in messages) and template.arguments_as_text:
        messages = [_with_text_arguments(message) for message in messages]
    if "message.thinking" in template.source:
        messages = [_with_thinking(message) for message in messages]
    return messages, tools


def _with_text_arguments(message: dict[str, Any]) -> dict[str, Any]:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(arguments, ensure_ascii=False)}}
        for call in message["tool_calls"]
        for arguments in (call["function"]["arguments"],)
    ]
    return {**message, "tool_calls": calls}


def _with_thinking(message: dict[str, Any]) -> dict[str, Any]:
    """gpt-oss' name of the field. Beside a call its template takes either thinking or a text, as the same thing."""
    thought = message.get("reasoning_content")
    if not thought or message["role"] != "assistant":
        return message
    if message["content"] and "tool_calls" in message:
        rest = {key: value for key, value in message.items() if key != "reasoning_content"}
        return {**rest, "content": f"{thought}\n\n{message['content']}"}
    return {**message, "thinking": thought}


def _tells_all(template: ChatTemplate, rendered: _Rendered) -> bool:
    """Whether every system message is in the prompt, a later one behind what was said before it.

    Some templates leave those out that they do not expect; others gather them at the front, where a later one would
    change all that follows. A sign behind each message's text shows where the template puts it.
    """
    last = max((i for i, message in enumerate(rendered.messages) if message["role"] == "system"), default=-1)
    if last < 0:
        return True
    signed = [_signed(message, i) for i, message in enumerate(rendered.messages[: last + 2])]
    try:
        text = template.apply(signed, tools=rendered.tools, arguments=rendered.arguments)
    except RequestError:  # it takes the conversation as a whole only
        system = (message["content"] for message in rendered.messages if message["role"] == "system")
        return all(content.strip() in rendered.text for content in system)
    furthest = -1
    for i, message in enumerate(signed):
        place = text.find(_sign(i))
        if message["role"] == "system" and message["content"] and place <= furthest:
            return False
        furthest = max(furthest, place)
    return True


def _signed(message: dict[str, Any], number: int) -> dict[str, Any]:
    return {**message, "content": message["content"] + _sign(number)} if message["content"].strip() else message


def _sign(number: int) -> str:
    return f"{_ANY}{number}{_ANY}"


def _shared_beginning(template: ChatTemplate, rendered: _Rendered, ids: list[int]) -> int:
    """Tokens of the system message and the tools; 0 where there are none, or they do not stand first."""
    leading = [message for message in rendered.messages[:1] if message["role"] == "system"]
    if not leading and not rendered.tools:
        return 0
    try:
        other = template.apply(
            [*leading, {"role": "user", "content": _ANY}], tools=rendered.tools, arguments=rendered.arguments
        )
    except RequestError:
        return 0
    head = rendered.text[: _common(rendered.text, other)]
    end = template.end_of_last_control(head)
    return _common(template.encoded(head[:end] if end else head), tuple(ids))


def _end_of_messages(template: ChatTemplate, rendered: _Rendered, marked: str, ids: list[int]) -> int:
    """Tokens before those that open the answer, and of what it has begun; 0 where the template opens it by none."""
    opening = template.generation_prompt(json.dumps(rendered.arguments, sort_keys=True, default=str))
    if not opening or not rendered.text.endswith(opening):
        return 0
    tail = template.encode(marked[len(rendered.text) - len(opening) :])
    return len(ids) - len(tail) if ids[-len(tail) :] == tail else 0


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common beginning, found by halves: comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
