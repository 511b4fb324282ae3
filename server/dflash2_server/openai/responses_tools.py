"""The tools of a responses request: what the model is offered, and how its calls are given back. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dflash2_server.openai.schemas_responses import (
    BuiltInTool,
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ResponsesRequest,
)
from dflash2_server.openai.tools import Function, offered

# The one argument of the function that a custom tool is offered as.
CUSTOM_ARGUMENT = "input"
_NOT_IN_HEADERS = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Origin:
    """The tool behind an offered function: its name, the namespace it stands in, and whether it takes a free text."""

    name: str
    namespace: str | None = None
    custom: bool = False


def offered_tools(request: ResponsesRequest) -> list[dict[str, Any]]:
    """The functions that the model is offered; those of a namespace bear its name before their own."""
    return [_offered(tool, flat_name(tool.name, namespace)) for tool, namespace in _tools(request)]


def origins(request: ResponsesRequest) -> dict[str, Origin]:
    """The tools by the names that the model calls them by."""
    return {
        flat_name(tool.name, namespace): Origin(tool.name, namespace, isinstance(tool, CustomTool))
        for tool, namespace in _tools(request)
    }


def skipped_tools(request: ResponsesRequest) -> list[str]:
    """The types of the tools that the model is not offered, each once, safe to stand in a header."""
    tools = request.tools or []
    inner = [tool for outer in tools if isinstance(outer, NamespaceTool) for tool in outer.tools]
    kinds = [tool.type for tool in [*tools, *inner] if isinstance(tool, BuiltInTool)]
    return list(dict.fromkeys(_NOT_IN_HEADERS.sub("?", kind[:40]) for kind in kinds))


def flat_name(name: str, namespace: str | None) -> str:
    """The name of a tool of a namespace, for models, which know none. Codex's namespaces end in the separator."""
    return name if namespace is None else f"{namespace.removesuffix('__')}__{name}"


def _tools(request: ResponsesRequest) -> Iterator[tuple[FunctionTool | CustomTool, str | None]]:
    """Every tool that can be offered, with the name of its namespace."""
    for outer in request.tools or []:
        if isinstance(outer, NamespaceTool):
            yield from ((tool, outer.name) for tool in outer.tools if not isinstance(tool, BuiltInTool))
        elif not isinstance(outer, BuiltInTool):
            yield outer, None


def _offered(tool: FunctionTool | CustomTool, name: str) -> dict[str, Any]:
    if isinstance(tool, FunctionTool):
        return offered(tool.model_copy(update={"name": name}))
    schema = {
        "type": "object",
        "properties": {CUSTOM_ARGUMENT: {"type": "string", "description": "the whole input of the tool"}},
        "required": [CUSTOM_ARGUMENT],
    }
    return offered(Function(name=name, description=_custom_description(tool), parameters=schema))


def _custom_description(tool: CustomTool) -> str:
    """The tool's own words, and the grammar that its input has to follow."""
    told = [tool.description] if tool.description else []
    if tool.format is not None and tool.format.definition:
        syntax = f" ({tool.format.syntax})" if tool.format.syntax else ""
        told.append(f"The input follows this grammar{syntax}:\n{tool.format.definition}")
    return "\n\n".join(told)
