"""A Hub on 127.0.0.1 that huggingface_hub believes in, and that misbehaves on request.

`python -m tests.manager.fake_hub PORT` serves a tiny target and its drafter until it is stopped.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.manager.fake_repo import ALWAYS, Repo, checksum, git_checksum, is_lfs

__all__ = ["ALWAYS", "DRAFTER", "TARGET", "FakeHub", "Repo", "tiny_pair"]

TARGET, DRAFTER = "tiny-org/Tiny-Llama-4bit", "tiny-org/Tiny-Llama-DFlash2"
_SLICE = 1024
_INVALID = "Invalid credentials in Authorization header"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None


class FakeHub:
    """A context manager. `url` is the endpoint; large files come from a second port, as from a CDN.

    `tokens` are the valid ones: any other is refused for every repository. `offline` closes the ports.
    """

    def __init__(
        self, repos: Mapping[str, Mapping[str, bytes]], *, tokens: set[str] | None = None, port: int = 0
    ) -> None:
        self.repos = {id: Repo(id=id, files=dict(files)) for id, files in repos.items()}
        self.tokens = tokens or set()
        self.requests: list[Request] = []
        self.delay = 0.0  # seconds before a search is answered
        self._sent = 0
        self._open: set[socket.socket] = set()
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._ports = [port, 0]
        self._servers: list[ThreadingHTTPServer] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> FakeHub:
        self.online()
        return self

    def __exit__(self, *_: object) -> None:
        self.offline()

    def repo(self, id: str) -> Repo:
        return self.repos[id]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def cdn(self) -> str:
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def sent(self) -> int:
        """Bytes of file contents that have gone out."""
        with self._changed:
            return self._sent

    def wait_for_bytes(self, count: int, timeout: float = 10.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._sent >= count, timeout), f"{self._sent} bytes of {count}"

    def wait_for_quiet(self, timeout: float = 10.0) -> None:
        """Until no transfer is open any more."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self._open, timeout), "a transfer goes on"

    def asked(self, part: str) -> list[Request]:
        return [request for request in list(self.requests) if part in request.path]

    def online(self) -> None:
        for number, port in enumerate(self._ports):
            handler = type("Handler", (_Handler,), {"hub": self})
            server = _Server(("127.0.0.1", port), handler)
            self._ports[number] = server.server_address[1]
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            thread.start()
            self._servers.append(server)
            self._threads.append(thread)

    def offline(self) -> None:
        """Ports closed, connections cut; `online` opens the same ports again."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self.release()
        with self._changed:
            for connection in list(self._open):
                _cut(connection)
        for thread in self._threads:
            thread.join()
        self._servers, self._threads = [], []

    def release(self) -> None:
        """Let go of what is held, and hold no more."""
        for repo in self.repos.values():
            repo.hold_at = None
        self._released.set()

    def opened(self, connection: socket.socket) -> None:
        with self._changed:
            self._open.add(connection)

    def ended(self, connection: socket.socket) -> None:
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def count(self, number: int) -> None:
        with self._changed:
            self._sent += number
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """At most until the release."""
        self._released.wait(seconds)

    def hold(self, connection: socket.socket) -> bool:
        """Wait for the release. False when the other side has gone."""
        connection.settimeout(0.02)
        while not self._released.is_set():
            try:
                if not connection.recv(1):
                    return False
            except TimeoutError:
                continue
            except OSError:
                return False
        connection.settimeout(None)
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 32

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no news."""


