"""What `/v1/completions` takes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, Tag

from dflash2_server.openai.fields import RequestModel, SamplingFields, by_form
from dflash2_server.openai.schemas_chat import StreamOptions

# A text, token ids, or a list of one of those.
Prompt = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[str | int | list[int]], Tag("list")],
    by_form("a list of token ids or of one prompt"),
]


class CompletionRequest(SamplingFields, RequestModel):
    """The body of a completion request."""

    model: str | None = None
    prompt: Prompt
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: int | None = Field(default=None, ge=0, le=5)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    # Known only to be refused by name, where they mean something.
    best_of: int | None = None
    echo: bool | None = None
    suffix: Any = None
