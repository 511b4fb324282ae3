"""What `/v1/chat/completions` takes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from dflash2_server.extensions import JsonObject
from dflash2_server.openai.fields import RequestModel, SamplingFields, TextOrObject, TextOrParts
from dflash2_server.openai.reasoning import ReasoningFields
from dflash2_server.openai.tools import Function


class CalledFunction(RequestModel):
    """A function and its arguments, as a JSON text (what models write) or as the object itself."""

    name: str
    arguments: TextOrObject | None = None


class PastCall(RequestModel):
    """A tool call of an earlier turn."""

    id: str | None = None
    type: str = "function"
    function: CalledFunction | None = None


class Message(RequestModel):
    """A message of any role. `reasoning` and `reasoning_content` are the same thing under two names."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: TextOrParts | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[PastCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: str | None = None


class Tool(RequestModel):
    """An offered tool; only functions are served."""

    type: str
    function: Function | None = None


class JsonSchema(RequestModel):
    """`response_format.json_schema`."""

    name: str | None = None
    strict: bool | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")


class ResponseFormat(RequestModel):
    """`response_format`; some clients put the schema right next to the type."""

    type: str
    json_schema: JsonSchema | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")


class StreamOptions(RequestModel):
    """`stream_options`."""

    include_usage: bool | None = None


class ChatRequest(SamplingFields, ReasoningFields):
    """The body of a chat request."""

    model: str | None = None
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[Tool] | None = None
    tool_choice: TextOrObject | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    response_format: ResponseFormat | None = None
    # Known only to be refused by name.
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None
    moderation: Any = None
