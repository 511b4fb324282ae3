"""Tools for a model whose chat template knows none: told in the system message, calls and results in plain text.

The calls are those of mlx-lm's parser json_tools.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

RESULT_START, RESULT_END = "<tool_response>", "</tool_response>"

_TOLD = """\
# Tools

You can call functions to help with the user's request. This is the list of them, one JSON description a line:

<tools>
{tools}
</tools>

To call one, write a JSON object with its name and its arguments between <tool_call> tags, and nothing after it:

<tool_call>
{{"name": "the name of the function", "arguments": {{"name of an argument": "its value"}}}}
</tool_call>

Several calls are several such blocks. What they return comes back between <tool_response> tags. Where no function is
needed, answer in plain words."""


def described(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Prepared messages (see messages.py) that tell of the tools, with earlier calls and results written out."""
    written: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            _add_result(written, result_text(message))
        elif message.get("tool_calls"):
            written.append(_call_written_out(message))
        else:
            written.append(dict(message))
    return _told(written, tools) if tools else written


def result_text(message: Mapping[str, Any]) -> str:
    """A tool's result as a user's message says it."""
    return f"{RESULT_START}\n{message['content']}\n{RESULT_END}"


def _add_result(written: list[dict[str, Any]], text: str) -> None:
    """Results of parallel calls come together, as templates that know tools have it."""
    last = written[-1] if written else {}
    if last.get("role") == "user" and last.get("content", "").startswith(RESULT_START):
        last["content"] += f"\n{text}"
    else:
        written.append({"role": "user", "content": text})


def _call_written_out(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        json.dumps({key: call["function"][key] for key in ("name", "arguments")}, ensure_ascii=False)
        for call in message["tool_calls"]
    ]
    blocks = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    texts = [message["content"], *blocks] if message["content"] else blocks
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": "\n".join(texts)}


def _told(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    functions = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    text = _TOLD.format(tools="\n".join(functions))
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
