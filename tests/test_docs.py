"""docs/cli.md says what the program says, and leaves nothing out."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from fastapi.routing import APIRoute

from dflash2_mlx import cli
from dflash2_mlx.chat.commands import COMMANDS
from dflash2_mlx.settings import ServerSettings, flag_name
from dflash2_server import models, status
from dflash2_server.admin import session_routes
from dflash2_server.admin.asked import PREFIX
from dflash2_server.admin.routes import routers as admin_routers
from dflash2_server.anthropic import messages
from dflash2_server.openai import chat, completions, responses

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_docs", ROOT / "tools" / "update_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def docs(tool: ModuleType) -> str:
    text: str = tool.DOCS.read_text(encoding="utf-8")
    return text


@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_docs_are_up_to_date(columns: str, docs: str, tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert tool.updated(docs) == docs, "run `python tools/update_docs.py`"


def test_a_difference_is_seen(docs: str, tool: ModuleType) -> None:
    assert tool.updated(docs.replace("--top-k K", "--top-q K")) == docs
    assert "--top-k K" in docs


def test_every_command_has_its_block(docs: str, tool: ModuleType) -> None:
    commands = [cli.PROGRAM, *(f"{cli.PROGRAM} {name}" for name in cli.COMMANDS)]
    assert sorted(tool.blocks(docs)) == sorted([*commands, "chat commands"])


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_flag_is_documented_with_a_help_text(name: str, docs: str) -> None:
    module = importlib.import_module(cli.COMMANDS[name][0])
    for action in cli.command_parser(name, module)._actions:
        assert action.help, f"{action.dest} has no help"
        assert action.help != argparse.SUPPRESS
        assert all(flag in docs for flag in action.option_strings)


def test_every_chat_command_is_documented(docs: str) -> None:
    assert all(f"\n{name} " in docs for name in COMMANDS)


def test_every_route_is_documented() -> None:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    paths = {
        route.path
        for router in (chat, completions, responses, messages, models, status)
        for route in router.router.routes
        if isinstance(route, APIRoute)
    }
    assert len(paths) >= 10
    for path in paths:
        assert path.replace("{name:path}", "{id}") in text, path


def test_every_admin_route_is_documented_with_its_method() -> None:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    found = {(method, path) for method, path in re.findall(r"`(GET|POST|PUT|DELETE) (/[^`?]*)", text)}
    routes = {
        (method, route.path.removeprefix(PREFIX).replace("{id:path}", "{id}"))
        for router in (session_routes.router, *admin_routers())
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods
    }
    assert len(routes) > 20
    assert routes <= found
    assert {route for route in found if route[1].startswith(("/models", "/hf"))} <= routes, "and none that is not there"


def test_every_flag_that_the_servers_page_names_is_there() -> None:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    flags = set(re.findall(r"`(--[a-z-]+)", text))
    assert len(flags) > 8
    assert flags <= {flag_name(name) for name in ServerSettings.model_fields}
