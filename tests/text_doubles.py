"""Byte-level tokenizers with chat templates that behave as the well-known ones do; the templates are our own."""

from __future__ import annotations

import importlib
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

_OPEN = "<|im_start|>"
_GENERATION = "{% if add_generation_prompt %}<|im_start|>assistant\n"

# A default system message, and no word of tools: as SmolLM2's.
TOOLLESS = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    + _GENERATION
    + "{% endif %}"
)

_TOOLS_FIRST = (
    "{% set lead = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% if tools or lead %}<|im_start|>system\n{{ lead }}"
    "{% if tools %}\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>{% endif %}"
    "<|im_end|>\n{% endif %}"
)
_RESULT = "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"

_THOUGHT_OFF = "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"

# Thinking of earlier turns is dropped, calls are JSON, later system messages are taken: as Qwen3's.
THINKING = (
    _TOOLS_FIRST + "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% for tool_call in m.tool_calls or [] %}{% set tool_call = tool_call.function %}"
    '\n<tool_call>\n{"name": "{{ tool_call.name }}", "arguments": {{ tool_call.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n"
    + _RESULT
    + "{% endif %}{% endfor %}"
    + _GENERATION
    + "{% if enable_thinking is defined and "
    "enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)

# Refuses a later system message and a conversation without the user, opens the thinking: as Qwen3.8's.
STRICT = (
    _TOOLS_FIRST + "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% if not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% elif m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n"
    "{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for name, value in call.function.arguments | items %}<parameter={{ name }}>\n{{ value }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}<|im_end|>\n" + _RESULT + "{% else %}"
    "{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}"
    + _GENERATION
    + "{% if enable_thinking is "
    "defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{% endif %}"
)

# The user and the assistant in turns, ids of nine characters, no generation prompt: as Mistral's.
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set lead = messages[0].content %}{% set loop_messages = messages[1:] %}"
    "{% else %}{% set lead = '' %}{% set loop_messages = messages %}{% endif %}<s>"
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% set ns = namespace(index=0) %}"
    "{% for m in loop_messages %}{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}"
    "{{ raise_exception('conversation roles must alternate user/assistant') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}"
    "{% if m.role == 'user' %}[INST]{% if loop.first and lead %}{{ lead }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' and m.tool_calls %}{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('Tool call IDs should have length 9') }}{% endif %}"
    "[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}</s>"
    "{% elif m.role == 'assistant' %}{{ m.content }}</s>"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]"
    "{% else %}{{ raise_exception('Only user, assistant and tool roles are supported') }}{% endif %}{% endfor %}"
)

# Channels, one call a message, a result only after a call: as gpt-oss'.
HARMONY = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>"
    "{% if messages[0].role == 'system' or tools %}<|start|>developer<|message|>"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for tool in tools or [] %}\ntype {{ tool.function.name }}{% endfor %}<|end|>{% endif %}"
    "{% set ns = namespace(call=none) %}{% for message in messages %}{% if message.role == 'user' %}"
    "<|start|>user<|message|>{{ message.content }}<|end|>"
    "{% elif message.role == 'assistant' and message.tool_calls %}"
    "{% if message.content and message.thinking %}{{ raise_exception('Cannot pass both') }}{% endif %}"
    '{% if message.content or "thinking" in message %}'
    "<|start|>assistant<|channel|>analysis<|message|>{{ message.content or message.thinking }}<|end|>{% endif %}"
    "{% set ns.call = message.tool_calls[0].function.name %}<|start|>assistant to=functions.{{ ns.call }}"
    "<|channel|>commentary json<|message|>{{ message.tool_calls[0].function.arguments | tojson }}<|call|>"
    "{% elif message.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>"
    "{% set ns.call = none %}{% elif message.role == 'tool' %}{% if ns.call is none %}"
    "{{ raise_exception('no previous assistant message with a tool call') }}{% endif %}"
    "<|start|>functions.{{ ns.call }} to=assistant<|channel|>commentary<|message|>{{ message.content | tojson }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

_CONTROLS = {
    MISTRAL: ["<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]"],
    HARMONY: ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>", "<|return|>", "<|constrain|>"],
}


def make_tokenizer(template: str | None = THINKING, parser: str | None = None, **options: Any) -> TokenizerWrapper:
    """A token for every byte and for the template's controls; `parser` is the name of mlx-lm's tool parser."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    controls = _CONTROLS.get(template or "", [_OPEN, "<|im_end|>"])
    core.add_special_tokens([AddedToken(control) for control in controls])
    core.add_tokens([AddedToken(tag) for tag in ("<think>", "</think>", "<tool_call>", "</tool_call>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=controls[1])
    tokenizer.chat_template = template
    if parser:
        module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
        options = {
            "tool_parser": module.parse_tool_call,
            "tool_call_start": module.tool_call_start,
            "tool_call_end": module.tool_call_end,
            **options,
        }
    return TokenizerWrapper(tokenizer, **options)


def tool(name: str = "get_weather", **properties: Any) -> dict[str, Any]:
    """A function tool; its properties are given as JSON schemas."""
    schema = {"type": "object", "properties": properties or {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": f"It is {name}.", "parameters": schema}}


def call(name: str = "get_weather", arguments: Any = '{"city": "Rome"}', call_id: str = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def assistant(text: str | None = None, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **more}


def result(text: str, call_id: str = "call_1") -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": call_id}
