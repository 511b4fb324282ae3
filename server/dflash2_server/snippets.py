"""What to paste into a client to use this server. Pure functions; a key is named by its variable, never shown."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

KEY_VARIABLE = "DFLASH2_API_KEY"
# Clients that insist on a key get this word where none is needed.
NO_KEY = "none"


def curl(base_url: str, model: str, needs_key: bool) -> str:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False)
    key = f' \\\n  -H "Authorization: Bearer ${KEY_VARIABLE}"' if needs_key else ""
    return (
        f"curl {base_url}/v1/chat/completions{key} \\\n"
        f"  -H 'Content-Type: application/json' \\\n  -d {shlex.quote(body)}"
    )


def python_openai(base_url: str, model: str, needs_key: bool) -> str:
    key = f'os.environ["{KEY_VARIABLE}"]' if needs_key else f'"{NO_KEY}"'
    return (
        f"{'import os' + chr(10) if needs_key else ''}from openai import OpenAI\n"
        f'client = OpenAI(base_url="{base_url}/v1", api_key={key})\n'
        f"answer = client.chat.completions.create(\n"
        f'    model={json.dumps(model)}, messages=[{{"role": "user", "content": "Hello"}}]\n'
        f")\n"
        f"print(answer.choices[0].message.content)"
    )


def claude_code(base_url: str, model: str, needs_key: bool) -> str:
    """Every size of model that it asks for is this one."""
    name = shlex.quote(model)
    sizes = ("MODEL", "SMALL_FAST_MODEL", "DEFAULT_HAIKU_MODEL", "DEFAULT_SONNET_MODEL", "DEFAULT_OPUS_MODEL")
    lines = [
        f"export ANTHROPIC_BASE_URL={base_url}",
        f"export ANTHROPIC_AUTH_TOKEN={f'${KEY_VARIABLE}' if needs_key else NO_KEY}",
        *(f"export ANTHROPIC_{size}={name}" for size in sizes),
        "export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
        "claude",
    ]
    return "\n".join(lines)


def codex(base_url: str, model: str, needs_key: bool) -> str:
    """Lines of ~/.codex/config.toml; TOML's texts are written as JSON's."""
    key = f'\nenv_key = "{KEY_VARIABLE}"' if needs_key else ""
    return (
        f"model = {json.dumps(model)}\n"
        f'model_provider = "dflash2"\n\n'
        f"[model_providers.dflash2]\n"
        f'name = "dflash2-mlx"\n'
        f'base_url = "{base_url}/v1"\n'
        f'wire_api = "responses"{key}'
    )


def opencode(base_url: str, model: str, needs_key: bool) -> str:
    """The content of opencode.json."""
    options = {"baseURL": f"{base_url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}" if needs_key else NO_KEY}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "dflash2-mlx",
        "options": options,
        "models": {model: {"name": model}},
    }
    return json.dumps({"provider": {"dflash2": provider}, "model": f"dflash2/{model}"}, indent=2, ensure_ascii=False)


SNIPPETS: dict[str, Callable[[str, str, bool], str]] = {
    "curl": curl,
    "Python, openai": python_openai,
    "Claude Code": claude_code,
    "Codex, ~/.codex/config.toml": codex,
    "opencode, opencode.json": opencode,
}


def all_snippets(base_url: str, model: str, needs_key: bool) -> str:
    """Every snippet under its title."""
    return "\n\n".join(f"# {title}\n{make(base_url, model, needs_key)}" for title, make in SNIPPETS.items())
