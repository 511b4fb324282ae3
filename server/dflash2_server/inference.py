"""What every protocol turns its requests into, and the events it gets back. It knows no protocol and no web."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from dflash2_mlx.decode.logprobs import TokenLogprobs

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]
# "off" and "on" switch, the others are efforts; None leaves it to the template.
Reasoning = Literal["on", "off", "none", "minimal", "low", "medium", "high", "xhigh"]


@dataclass(frozen=True)
class NamedTool:
    """A tool choice that forces one function."""

    name: str


@dataclass(frozen=True, kw_only=True)
class Inference:
    """One request. Either `messages` (by the chat template) or `prompt` (a text as it is, or token ids).

    `messages` are OpenAI's chat messages as plain data: role (system, developer, user, assistant, tool), content (a
    text, None, or text parts joined by the protocol), and where they apply reasoning_content, tool_calls (OpenAI's
    shape, arguments as text) and tool_call_id. `tools` are OpenAI's function tools
    (`{"type": "function", "function": {"name", "description", "parameters"}}`).
    `parameters` are `stream_generate`'s, only those that the request gives: max_tokens, temperature, top_p, top_k,
    min_p, repetition_penalty, presence_penalty, frequency_penalty and their *_context_size, logit_bias, seed, stop,
    ignore_eos, logprobs (number of alternatives, 0: the chosen token's only), block_size, verify_mode,
    verify_precision.
    `grammar` constrains the answer: "json_object", a JSON schema, or None. `thinking_budget` is the most tokens of
    reasoning. `template_arguments` go to the chat template as they are. With `continue_final` an assistant's last
    message is gone on with, instead of being answered.
    """

    model: str | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    prompt: str | Sequence[int] | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict)
    reasoning: Reasoning | None = None
    thinking_budget: int | None = None
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    grammar: Literal["json_object"] | Mapping[str, Any] | None = None
    continue_final: bool = False


@dataclass(frozen=True)
class Text:
    """More of the answer. `logprobs`, where asked for, are those of the tokens that came with it."""

    kind: Literal["reasoning", "content"]
    text: str
    logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True)
class ToolCall:
    """A whole call; `arguments` is a JSON object as text, its values of the types that the tool's schema asks for."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class Done:
    """The last event, exactly once.

    `timings` has prompt_n, prompt_ms, predicted_n, predicted_ms, predicted_per_second, cache_n, draft_n,
    draft_n_accepted, tokens_per_cycle; `engine` has engine, block_size, verify_mode, draft_quant, fallback_reason,
    width_reason, cycles_by_width.
    `stop_sequence` is the stop string that ended the answer, None where it ended otherwise.
    """

    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    timings: Mapping[str, Any]
    engine: Mapping[str, Any]
    stop_sequence: str | None = None


Event = Text | ToolCall | Done


class Answer(Protocol):
    """A running answer: iterate it to `Done`; `aclose` cancels it, wherever it stands, and may be called twice.

    Iterating raises DFlashError where the answer failed: DecodeError, or EngineBusy when the server shuts down.
    """

    prompt_tokens: int

    def token_text(self, token: int) -> str:
        """The text of one token id by itself, as its model's vocabulary writes it.

        A token that is only part of a character gives U+FFFD. Used for log-probabilities, whose events carry ids.
        """
        ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """A model as `/v1/models` lists it. One that is not `loaded` has no engine yet: it says what will be there."""

    id: str
    created: int
    context_length: int | None
    engine: str
    block_size: int
    drafter: str | None
    fallback_reason: str | None
    aliases: tuple[str, ...] = ()
    loaded: bool = True
    automatic: bool = False  # the block size follows what is measured: it is that of the latest cycle


class Service(Protocol):
    """What the routes ask of the engine; tests give them a double."""

    async def submit(self, inference: Inference) -> Answer:
        """Check, template and queue a request. Everything that is wrong is raised here, before it is queued.

        Raises RequestError (param names the field), ModelNotFound, QueueFull (retry_after, in seconds), EngineBusy.
        """
        ...

    async def count(self, inference: Inference) -> int:
        """Prompt tokens of a request, without running it. Raises as `submit`."""
        ...

    def models(self) -> list[ModelInfo]:
        """The models that are served: loaded ones, then those that a request would load."""
        ...

    def model(self, name: str | None) -> ModelInfo:
        """The model of that name or alias; None is the default one. Raises ModelNotFound."""
        ...

    def readiness(self) -> tuple[bool, str]:
        """Whether requests are served, and the state in a word or the reason."""
        ...

    def metrics(self) -> str:
        """Prometheus text."""
        ...
