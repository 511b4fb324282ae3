"""Tools and the choice among them, as an Inference wants them; shared by chat and responses."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any, Literal

from pydantic import Field

from dflash2_mlx.errors import RequestError
from dflash2_server.extensions import JsonObject
from dflash2_server.inference import NamedTool
from dflash2_server.openai.fields import RequestModel

ToolChoice = Literal["auto", "none", "required"] | NamedTool


class Function(RequestModel):
    """A function as a tool. `strict` is accepted: arguments follow the schema anyway."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


def offered(function: Function) -> dict[str, Any]:
    """The tool as chat templates expect it."""
    parameters = {"type": "object", "properties": {}} if function.parameters is None else function.parameters
    told = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": told}


def tool_choice(choice: str | Mapping[str, Any] | None, names: Collection[str]) -> ToolChoice:
    """The checked choice among the tools of these names, a named one in chat's or in responses' shape."""
    match choice:
        case None | "auto":
            return "auto"
        case "none":
            return "none"
        case "required":
            if not names:
                raise RequestError("tool_choice is 'required' and no tools are offered", param="tool_choice")
            return "required"
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function" | "custom", "name": str(name)}:
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise RequestError(
                    f"tool_choice names {name!r:.80}, which is not among the tools: {known}", param="tool_choice"
                )
            return NamedTool(name)
        case _:
            raise RequestError(
                f"tool_choice is {choice!r:.80}: use auto, none, required or one function by its name",
                param="tool_choice",
            )


def past_call(call_id: str, name: str, arguments: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """A call of an earlier turn in chat's shape, its arguments as text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text or "{}"}}
