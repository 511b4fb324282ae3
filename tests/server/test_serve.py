"""The command: what it refuses before loading, what it prints, the port, and how it stops."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from dflash2_mlx import cli, settings
from dflash2_mlx.errors import ModelNotFound, RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_server import body as bodies
from dflash2_server import listener, serve_command, snippets
from tests.server import doubles

# What the child of the process tests runs: a service that never ends its answers.
CHILD = """
import asyncio, sys
from dflash2_mlx import cli
from dflash2_server import serve_command, service
from dflash2_server.inference import Text
from tests.server import doubles

class Stalled(doubles.ScriptedService):
    def close(self):
        super().close()
        print("closed", self.closings, flush=True)

stalled = lambda settings, progress: Stalled(lambda asked: [Text("content", "one"), asyncio.Event()])
args = cli.command_parser("serve", serve_command).parse_args(["--port", "0", *sys.argv[1:]])
sys.exit(serve_command.run(args, stalled))
"""


@pytest.fixture(autouse=True)
def no_settings_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings.server, "default_file", lambda: tmp_path / "server.json")
    for name in ServerSettings.model_fields:
        monkeypatch.delenv(settings.environment_name(name), raising=False)


def run(flags: str, open_service: Any) -> int:
    args = cli.command_parser("serve", serve_command).parse_args(shlex.split(flags))
    return serve_command.run(args, open_service)


def never(settings: ServerSettings, progress: Any) -> Any:
    pytest.fail("the model was loaded")


def tell(server: listener.Server) -> None:
    server.should_exit = True


def serve_until(
    check: Callable[[str], None],
    flags: str,
    monkeypatch: pytest.MonkeyPatch,
    stop: Callable[[listener.Server], None] = tell,
) -> doubles.ScriptedService:
    """Run the command over a double, in this thread; `check` is called with the base URL in another, then `stop`."""
    service = doubles.ScriptedService()
    failures: list[BaseException] = []
    real = listener.serve

    def watched(server: listener.Server, sock: socket.socket) -> None:
        def visit() -> None:
            try:
                while not server.started:
                    time.sleep(0.005)
                check(f"http://127.0.0.1:{sock.getsockname()[1]}")
            except BaseException as error:
                failures.append(error)
            finally:
                stop(server)

        visitor = threading.Thread(target=visit)
        visitor.start()
        real(server, sock)
        visitor.join()

    monkeypatch.setattr(listener, "serve", watched)
    assert run(f"--port 0 {flags}", lambda settings, progress: service) == 0
    if failures:
        raise failures[0]
    return service


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--host 0.0.0.0", "DFLASH2_API_KEY"),
        ("--host :: --draft none", "there is no key"),
        ("--port 99999", "port is '99999'"),
        ("--draft-quant w5", "w5"),
        ("--draft-quant w4a8:gs64", "w4a8:gs64"),
        ("--cors-origin nonsense", "cors_origin"),
        ("--config /nowhere/server.json", "/nowhere/server.json"),
        ("--host 192.0.2.1 --api-key k", "cannot listen on '192.0.2.1'"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_loaded(flags: str, told: str) -> None:
    with pytest.raises(RequestError, match=re.escape(told)):
        run(flags, never)


def test_a_taken_port_is_refused_before_anything_is_loaded() -> None:
    with listener.bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RequestError, match=f"port {port}: .*in use.*--port"):
            run(f"--port {port}", never)


def test_the_port_is_free_again_when_loading_fails() -> None:
    ports = []

    def fail(settings: ServerSettings, progress: Any) -> Any:
        ports.append(settings.port)
        raise ModelNotFound("no folder 'x'")

    with listener.bind("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(ModelNotFound):
        run(f"--port {port} --model x", fail)
    assert ports == [port]
    with listener.bind("127.0.0.1", port):
        pass


def test_a_body_that_stops_coming_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SILENCE_SECONDS", 0.2)
    replies = []

    def check(url: str) -> None:
        port = int(url.rsplit(":", 1)[1])
        head = b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
            slow.sendall(head)
            for byte in (b"{", b" ", b" "):  # each in time, all of them not
                time.sleep(0.1)
                slow.sendall(byte)
            with slow.makefile("rb") as read:
                replies.append(read.read())  # to the end of the connection

    assert serve_until(check, "", monkeypatch).inferences == []
    status, _, rest = replies[0].partition(b"\r\n")
    assert b" 408 " in status
    assert b"connection: close" in rest.lower()
    error = json.loads(rest.split(b"\r\n\r\n", 1)[1])
    assert error["error"] == {
        "type": "timeout_error",
        "message": "nothing more of the body came for 0.2 s: send it whole",
    }


def test_more_connections_than_are_taken_get_a_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_CONNECTIONS", 2)
    statuses = []

    def check(url: str) -> None:
        port = int(url.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)) as second:
            second.settimeout(5)
            second.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            statuses.append(second.recv(1000).split()[1])

    serve_until(check, "", monkeypatch)
    assert statuses == [b"503"]


def test_one_parser_of_http_whatever_is_installed() -> None:
    config = listener.Server(FastAPI(), lambda: None).config
    assert (config.http, config.limit_concurrency) == ("h11", 1000)


def test_it_serves_prints_and_closes_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def check(url: str) -> None:
        import urllib.request

        with urllib.request.urlopen(f"{url}/health") as answer:
            assert json.load(answer) == {"status": "ok", "server": "dflash2-mlx"}
            assert answer.headers["server"] is None
        asked = urllib.request.Request(f"{url}/v1/models", headers={"Authorization": "Bearer hidden-key"})
        with urllib.request.urlopen(asked) as answer:
            assert json.load(answer)["data"][0]["id"] == "demo"

    service = serve_until(check, "--api-key hidden-key --draft-quant w4a16:gs64 --cache-gb 2", monkeypatch)
    assert service.closings == 1
    shown = capsys.readouterr()
    for line in (
        "model         demo",
        "drafter       demo, quantised to w4a16:gs64",
        "engine        dflash2, block size 5",
        "context       2048 tokens",
        "prefix cache  up to 2 GiB",
        "key           needed",
    ):
        assert line in shown.out.splitlines()
    assert re.search(r"^memory        \d+\.\d\d GB in use$", shown.out, re.MULTILINE)
    assert re.search(r"^base URL      http://127\.0\.0\.1:\d+/v1 for OpenAI", shown.out, re.MULTILINE)
    assert all(f"# {title}" in shown.out for title in snippets.SNIPPETS)
    assert "hidden-key" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("changes", "flags", "line"),
    [
        ({"drafter": None, "engine": "plain", "block_size": 1}, {"draft": "none"}, "drafter       none"),
        ({"drafter": None, "fallback_reason": "sizes differ"}, {}, "drafter       none: sizes differ"),
        ({}, {}, "drafter       demo, not quantised"),
        ({"context_length": None}, {}, "context       unknown"),
        ({}, {"cache_gb": 0}, "prefix cache  off"),
        ({}, {}, "key           not needed"),
        ({}, {}, "memory        1.50 GB in use"),
    ],
)
def test_the_banner(changes: dict[str, Any], flags: dict[str, Any], line: str) -> None:
    shown = serve_command.banner(
        ServerSettings(**flags), doubles.replaced(**changes), "http://127.0.0.1:8000", 1_500_000_000
    )
    assert line in shown.splitlines()


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_is_the_regular_way_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGINT)
    service = serve_until(lambda url: None, "", monkeypatch, lambda server: os.kill(os.getpid(), signal.SIGINT))
    assert service.closings == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_notes_about_the_file_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "server.json").write_text('{"max_quue": 3}')
    serve_until(lambda url: None, "", monkeypatch)
    assert "note: " in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("::", "http://[::1]:80"),
        ("box.lan", "http://box.lan:80"),
    ],
)
def test_base_urls(host: str, url: str) -> None:
    assert listener.base_url(host, 80) == url


MODEL = 'org/it\'s a "model"'


@pytest.mark.parametrize("needs_key", [False, True])
@pytest.mark.parametrize("model", ["demo", MODEL])
def test_snippets_are_what_their_clients_read(model: str, needs_key: bool) -> None:
    url = "http://127.0.0.1:8000"
    words = shlex.split(snippets.curl(url, model, needs_key).replace("\\\n", ""))
    assert words[:2] == ["curl", f"{url}/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == model
    assert ("Authorization: Bearer $DFLASH2_API_KEY" in words) is needs_key

    code = snippets.python_openai(url, model, needs_key)
    assert repr(model) in repr(compile(code, "snippet", "exec").co_consts)
    assert ("DFLASH2_API_KEY" in code) is needs_key

    lines = snippets.claude_code(url, model, needs_key).splitlines()
    exported = dict(shlex.split(line)[1].split("=", 1) for line in lines if line.startswith("export"))
    assert exported["ANTHROPIC_BASE_URL"] == url
    assert exported["ANTHROPIC_AUTH_TOKEN"] == ("$DFLASH2_API_KEY" if needs_key else "none")
    assert exported["ANTHROPIC_MODEL"] == exported["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == model
    assert lines[-1] == "claude"

    config = tomllib.loads(snippets.codex(url, model, needs_key))
    provider = config["model_providers"][config["model_provider"]]
    assert (config["model"], provider["base_url"], provider["wire_api"]) == (model, f"{url}/v1", "responses")
    assert provider.get("env_key") == ("DFLASH2_API_KEY" if needs_key else None)

    file = json.loads(snippets.opencode(url, model, needs_key))
    name, _, chosen = file["model"].partition("/")
    assert chosen == model
    assert list(file["provider"][name]["models"]) == [model]
    assert file["provider"][name]["options"]["baseURL"] == f"{url}/v1"
    assert file["provider"][name]["options"]["apiKey"] == ("{env:DFLASH2_API_KEY}" if needs_key else "none")


def test_its_help_imports_no_model_and_no_web() -> None:
    code = (
        "import sys\nfrom dflash2_mlx.cli import main\n"
        "try:\n    main(['serve', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'mlx', 'mlx_lm', 'transformers', 'fastapi', 'starlette', 'uvicorn', 'rich', 'numpy'}\n"
        "print('HEAVY', sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("HEAVY []\n"), done.stdout
    assert "--max-queue" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_sigterm_ends_streams_with_an_error_and_exits_with_zero(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root), "XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=root,
    )
    try:
        assert child.stdout is not None
        head = []
        for line in child.stdout:
            head.append(line)
            if line.startswith("ready"):
                break
        found = re.search(r"http://127\.0\.0\.1:(\d+)", "".join(head))
        assert found, head
        body = json.dumps(
            {"model": "demo", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        ).encode()
        with socket.create_connection(("127.0.0.1", int(found[1])), timeout=10) as sock:
            sock.sendall(
                b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            text = b""
            while b'"one"' not in text:
                text += sock.recv(65536)
            started = time.monotonic()
            child.send_signal(signal.SIGTERM)
            while piece := sock.recv(65536):
                text += piece
        assert b"event: error" in text
        assert b"overloaded_error" in text
        output, errors = child.communicate(timeout=10)
        assert (child.returncode, output, time.monotonic() - started < 5) == (0, "closed 1\n", True), errors
        assert "Traceback" not in errors
    finally:
        child.kill()
        child.communicate()
