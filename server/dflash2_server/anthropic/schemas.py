"""The requests of Anthropic's Messages protocol, as far as they are served. Unknown fields are ignored.

Types are strict: a number as text is no number. What is known but not served is refused here by its type, or in
`convert`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dflash2_server.extensions import DFlashOptions, JsonObject


class Schema(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class TextBlock(Schema):
    type: Literal["text"]
    text: str


def _as_blocks(content: Any) -> Any:
    """A text stands for one text block."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _as_blocks_or_none(content: Any) -> Any:
    """Nothing stands for no block."""
    return [] if content is None else _as_blocks(content)


Texts = Annotated[
    list[TextBlock], BeforeValidator(_as_blocks_or_none, json_schema_input_type=str | list[TextBlock] | None)
]


class TextSource(Schema):
    type: Literal["text"]
    data: str


class ContentSource(Schema):
    type: Literal["content"]
    content: Texts


class DocumentBlock(Schema):
    """A document that is given as text; others would have to be read first."""

    type: Literal["document"]
    source: Annotated[TextSource | ContentSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None


class ToolReferenceBlock(Schema):
    """A tool that the client's own search for tools has found."""

    type: Literal["tool_reference"]
    tool_name: str


class ThinkingBlock(Schema):
    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Schema):
    type: Literal["redacted_thinking"]


class ToolUseBlock(Schema):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


ResultBlock = Annotated[TextBlock | DocumentBlock | ToolReferenceBlock, Field(discriminator="type")]


class ToolResultBlock(Schema):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Annotated[
        list[ResultBlock],
        BeforeValidator(_as_blocks_or_none, json_schema_input_type=str | list[ResultBlock] | None),
    ] = []
    is_error: bool | None = None


UserBlock = Annotated[TextBlock | DocumentBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[
    TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, Field(discriminator="type")
]


class UserMessage(Schema):
    role: Literal["user"]
    content: Annotated[list[UserBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[UserBlock])]


class AssistantMessage(Schema):
    role: Literal["assistant"]
    content: Annotated[
        list[AssistantBlock], BeforeValidator(_as_blocks, json_schema_input_type=str | list[AssistantBlock])
    ]


class SystemMessage(Schema):
    role: Literal["system"]
    content: Texts


AnyMessage = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]


class Tool(Schema):
    """A tool that the client runs. Anthropic's own have another `type` and are refused."""

    type: str | None = None
    name: str = Field(min_length=1)
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None


class AutoChoice(Schema):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Schema):
    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class ToolChoice(Schema):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class NoChoice(Schema):
    type: Literal["none"]


class ShownThinking(Schema):
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="omitted: the blocks of thinking are empty. There are no summaries: the other is all of it."
    )


class ThinkingEnabled(ShownThinking):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1)


class ThinkingDisabled(Schema):
    type: Literal["disabled"]


class ThinkingAdaptive(ShownThinking):
    type: Literal["adaptive"]


class OutputFormat(Schema):
    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Schema):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Schema):
    """What decides the prompt, and so its number of tokens."""

    model: str | None = None
    messages: list[AnyMessage] = Field(min_length=1)
    system: Texts = []
    tools: list[Tool] | None = None
    tool_choice: Annotated[AutoChoice | AnyChoice | ToolChoice | NoChoice, Field(discriminator="type")] | None = None
    thinking: Annotated[ThinkingEnabled | ThinkingDisabled | ThinkingAdaptive, Field(discriminator="type")] | None = (
        None
    )
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = Field(None, description="The older name of output_config.format.")
    container: Any = Field(None, description="Not served.", json_schema_extra={"type": "null"})
    mcp_servers: Any = Field(
        None, description="Not served.", json_schema_extra={"type": ["array", "null"], "maxItems": 0}
    )


class MessagesRequest(CountRequest):
    """A request for a message."""

    max_tokens: int = Field(ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    dflash: DFlashOptions | None = None
