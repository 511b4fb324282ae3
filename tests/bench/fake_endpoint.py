"""A small server that answers chat completions as a test tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

# What an answer does next: send a chunk or a raw line, call something (to wait), or drop the connection.
DROP = object()
Step = dict[str, Any] | str | Callable[[], None] | object


def chunk(content: str = "", *, reasoning: str = "", finish: str | None = None, **extra: Any) -> dict[str, Any]:
    delta = {"content": content} | ({"reasoning_content": reasoning, "reasoning": reasoning} if reasoning else {})
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]} | extra


def usage(prompt: int, completion: int, **extra: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion} | extra}


class FakeEndpoint:
    """`steps` are those of every answer; `status`, `body` and `headers` are given in place of one where set.

    `requests` are (path, headers, parsed body).
    """

    def __init__(self) -> None:
        self.steps: Sequence[Step] = [chunk("Hello"), chunk(" there", finish="stop"), usage(7, 2), "[DONE]"]
        self.status = 200
        self.body: Any = None
        self.headers: dict[str, str] = {}
        self.models_status = 200
        self.models: Any = {"data": [{"id": "one"}, {"id": "two"}]}
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.url = ""

    @property
    def asked(self) -> Any:
        """The body of the latest request for an answer."""
        return next(body for path, _, body in reversed(self.requests) if path.endswith("completions"))


@contextmanager
def serving() -> Iterator[FakeEndpoint]:
    """On a free port of this machine."""
    fake = FakeEndpoint()

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "fake/1", ""
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.requests.append((self.path, dict(self.headers), None))
            self._send(fake.models_status, fake.models)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fake.requests.append((self.path, dict(self.headers), body))
            if fake.status != 200:
                self._send(fake.status, fake.body)
            else:
                self._stream()

        def _send(self, status: int, body: Any) -> None:
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (fake.headers | {"Content-Length": str(len(data))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def _stream(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for step in fake.steps:
                if step is DROP:
                    break
                if callable(step):
                    step()
                    continue
                text = step if isinstance(step, str) else json.dumps(step)
                try:
                    self.wfile.write(f": a remark\ndata: {text}\n\n".encode())
                except OSError:
                    break
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
