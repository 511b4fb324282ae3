"""How a model writes tool calls: its markers and parser, and whether its own template tells it of tools."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_PROBE = {
    "type": "function",
    "function": {
        "name": "probe_of_tools",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string", "description": "A text."}},
            "required": ["text"],
        },
    },
}

# Formats whose parser takes nothing for a whole call that was cut short: there an unclosed call may be a call.
_WHOLE_OR_NOTHING = frozenset({"json_tools", "qwen3_coder", "mistral", "pythonic", "gemma4"})


@dataclass(frozen=True)
class ToolFormat:
    """The form of a call: `start`, what `parse` reads, `end`; an empty `end` means to the end of the text.

    `parse(text between the markers, tools)` is mlx-lm's: it returns a call (`{"name", "arguments"}`) or a list of
    them, and raises whatever it likes on other text. `name` is that of mlx-lm's module, or "harmony" (gpt-oss), whose
    calls are messages of their own (see harmony.py). `native` is whether the chat template describes the tools and
    writes calls and results; where it does not, described.py does, in the format "json_tools".
    """

    start: str
    end: str
    parse: Callable[[str, Any], Any]
    name: str
    native: bool = True

    @property
    def proves_whole(self) -> bool:
        """Whether a call without its end marker is whole if it parses."""
        return self.name in _WHOLE_OR_NOTHING


def tool_format(tokenizer: Any) -> ToolFormat:
    """The format in which the model of this tokenizer (mlx-lm's `TokenizerWrapper`) calls tools."""
    if speaks_harmony(tokenizer):
        return ToolFormat("<|channel|>commentary to=functions.", "<|call|>", _parse_json, "harmony")
    if tokenizer.has_tool_calling and _template_knows_tools(tokenizer):
        start, end = tokenizer.tool_call_start, tokenizer.tool_call_end or ""
        return ToolFormat(start, end, tokenizer.tool_parser, _parser_name(tokenizer))
    own = importlib.import_module("mlx_lm.tool_parsers.json_tools")
    return ToolFormat(own.tool_call_start, own.tool_call_end, own.parse_tool_call, "json_tools", native=False)


def speaks_harmony(tokenizer: Any) -> bool:
    """Whether the model answers in gpt-oss' messages with channels."""
    source = template_source(tokenizer)
    return all(marker in source for marker in ("<|start|>", "<|channel|>", "<|message|>"))


def template_source(tokenizer: Any) -> str:
    """The Jinja source of the chat template; empty where the template is Python code."""
    source = getattr(tokenizer, "chat_template", None)
    if isinstance(source, Mapping):  # named templates
        source = source.get("default", "")
    return source if isinstance(source, str) else ""


def _template_knows_tools(tokenizer: Any) -> bool:
    """Whether the name of a tool gets into a prompt."""
    if not tokenizer.has_chat_template:
        return False
    messages = [{"role": "user", "content": "x"}]
    try:
        text = tokenizer.apply_chat_template(messages, tools=[_PROBE], tokenize=False, add_generation_prompt=True)
    except Exception:  # whatever a template of unknown origin raises
        return False
    return _PROBE["function"]["name"] in str(text)  # type: ignore[index]


def _parser_name(tokenizer: Any) -> str:
    named = getattr(tokenizer, "init_kwargs", {}).get("tool_parser_type")
    return str(named or tokenizer.tool_parser.__module__.rpartition(".")[2])


def _parse_json(text: str, tools: Any = None) -> Any:
    return json.loads(text)
