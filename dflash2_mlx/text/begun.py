"""A turn that the assistant has begun and is to go on with: what it has thought and said stands behind the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .reasoning import thinking_markers
from .template import ChatTemplate

_ASSISTANT = "<|start|>assistant"  # harmony's


class Begun(NamedTuple):
    """The thinking and the text of a turn, each empty where there is none."""

    thought: str
    said: str


def begun_turn(messages: Sequence[Mapping[str, Any]]) -> Begun | None:
    """What the last of the prepared messages has begun; None where it is not the assistant's, or calls a tool."""
    last: Mapping[str, Any] = messages[-1] if len(messages) > 1 else {}
    if last.get("role") != "assistant" or last.get("tool_calls"):
        return None
    begun = Begun(last.get("reasoning_content", ""), last["content"])
    return begun if any(begun) else None


def gone_on_with(template: ChatTemplate, prompt: str, begun: Begun) -> tuple[str, str]:
    """A marked prompt up to where what the answer goes on with begins, and with it.

    That is the text, or the thinking where nothing has been said yet. The thinking is left out where the prompt has
    closed it already, or the model has none.
    """
    thought, said = template.guard(begun.thought), template.guard(begun.said)
    if template.tool_format.name == "harmony" and prompt.endswith(_ASSISTANT):
        return _in_channels(prompt, thought, said)
    start, end = thinking_markers(template.tokenizer)
    opens, closed = (prompt.rstrip().endswith(marker) for marker in (start, end))
    if thought and not closed and (opens or template.tokenizer.has_thinking):
        opening = prompt if opens else f"{prompt}{start}\n"
        if not said:
            return opening, opening + thought
        prompt = f"{opening}{thought}\n{end}\n\n"
    elif opens:
        prompt = f"{prompt.rstrip()}\n\n{end}\n\n"
    return prompt, prompt + said


def _in_channels(prompt: str, thought: str, said: str) -> tuple[str, str]:
    if thought:
        opening = f"{prompt}<|channel|>analysis<|message|>"
        if not said:
            return opening, opening + thought
        prompt = f"{opening}{thought}<|end|>{_ASSISTANT}"
    opening = f"{prompt}<|channel|>final<|message|>"
    return opening, opening + said
