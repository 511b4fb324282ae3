"""A bound port, and the HTTP server on it until a signal says to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from dflash2_mlx.errors import RequestError

# Clients that keep connections (httpx: 5 s) must be the first to give one up, or a request meets a closed one.
KEEP_ALIVE_SECONDS = 75
# Streams have their error event by then; what still hangs is cut.
GRACE_SECONDS = 10
# Idle ones count too; who comes beyond gets a 503. Far more than the queue takes.
MOST_CONNECTIONS = 1000
_SIGNAL_SECONDS = 0.2  # between two looks whether a signal came, while it opens


def bind(host: str, port: int) -> socket.socket:
    """A listening socket: who connects before the server runs waits. Raises RequestError with the cause."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.create_server(address[:2], family=kind)
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise RequestError(
            f"cannot listen on {host!r}, port {port}: {cause}; --host and --port name another", param="port"
        ) from None
    sock.setblocking(False)
    return sock


def base_url(host: str, port: int) -> str:
    """Where a client on this machine finds the server: an address that means all of them is no address to ask."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"


class Server(uvicorn.Server):
    """Uvicorn's server, that calls `close` when it is to stop, before it waits for the responses that still run.

    `opening` is awaited before it answers, on its event loop, `closing` before `close`.
    """

    def __init__(
        self,
        app: FastAPI,
        close: Callable[[], None],
        *,
        opening: Callable[[], Awaitable[None]] | None = None,
        closing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="on",
                ws="websockets-sansio",
                # The one that uvicorn always brings: what else it would pick depends on what is installed.
                http="h11",
                limit_concurrency=MOST_CONNECTIONS,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._close, self._opening, self._closing = close, opening, closing

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._opening is not None:
            opening = asyncio.ensure_future(self._opening())
            while not opening.done() and not self.should_exit:
                await asyncio.wait([opening], timeout=_SIGNAL_SECONDS)
            if self.should_exit:
                opening.cancel()
                return
            opening.result()
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._closing is not None:
            await self._closing()
        await asyncio.to_thread(self._close)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Uvicorn would raise the signal again in the end; here it is the regular way to stop."""
        with _handling((signal.SIGINT, signal.SIGTERM), self.handle_exit):
            yield


def serve(server: Server, sock: socket.socket) -> None:
    """Answer requests until SIGINT, SIGTERM or `server.should_exit`."""
    asyncio.run(server.serve(sockets=[sock]))


def configure_logging(level: str) -> None:
    """To stderr; other libraries only from warnings on."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("dflash2_mlx", "dflash2_server"):
        logging.getLogger(name).setLevel(level.upper())


@contextmanager
def _handling(signals: tuple[signal.Signals, ...], handler: Callable[..., None]) -> Iterator[None]:
    """Only the main thread may set handlers; elsewhere `should_exit` stops the server."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