def _cut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a head and a body that follow each other take 40 ms
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, link = self.hub, urlsplit(self.path)
        path, query = unquote(link.path), parse_qs(link.query)
        token = self.headers.get("Authorization")
        hub.requests.append(Request(self.command, self.path, self.headers.get("Range"), token))
        if path.startswith("/cdn/"):
            repo_id, file = path.removeprefix("/cdn/").split("//", 1)
            self._content(hub.repos[repo_id], file)
        elif token is not None and token.removeprefix("Bearer ") not in hub.tokens:
            self._refuse(401, message=_INVALID)
        elif path == "/api/models":
            self._json(self._listing(query))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/[^/]+)?/?", path):
            self._about(match[1], match[2], query)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._resolve(match[1], match[2])
        else:
            self._refuse(404)

    def _listing(self, query: dict[str, list[str]]) -> list[dict[str, Any]]:
        self.hub.wait(self.hub.delay)
        search = query.get("search", [""])[0].casefold()
        author = query.get("author", [""])[0]
        tags = set(query.get("filter", []))
        found = [
            repo
            for repo in self.hub.repos.values()
            if not (repo.hidden or repo.private)
            and search in repo.id.casefold()
            and repo.id.startswith(f"{author}/" if author else "")
            and tags <= set(repo.tags)
        ]
        found.sort(key=lambda repo: -repo.downloads)
        return [repo.info() for repo in found[: int(query.get("limit", ["1000"])[0])]]

    def _about(self, repo_id: str, what: str | None, query: dict[str, list[str]]) -> None:
        repo = self._allowed(repo_id)
        if repo is None:
            return
        if what == "tree":
            self._json([repo.entry(path) for path in repo.files])
            return
        self._json({**repo.info(), "siblings": [repo.sibling(path) for path in repo.files]})

    def _allowed(self, repo_id: str) -> Repo | None:
        """The repository; without one the refusal is sent already."""
        repo = self.hub.repos.get(repo_id)
        authorized = self.headers.get("Authorization") is not None
        if repo is None or repo.hidden or (repo.private and not authorized):
            self._refuse(404 if authorized else 401, code="RepoNotFound", message="Repository not found")
        elif repo.limited > 0:
            repo.limited -= 1
            after = {} if repo.retry_after is None else {"Retry-After": repo.retry_after}
            self._refuse(429, **after)
        elif repo.broken > 0:
            repo.broken -= 1
            self._refuse(503)
        else:
            return repo
        return None

    def _resolve(self, repo_id: str, path: str) -> None:
        repo = self._allowed(repo_id)
        if repo is None:
            return
        if repo.gated:
            status = 401 if self.headers.get("Authorization") is None else 403
            self._refuse(status, code="GatedRepo", message=f"Access to model {repo_id} is restricted")
        elif path not in repo.files:
            self._refuse(404, code="EntryNotFound")
        elif is_lfs(path):
            content = repo.files[path]
            self.send_response(302)
            self.send_header("Location", f"{self.hub.cdn}/cdn/{repo_id}//{quote(path)}?Signature=secret")
            self.send_header("X-Repo-Commit", repo.commit)
            self.send_header("X-Linked-Etag", f'"{checksum(content)}"')
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._content(repo, path)

    def _content(self, repo: Repo, path: str) -> None:
        content = repo.files[path]
        large = len(content) >= repo.large
        if large and repo.corrupt > 0 and self.command == "GET":
            repo.corrupt -= 1
            content = bytes([content[0] ^ 1]) + content[1:]
        if large and repo.short > 0 and self.command == "GET":
            repo.short -= 1
            content = content[:-1]
        first = self._first(repo, content)
        if first is None:
            return
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{checksum(content) if is_lfs(path) else git_checksum(content)}"')
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("Content-Length", str(len(content) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self._send(repo, content, first, faults=large)

    def _first(self, repo: Repo, content: bytes) -> int | None:
        """The first byte asked for; None where the refusal is sent already."""
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "bytes=0-")
        first = int(asked[1]) if asked and not repo.without_ranges else 0
        if first and first >= len(content):
            self._refuse(416)
            return None
        return first

    def _send(self, repo: Repo, content: bytes, first: int, *, faults: bool) -> None:
        hub, place = self.hub, first
        hub.opened(self.connection)
        try:
            while place < len(content):
                end = min(place + _SLICE, len(content))
                if faults and repo.drops > 0 and repo.drop_at is not None:
                    if place >= repo.drop_at:
                        repo.drops -= 1
                        _cut(self.connection)
                        return
                    end = min(end, repo.drop_at)
                if faults and repo.hold_at is not None and repo.holds > 0:
                    if place >= repo.hold_at:
                        repo.holds -= 1
                        if not hub.hold(self.connection):
                            self.close_connection = True
                            return
                        continue
                    end = min(end, repo.hold_at)
                self.wfile.write(content[place:end])
                hub.count(end - place)
                if faults and repo.slow:
                    hub.wait((end - place) / repo.slow)
                place = end
        except OSError:
            self.close_connection = True
        finally:
            hub.ended(self.connection)

    def _json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _refuse(self, status: int, *, code: str | None = None, message: str | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in [("X-Error-Code", code), ("X-Error-Message", message), *headers.items()]:
            if value is not None:
                self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


def tiny_pair() -> dict[str, dict[str, bytes]]:
    """A target of the llama family and a DFlash 2 drafter that fits it, as repositories."""
    from tests.tiny_checkpoints import write_target
    from tests.tiny_drafters import tiny_drafter_config, write_drafter

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        target = write_target(folder / "target")
        write_drafter(folder / "drafter", tiny_drafter_config(target))
        return {TARGET: _read(folder / "target"), DRAFTER: _read(folder / "drafter")}


def _read(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def main() -> None:
    with FakeHub(tiny_pair(), port=int(sys.argv[1])) as hub:
        hub.repo(DRAFTER).tags.append("dflash")
        print(hub.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
