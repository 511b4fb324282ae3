"""A server whose target follows a script, on a real port: `python -m tests.server.scripted_server PORT [FOLDER]`.

For trying real clients by hand and in tests: it answers a question about a file with a call of the client's own tool
and says what came of it; it echoes a word, and talks at length where asked to.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from dflash2_mlx.engine.worker import Engine, EngineOptions
from dflash2_mlx.settings import ServerSettings
from dflash2_server import listener
from dflash2_server.app import create_app
from dflash2_server.service import serve_pair
from tests.server.scripted import BEGIN, scripted_pair

# The first of these that the client offers is called, to read notes.txt or to run a command that prints it.
READERS: dict[str, dict[str, Any]] = {
    "Read": {"file_path": "{folder}/notes.txt"},
    "read": {"filePath": "{folder}/notes.txt"},
    "read_file": {"path": "{folder}/notes.txt"},
    "exec_command": {"cmd": "cat notes.txt"},
    "shell": {"command": ["cat", "notes.txt"]},
    "shell_command": {"command": "cat notes.txt"},
    "get_weather": {"city": "Paris"},
}


class Agent:
    """The script: a question with the word "notes" is answered by a call, its result by a sentence."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, prompt: str) -> str:
        since = prompt.split(BEGIN)[-2] if prompt.count(BEGIN) > 0 else prompt  # since the last answer began
        echo = re.search(r"echo: (\w+)", since)
        if echo:
            return f"{echo[1]} " * 3
        if "at length" in since:
            return "word " * 2000
        if "<tool_response>" in since:
            result = since.rsplit("<tool_response>\n", 1)[1].split("</tool_response>", 1)[0]
            words = re.findall(r"melon|sunny", result)
            return f"The tool said: {words[0] if words else result.strip()[:200]}."
        if "notes.txt" in since or "the weather" in since:
            call = self._call(prompt)
            if call:
                return f"I will look.\n<tool_call>\n{call}\n</tool_call>"
        return "Hello from the script."

    def _call(self, prompt: str) -> str | None:
        for name, arguments in READERS.items():
            if f'"name": "{name}"' in prompt:
                filled = {key: _fill(value, self._folder) for key, value in arguments.items()}
                return json.dumps({"name": name, "arguments": filled})
        return None


def _fill(value: Any, folder: str) -> Any:
    return value.replace("{folder}", folder) if isinstance(value, str) else value


def main(port: int, folder: str) -> None:
    engine = Engine(EngineOptions())
    engine.start()
    pair = engine.call(lambda: scripted_pair(Path(tempfile.mkdtemp()), Agent(folder))).result()
    settings = ServerSettings(port=port, alias=["*"])
    service = serve_pair(engine, pair, settings)
    with listener.bind(settings.host, settings.port) as sock:
        print(f"ready on {listener.base_url(settings.host, sock.getsockname()[1])}", flush=True)
        listener.serve(listener.Server(create_app(service, settings), service.close), sock)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ".")
