"""The pages over the fake manager, with answers by script: `python -m tests.app.scripted_pages PORT`.

The message's first word says what the answer is: see `SCRIPTS`; any other is told what the model has seen. Time
stands still, but for `tick`. GET /test/hold shuts the gate at which loads and thinking answers wait, and
/test/release opens it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import uvicorn

from dflash2_app.pages import build
from dflash2_mlx.errors import QueueFull
from dflash2_mlx.settings import ServerSettings
from dflash2_server.app import create_app
from dflash2_server.inference import Inference, Text
from tests.manager.doubles import FakeManager
from tests.server.doubles import ENGINE, TIMINGS, Step, done

# Shut, it holds answers that think, and loads.
GATE = asyncio.Event()
LONG = "\n\n".join(f"Paragraph {n}: " + "words that go on and on. " * 12 for n in range(1, 13))
UNSAFE = (
    "<script>window.stolen = 1</script> <img src=x onerror='window.stolen = 2'>\n\n"
    "[a link](https://example.org/page) [bad](javascript:window.stolen=3) ![picture](https://example.org/pixel.png)\n\n"
    "`<b>code</b>` and **bold**\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
)


def endings(inference: Inference) -> Step:
    """The figures of a run with speculation, or without."""
    plain = inference.parameters.get("verify_mode") == "off"
    timings = TIMINGS | {
        "predicted_n": 128,
        "predicted_ms": 5000.0 if plain else 2000.0,
        "predicted_per_second": 25.6 if plain else 64.0,
        "tokens_per_cycle": 1.0 if plain else 3.1,
        "draft_n": 0 if plain else 140,
        "draft_n_accepted": 0 if plain else 84,
    }
    engine = ENGINE | ({"verify_mode": "off"} if plain else {})
    return done(completion_tokens=128, cached_tokens=5, reasoning_tokens=12, timings=timings, engine=engine)


def think(inference: Inference) -> list[Step]:
    thoughts: list[Step] = [Text("reasoning", "First "), Text("reasoning", "one thing."), GATE]
    return [*thoughts, Text("content", "Then it."), endings(inference)]


def long(inference: Inference) -> list[Step]:
    return [*(Text("content", LONG[i : i + 40]) for i in range(0, len(LONG), 40)), endings(inference)]


def slow(inference: Inference) -> list[Step]:
    pieces: list[Step] = []
    for n in range(400):
        pieces += [Text("content", f"word{n} "), 0.05]
    return [*pieces, endings(inference)]


def fork(inference: Inference) -> list[Step]:
    text = "The same, then that." if inference.parameters.get("verify_mode") == "off" else "The same, then this."
    return [Text("content", text), endings(inference)]


SCRIPTS: dict[str, Callable[[Inference], list[Step]]] = {
    "think": think,
    "slow": slow,
    "fork": fork,
    "long": long,
    "unsafe": lambda inference: [Text("content", UNSAFE), endings(inference)],
    "break": lambda inference: [Text("content", "Half of"), QueueFull("the queue is full: try again", retry_after=1)],
}


def script(inference: Inference) -> list[Step]:
    assert inference.messages is not None
    said = str(inference.messages[-1]["content"])
    chosen = SCRIPTS.get(said.split()[0])
    if chosen is not None:
        return chosen(inference)
    seen = " / ".join(f"{message['role']}: {message['content']}" for message in inference.messages)
    return [Text("content", f"Seen: {seen}; {dict(inference.parameters)}"), endings(inference)]


async def _at_the_gate() -> None:
    await GATE.wait()


async def _hold() -> None:
    GATE.clear()


async def _release() -> None:
    GATE.set()


async def serve(port: int) -> None:
    settings = ServerSettings(port=port)
    manager = FakeManager(settings)

    def events(inference: Inference) -> list[Step]:
        """Time goes on by a second with each answer to `tick`."""
        if str((inference.messages or [{}])[-1].get("content")) == "tick":
            ticks.append(asyncio.ensure_future(manager.tick()))
        return script(inference)

    ticks: list[asyncio.Future[None]] = []
    manager.service.events = events
    GATE.set()
    await manager.save_settings("demo", {"dflash_enabled": True})
    await manager.load("demo")
    for _ in range(6):  # some figures to show
        manager.busy("demo")
        await manager.tick()
    manager.step = _at_the_gate
    app = create_app(manager.service, settings, manager=manager, pages=build(manager))
    app.add_api_route("/test/hold", _hold)
    app.add_api_route("/test/release", _release)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning", lifespan="on"))
    serving = asyncio.ensure_future(server.serve())
    while not server.started and not serving.done():
        await asyncio.sleep(0.02)
    print("ready", flush=True)
    await serving


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
