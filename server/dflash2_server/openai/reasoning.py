"""The many ways to say how much a model should think, and the one that the engine knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import Field

from dflash2_mlx.errors import RequestError
from dflash2_server.extensions import JsonObject
from dflash2_server.inference import Reasoning
from dflash2_server.openai.fields import RequestModel

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
T = TypeVar("T", bool, int, str)


class ReasoningOptions(RequestModel):
    """`reasoning`, in the shape of responses (effort, summary) and in OpenRouter's (the others)."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    enabled: bool | None = None
    exclude: bool | None = Field(default=None, description="think, but leave the reasoning out of the response")
    max_tokens: int | None = Field(default=None, ge=0)

    @property
    def summary_wanted(self) -> str | None:
        """The kind of summary under its new or its old name; None: none."""
        return None if self.summary == "none" else self.summary or self.generate_summary


class ThinkingOptions(RequestModel):
    """`thinking`, in Anthropic's shape."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(default=None, ge=0)


class ReasoningFields(RequestModel):
    """Everything that clients send about thinking."""

    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = None
    enable_thinking: bool | None = None
    thinking: ThinkingOptions | None = None
    thinking_budget: int | None = Field(default=None, ge=0, description="most tokens of reasoning")
    thinking_budget_tokens: int | None = Field(default=None, ge=0)
    chat_template_kwargs: JsonObject | None = None


def reasoning_arguments(fields: ReasoningFields) -> dict[str, Any]:
    """`reasoning`, `thinking_budget` and `template_arguments` of the Inference.

    A switch that is off wins over an effort, an effort over a switch that is on. Raises RequestError where two
    fields of one meaning differ.
    """
    options = fields.reasoning or ReasoningOptions()
    thinking = fields.thinking
    budget = _agreed(
        {
            "thinking_budget": fields.thinking_budget,
            "thinking_budget_tokens": fields.thinking_budget_tokens,
            "thinking.budget_tokens": thinking.budget_tokens if thinking else None,
            "reasoning.max_tokens": options.max_tokens,
        }
    )
    return {
        "reasoning": _reasoning(fields, options),
        "thinking_budget": budget,
        "template_arguments": fields.chat_template_kwargs or {},
    }


def _reasoning(fields: ReasoningFields, options: ReasoningOptions) -> Reasoning | None:
    effort: Effort | None = _agreed(  # type: ignore[assignment]
        {"reasoning_effort": fields.reasoning_effort, "reasoning.effort": options.effort}
    )
    switch = _agreed(
        {
            "enable_thinking": fields.enable_thinking,
            "thinking.type": None if fields.thinking is None else fields.thinking.type != "disabled",
            "reasoning.enabled": options.enabled,
        }
    )
    if switch is False:
        return "off"
    if effort is not None:
        return "xhigh" if effort == "max" else effort
    return None if switch is None else "on"


def _agreed(values: Mapping[str, T | None]) -> T | None:
    """The one value that the given fields have; None: none is given."""
    given = {name: value for name, value in values.items() if value is not None}
    if len(set(given.values())) > 1:
        said = " and ".join(f"{name} ({value!r})" for name, value in given.items())
        raise RequestError(f"{said} contradict each other: give one of them", param=next(iter(given)))
    return next(iter(given.values()), None)
