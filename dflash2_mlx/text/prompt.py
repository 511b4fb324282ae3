"""A client's conversation to prompt ids, and where in them a snapshot of the caches will be of use again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import RequestError
from .described import described
from .folds import Messages, forms, one_call_each, short_ids
from .messages import content_text, prepare
from .reasoning import thinking_markers
from .template import ChatTemplate, unmarked

# Stands for a message that may be any: a noncharacter, so that no real message begins as it does.
_ANY = "\ufdd1"
# So much of a system message must be in the prompt (templates trim its ends).
_SEEN = 32


@dataclass(frozen=True)
class Prompt:
    """`text` as one would print it, its token ids, and borders between messages: positions in the ids, rising.

    A border at n says that ids[:n] are likely to begin other prompts: those of other conversations with the same
    system message and tools, and the next ones of this conversation. There may be none.
    """

    text: str
    ids: list[int]
    borders: tuple[int, ...]


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
    known: Iterable[tuple[str, Sequence[int]]] = (),
    continue_final: bool = False,
) -> Prompt:
    """The prompt that asks for the next message; with `continue_final`, for the rest of a last one of the assistant's.

    `messages` and `tools` are as in `Inference`; `reasoning`, `lenient` and `extra` as in `ChatTemplate.render`.
    `known` are (text, ids) of earlier prompts with their answers: the longest that this prompt begins with keeps its
    ids (see `ChatTemplate.encode`). Raises RequestError where a message is wrong (param names the place), or where
    the chat template refuses the messages in every form (param "messages", the template's own words).
    """
    arguments = template.arguments(reasoning, lenient=lenient, extra=extra)
    begun = _begun(messages) if continue_final else ""
    rendered = _rendered(template, messages[:-1] if begun else messages, tools, arguments)
    if begun:
        rendered = replace(rendered, text=_opened(template, rendered.text) + template.guard(begun))
    plain = unmarked(rendered.text)
    fitting = [(text, ids) for text, ids in known if text and plain.startswith(text)]
    text, known_ids = max(fitting, key=lambda one: len(one[0]), default=("", ()))
    ids = template.encode(rendered.text, known_text=text, known_ids=known_ids)
    found = {_shared_beginning(template, rendered, ids), _end_of_messages(template, rendered, ids)}
    return Prompt(plain, ids, tuple(sorted(border for border in found if 0 < border < len(ids))))


def _begun(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the assistant has begun to say in the last message, which calls no tool; empty where it has not."""
    last: Mapping[str, Any] = messages[-1] if len(messages) > 1 else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return ""
    return content_text(last.get("content"), f"messages[{len(messages) - 1}].content")


def _opened(template: ChatTemplate, text: str) -> str:
    """A prompt up to where what is said begins: thinking that it has opened is closed."""
    start, end = thinking_markers(template.tokenizer)
    return f"{text.rstrip()}\n\n{end}\n\n" if text.rstrip().endswith(start) else text


def _rendered(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    arguments: dict[str, Any],
) -> _Rendered:
    """By the first form of the messages that the template takes and of which it leaves no system message out."""
    adapted, tools = _adapted(template, prepare(messages, thinking=thinking_markers(template.tokenizer)), tools)
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
        if _tells_all(rendered):
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


def _tells_all(rendered: _Rendered) -> bool:
    """Whether every system message is in the prompt: some templates leave those out that they do not expect."""
    system = [message["content"] for message in rendered.messages if message["role"] == "system"]
    return all(content.strip()[:_SEEN] in rendered.text for content in system)


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


def _end_of_messages(template: ChatTemplate, rendered: _Rendered, ids: list[int]) -> int:
    """Tokens before those that open the answer; 0 where the template writes none."""
    opening = template.generation_prompt(json.dumps(rendered.arguments, sort_keys=True, default=str))
    if not opening or not rendered.text.endswith(opening):
        return 0
    tail = template.encode(opening)
    return len(ids) - len(tail) if ids[-len(tail) :] == tail else 0


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Length of the common beginning, found by halves: comparing slices is fast."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle - 1)
    return low
