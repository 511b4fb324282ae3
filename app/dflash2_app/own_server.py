"""The server behind the window: one that runs already, or a process of `dflash2-mlx serve` that ends with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dflash2_mlx.errors import DFlashError, RequestError

COMMAND = (sys.executable, "-P", "-m", "dflash2_mlx.cli", "serve")
# Loading happens in it, and may take minutes; it is over when the process ends.
START_SECONDS = 900.0
# The server gives its streams 10 s, and its engine the rest.
STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.2
_HEALTH_SECONDS = 3.0
_LOG_LINES = 12
# No proxy: it is this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerFailed(DFlashError, RuntimeError):
    """The server that was started ended, or did not answer."""


@dataclass(frozen=True)
class Served:
    """A server that answers. `child` is None for one that ran before."""

    url: str
    child: subprocess.Popen[bytes] | None
    log: Path | None


def default_log() -> Path:
    from platformdirs import user_log_path

    return user_log_path("dflash2-mlx", appauthor=False) / "app-server.log"


def is_ours(url: str) -> bool | None:
    """Whether a server of this program answers there; False: something else does, None: nothing."""
    try:
        with _opener.open(f"{url}/health", timeout=_HEALTH_SECONDS) as answer:
            told = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except urllib.error.URLError as error:
        return None if isinstance(error.reason, ConnectionError | socket.gaierror) else False
    except (OSError, ValueError):
        return False
    return isinstance(told, dict) and told.get("server") == "dflash2-mlx"


@contextmanager
def serving(
    url: str, command: Sequence[str], secrets: Mapping[str, str], log: Path, say: Callable[[str], None]
) -> Iterator[Served]:
    """The server at that address, started by `command` if there is none, and then stopped at the end of the block.

    Raises RequestError where something else answers there, ServerFailed where it does not start.
    """
    found = is_ours(url)
    if found is False:
        raise RequestError(
            f"something else listens at {url}, or a server that is not ready yet: wait for it, or name another --port",
            param="port",
        )
    if found:
        say(f"a server runs at {url}")
        yield Served(url, None, None)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env={**os.environ, **secrets, "PYTHONUNBUFFERED": "1"},
            # A Ctrl-C of the terminal comes to us; we stop it then.
            start_new_session=True,
        )  # fmt: skip
    try:
        say(f"starting the server; its log is {log}")
        _await(url, child, log)
        yield Served(url, child, log)
    finally:
        stop(child)


def free_port(host: str) -> int:
    """A port that nobody listens on now."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        return int(sock.getsockname()[1])


def stop(child: subprocess.Popen[bytes]) -> None:
    """As a service manager does: the signal to end, and the one that cannot be refused after a while."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_SECONDS)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.kill()
    child.wait()


def last_lines(log: Path) -> str:
    """The end of the log, where the cause stands."""
    return "\n".join(log.read_text("utf-8", errors="replace").splitlines()[-_LOG_LINES:])


def _await(url: str, child: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if child.poll() is not None:
            raise ServerFailed(f"the server ended with code {child.returncode}: {last_lines(log) or 'it said nothing'}")
        if is_ours(url):
            return
        time.sleep(_LOOK_SECONDS)
    raise ServerFailed(f"the server has not answered at {url} for {START_SECONDS:.0f} s; its log is {log}")
