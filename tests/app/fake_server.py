"""The pages over a manager in memory, on a real port: `python -m tests.app.fake_server PORT`.

For looking at the pages, and for browser tests. It ends at SIGTERM or SIGINT. It prints "ready" once it answers.
"""

from __future__ import annotations

import argparse
import asyncio

import uvicorn
from pydantic import SecretStr

from dflash2_app.pages import build
from dflash2_mlx.settings import ServerSettings
from dflash2_server.app import create_app
from dflash2_server.downloads import search
from tests.manager.doubles import FakeManager, living
from tests.manager.fake_downloads import fake_search


async def serve(port: int, *, step_seconds: float, tick_seconds: float, key: str | None, empty: bool) -> None:
    """Until a signal. A tick is a second of the fake manager's time; 0: time stands still."""
    settings = ServerSettings(port=port, api_key=[SecretStr(key)] if key else [])
    manager = FakeManager(settings, step_seconds=step_seconds)
    search.search = fake_search
    if empty:
        for view in manager.models():
            if view.deletable:
                await manager.delete(view.id)
    app = create_app(manager.service, settings, manager=manager, pages=build(manager))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on"))
    if not tick_seconds:
        await _announced(server)
        return
    async with living(manager, seconds=tick_seconds):
        await _announced(server)


async def _announced(server: uvicorn.Server) -> None:
    serving = asyncio.ensure_future(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    await serving


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--step-seconds", type=float, default=0.6, help="of each step of a load")
    parser.add_argument("--tick-seconds", type=float, default=1.0, help="0: time stands still")
    parser.add_argument("--key", help="an API key that is then needed")
    parser.add_argument("--empty", action="store_true", help="nothing on disk but the demo")
    given = parser.parse_args()
    asyncio.run(
        serve(given.port, step_seconds=given.step_seconds, tick_seconds=given.tick_seconds, key=given.key,
              empty=given.empty)
    )  # fmt: skip


if __name__ == "__main__":
    main()
