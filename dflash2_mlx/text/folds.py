"""Forms of a chat history for templates that refuse the plain one, from the least change to the largest.

None of them changes what stands before the message that it touches: a growing conversation keeps its prefix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .described import result_text

Messages = list[dict[str, Any]]

# What Mistral's templates insist on.
_ID_LENGTH = 9


def forms(messages: Sequence[Mapping[str, Any]]) -> Iterator[Messages]:
    """The plain form, then ever more folded ones; each differs from the one before it.

    Later system messages become the user's; results without a call become the user's; messages of one role are
    joined; the system message joins the first of the user.
    """
    form = [dict(message) for message in messages]
    yield form
    for fold in (_system_as_user, _lost_results_as_user, _alternating, _without_system):
        folded = fold(form)
        if folded != form:
            form = folded
            yield form


def one_call_each(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Parallel calls one after another, each with its result: harmony's messages hold one call."""
    found: Messages = []
    rest = [dict(message) for message in messages]
    while rest:
        message = rest.pop(0)
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            found.append(message)
            continue
        count = next((i for i, later in enumerate(rest) if later["role"] != "tool"), len(rest))
        results, rest = rest[:count], rest[count:]
        for i, call in enumerate(calls):
            found.append({**message, "tool_calls": [call]} if i == 0 else _bare_call(call))
            found += [result for result in results if result.get("tool_call_id") == call["id"]]
        ids = {call["id"] for call in calls}
        found += [result for result in results if result.get("tool_call_id") not in ids]
    return found


def _bare_call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def short_ids(messages: Sequence[Mapping[str, Any]]) -> Messages:
    """Ids of calls as Mistral's templates take them: nine letters or digits, the same ones at every turn."""
    return [_with_short_ids(message) for message in messages]


def _with_short_ids(message: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(message)
    if "tool_call_id" in found:
        found["tool_call_id"] = _short(found["tool_call_id"])
    if "tool_calls" in found:
        found["tool_calls"] = [{**call, "id": _short(call["id"])} for call in found["tool_calls"]]
    return found


def _short(call_id: str) -> str:
    if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_ID_LENGTH]


def _system_as_user(messages: Messages) -> Messages:
    """In place: behind a tool's result it joins that, as a message of the user's there would begin a new turn."""
    found = messages[:1]
    for message in messages[1:]:
        if message["role"] != "system":
            found.append(message)
            continue
        reminder = f"<system-reminder>\n{message['content']}\n</system-reminder>"
        if found[-1]["role"] == "tool":
            found[-1] = _joined(found[-1], reminder)
        else:
            found.append({"role": "user", "content": reminder})
    return found


def _lost_results_as_user(messages: Messages) -> Messages:
    found: Messages = []
    open_calls = False
    for message in messages:
        if message["role"] != "tool":
            open_calls = bool(message.get("tool_calls"))
        elif not open_calls:
            message = {"role": "user", "content": result_text(message)}
        found.append(message)
    return found


def _alternating(messages: Messages) -> Messages:
    """Messages of the user in a row, and after a tool's result, are one; so are the assistant's without calls."""
    found: Messages = []
    for message in messages:
        last = found[-1] if found else {"role": None}
        follows_user = message["role"] == "user" and last["role"] in ("user", "tool")
        follows_itself = message["role"] == last["role"] == "assistant" and not last.get("tool_calls")
        if follows_user:
            found[-1] = _joined(last, message["content"])
        elif follows_itself:
            found[-1] = {**last, **message, "content": _joined(last, message["content"])["content"]}
        else:
            found.append(message)
    return found


def _without_system(messages: Messages) -> Messages:
    if messages[0]["role"] != "system":
        return messages
    if len(messages) > 1 and messages[1]["role"] == "user":
        first = {**messages[1], "content": _joined(messages[0], messages[1]["content"])["content"]}
        return [first, *messages[2:]]
    return [{**messages[0], "role": "user"}, *messages[1:]]


def _joined(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    both = [part for part in (message["content"], text) if part]
    return {**message, "content": "\n\n".join(both)}
