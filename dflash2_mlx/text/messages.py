"""A client's chat history in the one form that the rest of the text layer works on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import RequestError

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_TEXT_PARTS = ("text", "input_text", "output_text")
_OTHER_MEDIA = ("image", "audio", "video", "file", "document")
# A line of Claude Code's first system text: it changes with every request, and no prompt would begin as the last one.
_BILLING = "x-anthropic-billing-header:"


def prepare(
    messages: Sequence[Mapping[str, Any]], *, thinking: tuple[str, str] = ("<think>", "</think>")
) -> list[dict[str, Any]]:
    """OpenAI's chat messages (see `Inference`) as templates want them.

    Roles are system, user, assistant and tool; content is a text; calls have their arguments as an object; a result
    has its tool's name, where its call is known. Leading system messages are one. An assistant's text that begins
    with thinking between the markers `thinking` is split. Raises RequestError, whose param names the place.
    """
    prepared = [_prepared(message, f"messages[{i}]", thinking) for i, message in enumerate(messages)]
    _name_results(prepared)
    joined = _join_leading(prepared)
    if not joined:
        raise RequestError("messages is empty: send at least one message", param="messages")
    return joined


def content_text(content: Any, where: str) -> str:
    """A message's content as one text: a text, None, or text parts, which are set apart by a line break.

    Raises RequestError for anything else; `where` is the content's place in the request.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestError(f"{where} is {content!r:.80}: it must be a text or a list of text parts", param=where)
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def arguments_object(arguments: Any) -> dict[str, Any]:
    """A call's arguments, given as JSON text, as an object or not at all, as an object.

    What is no object, such as the text that a free-form tool takes, is the argument `input`.
    """
    if isinstance(arguments, str):
        try:
            found = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError):
            found = arguments
    else:
        found = {} if arguments is None else arguments
    return dict(found) if isinstance(found, Mapping) else {"input": found}


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXT_PARTS or kind == "refusal":
        key = "refusal" if kind == "refusal" else "text"
        if isinstance(part.get(key), str):
            return str(part[key])
        raise RequestError(f"{where}.{key} is {part.get(key)!r:.80}: it must be a text", param=f"{where}.{key}")
    if isinstance(kind, str) and any(media in kind for media in _OTHER_MEDIA):
        raise RequestError(f"{where}.type is {kind!r:.80}: this model reads text only", param=f"{where}.type")
    raise RequestError(f"{where}.type is {kind!r:.80}: use parts of the type 'text'", param=f"{where}.type")


def _prepared(message: Mapping[str, Any], where: str, thinking: tuple[str, str]) -> dict[str, Any]:
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise RequestError(
            f"{where}.role is {message.get('role')!r:.80}: it must be one of {', '.join(_ROLES)}", param=f"{where}.role"
        )
    found: dict[str, Any] = {"role": role, "content": content_text(message.get("content"), f"{where}.content")}
    if role == "assistant":
        return found | _assistant(message, found["content"], where, thinking)
    if role == "tool":
        found |= {key: str(message[key]) for key in ("tool_call_id", "name") if message.get(key)}
    return found


def _assistant(message: Mapping[str, Any], content: str, where: str, thinking: tuple[str, str]) -> dict[str, Any]:
    thought = message.get("reasoning_content") or message.get("reasoning")
    found: dict[str, Any] = {}
    if isinstance(thought, str) and thought:
        found["reasoning_content"] = thought
    elif content.lstrip().startswith(thinking[0]) and thinking[1] in content:
        inside, _, said = content.lstrip().removeprefix(thinking[0]).partition(thinking[1])
        found = {"reasoning_content": inside.strip("\n"), "content": said.lstrip("\n")}
    calls = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.get("tool_calls") or ())]
    return found | ({"tool_calls": calls} if calls else {})


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    function = function if isinstance(function, Mapping) else {}
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.function.name is {name!r:.80}: it must be a name", param=f"{where}.function.name")
    told = {"name": name, "arguments": arguments_object(function.get("arguments"))}
    return {"id": str(call.get("id") or ""), "type": "function", "function": told}


def _name_results(messages: list[dict[str, Any]]) -> None:
    """Some templates write the name of the tool beside its result, which most clients leave out."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call["id"]: call["function"]["name"] for call in message.get("tool_calls", ())}
        if message["role"] == "tool" and message.get("tool_call_id") in names:
            message.setdefault("name", names[message["tool_call_id"]])


def _join_leading(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    leading = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    texts = [_without_billing(message["content"]) for message in messages[:leading]]
    said = [text for text in texts if text]
    first = [{"role": "system", "content": "\n\n".join(said)}] if said else []
    return [*first, *messages[leading:]]


def _without_billing(text: str) -> str:
    if not text.lstrip().startswith(_BILLING):
        return text
    return text.lstrip().partition("\n")[2].lstrip("\n")
