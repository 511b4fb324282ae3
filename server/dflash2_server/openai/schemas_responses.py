"""What `/v1/responses` takes: the request, the items of its input, its tools."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from dflash2_server.extensions import JsonObject
from dflash2_server.openai.fields import RequestModel, SamplingFields, TextOrObject, TextOrParts, by_form
from dflash2_server.openai.reasoning import ReasoningFields
from dflash2_server.openai.tools import Function


class MessageItem(RequestModel):
    """A message; its type may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts


class FunctionCallItem(RequestModel):
    """A call that the model made."""

    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CustomToolCallItem(RequestModel):
    """A call of a custom tool, its input a free text."""

    call_id: str
    name: str
    namespace: str | None = None
    input: str


class OutputItem(RequestModel):
    """What a function or a custom tool gave back."""

    call_id: str
    output: TextOrParts


class ReasoningText(RequestModel):
    """A part of a reasoning item's content or summary."""

    text: str


class ReasoningItem(RequestModel):
    """What the model thought. `encrypted_content` is ignored: nothing here is encrypted."""

    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None


class OtherItem(RequestModel):
    """An item that is not served, or not known; it is refused by name."""

    type: str = "item_reference"


_ITEM_TAGS = {
    "message": "message",
    "function_call": "function_call",
    "custom_tool_call": "custom_tool_call",
    "function_call_output": "output",
    "custom_tool_call_output": "output",
    "reasoning": "reasoning",
}


def _item_tag(item: Any) -> str:
    if not isinstance(item, dict) or (item.get("type") is None and "role" in item):
        return "message"
    kind = item.get("type")
    return _ITEM_TAGS.get(kind, "other") if isinstance(kind, str) else "other"


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CustomToolCallItem, Tag("custom_tool_call")]
    | Annotated[OutputItem, Tag("output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_item_tag),
]
Input = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[Item], Field(min_length=1), Tag("list")], by_form("a list of items")
]


class FunctionTool(Function):
    """A function, its fields next to the type."""

    type: Literal["function"]


class CustomFormat(RequestModel):
    """What a custom tool's input looks like: a text, or of a grammar."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class CustomTool(RequestModel):
    """A tool that takes one free text."""

    type: Literal["custom"]
    name: str = Field(min_length=1)
    description: str | None = None
    format: CustomFormat | None = None


class BuiltInTool(RequestModel):
    """A tool that OpenAI's servers run. Codex always sends some; they are skipped."""

    type: str


def _tool_tag(tool: Any) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    return kind if kind in ("function", "custom", "namespace") else "built_in"


def _inner_tool_tag(tool: Any) -> str:
    tag = _tool_tag(tool)
    return "built_in" if tag == "namespace" else tag


class NamespaceTool(RequestModel):
    """Tools under a common name: Codex groups those of an MCP server so. It can hold no other namespaces."""

    type: Literal["namespace"]
    name: str = Field(min_length=1)
    description: str = ""
    tools: list[
        Annotated[
            Annotated[FunctionTool, Tag("function")]
            | Annotated[CustomTool, Tag("custom")]
            | Annotated[BuiltInTool, Tag("built_in")],
            Discriminator(_inner_tool_tag),
        ]
    ]


ResponsesTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[BuiltInTool, Tag("built_in")],
    Discriminator(_tool_tag),
]


class TextFormat(RequestModel):
    """`text.format`, the schema next to the type."""

    type: str
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")


class TextOptions(RequestModel):
    """`text`. `verbosity` is a hint that no open model knows."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ResponsesRequest(SamplingFields, ReasoningFields):
    """The body of a responses request."""

    model: str | None = None
    input: Input
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    tools: list[ResponsesTool] | None = None
    tool_choice: TextOrObject | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    include: list[str] | None = None
    stream: bool | None = None
    store: bool | None = Field(default=None, description="accepted; nothing is kept")
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None, description="accepted; nothing is cut: a prompt that is too long is an error"
    )
    metadata: dict[str, str] | None = None
    # Known only to be refused by name, where they mean something.
    background: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    moderation: Any = None
