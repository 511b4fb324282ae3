"""A service without an engine: it gives the events that a test writes down, and notes what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

try:  # what newer releases of starlette, openai and anthropic use
    import httpx2 as httpx
except ModuleNotFoundError:
    import httpx  # type: ignore[no-redef]
from fastapi import FastAPI
from starlette.testclient import TestClient

from dflash2_mlx.errors import EngineBusy, ModelNotFound
from dflash2_server.inference import Done, Event, Inference, ModelInfo, Text

BASE_URL = "http://127.0.0.1:8000"

# What an answer does next: give an event, raise an error, wait for an asyncio.Event, or sleep so many seconds.
Step = Event | BaseException | asyncio.Event | float

TIMINGS = {
    "prompt_n": 7,
    "prompt_ms": 10.0,
    "predicted_n": 2,
    "predicted_ms": 20.0,
    "predicted_per_second": 100.0,
    "cache_n": 0,
    "draft_n": 4,
    "draft_n_accepted": 1,
    "tokens_per_cycle": 2.0,
}
ENGINE = {
    "engine": "dflash2",
    "block_size": 5,
    "verify_mode": "dflash",
    "draft_quant": None,
    "fallback_reason": None,
    "width_reason": "block 5, as asked for",
    "cycles_by_width": {"5": 1},
}
DEMO = ModelInfo(
    id="demo",
    created=1_760_000_000,
    context_length=2048,
    engine="dflash2",
    block_size=5,
    drafter="demo",
    fallback_reason=None,
    aliases=("gpt-4o", "org/aliased"),
)


def replaced(**changes: Any) -> ModelInfo:
    """The double's model with some facts changed."""
    return replace(DEMO, **changes)


def done(finish_reason: Any = "stop", **changes: Any) -> Done:
    """The end of an answer to a prompt of 7 tokens, of which none was cached."""
    facts: dict[str, Any] = {
        "finish_reason": finish_reason,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "completion_tokens": 2,
        "reasoning_tokens": 0,
        "timings": TIMINGS,
        "engine": ENGINE,
    }
    return Done(**(facts | changes))


def hello() -> list[Step]:
    """The answer where a test gives none."""
    return [Text("content", "Hello"), Text("content", " there"), done()]


class ScriptedAnswer:
    """An answer of steps. `closed` counts the calls of `aclose`; `finished` is set once `Done` went out.

    After `aclose` the iteration ends, also one that waits in a step.
    """

    def __init__(
        self, steps: Iterable[Step], prompt_tokens: int, token_text: Callable[[int], str] = "<{}>".format
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.token_text = token_text
        self.closed = 0
        self.finished = False
        self._steps = iter(steps)
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        self._failure: Exception | None = None

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._closing.is_set():
            step = next(self._steps, None)
            if step is None:
                break
            if isinstance(step, BaseException):
                raise step
            if isinstance(step, asyncio.Event):
                await self._unless_closed(step.wait())
            elif isinstance(step, float | int):
                await self._unless_closed(asyncio.sleep(step))
            else:
                self.finished = self.finished or isinstance(step, Done)
                return step
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1
        self._closing.set()

    def fail(self, error: Exception) -> None:
        """From any thread: the iteration ends with this error, as when the engine stops."""
        self._failure = error
        self._loop.call_soon_threadsafe(self._closing.set)

    async def _unless_closed(self, step: Any) -> None:
        tasks = [asyncio.ensure_future(step), asyncio.ensure_future(self._closing.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()


class ScriptedService:
    """`dflash2_server.inference.Service` by script.

    `events` are the steps of every answer, or a function of the request that gives them. `submit_error` is raised by
    `submit` and `count` instead. `inferences` are the requests that were submitted, `counted` those that were
    counted, `answers` what was handed out, in order; `closings` counts the calls of `close`.
    """

    def __init__(
        self,
        events: Sequence[Step] | Callable[[Inference], Sequence[Step]] | None = None,
        *,
        prompt_tokens: int = 7,
        models: Sequence[ModelInfo] = (DEMO,),
        submit_error: BaseException | None = None,
        ready: tuple[bool, str] = (True, "ready"),
    ) -> None:
        self.events = hello() if events is None else events
        self.prompt_tokens = prompt_tokens
        self.submit_error = submit_error
        self.ready = ready
        self.inferences: list[Inference] = []
        self.counted: list[Inference] = []
        self.answers: list[ScriptedAnswer] = []
        self.closings = 0
        self._models = list(models)

    @property
    def inference(self) -> Inference:
        """The latest request that was submitted."""
        return self.inferences[-1]

    @property
    def closed(self) -> bool:
        """Whether every answer was closed."""
        return all(answer.closed for answer in self.answers)

    async def submit(self, inference: Inference) -> ScriptedAnswer:
        self.inferences.append(inference)
        self._check(inference)
        steps = self.events(inference) if callable(self.events) else self.events
        answer = ScriptedAnswer(steps, self.prompt_tokens, self.token_text)
        self.answers.append(answer)
        return answer

    async def count(self, inference: Inference) -> int:
        self.counted.append(inference)
        self._check(inference)
        return self.prompt_tokens

    def close(self) -> None:
        self.closings += 1
        for answer in self.answers:
            answer.fail(EngineBusy("the server is stopping"))

    def models(self) -> list[ModelInfo]:
        return list(self._models)

    def model(self, name: str | None) -> ModelInfo:
        for model in self._models:
            if name is None or name == model.id or name in model.aliases:
                return model
        raise ModelNotFound(f"no model {name!r} is served: there are {', '.join(model.id for model in self._models)}")

    def token_text(self, token: int) -> str:
        return f"<{token}>"

    def readiness(self) -> tuple[bool, str]:
        return self.ready

    def metrics(self) -> str:
        return "# TYPE dflash_up gauge\ndflash_up 1.0\n"

    def _check(self, inference: Inference) -> None:
        if self.submit_error is not None:
            raise self.submit_error
        self.model(inference.model)


def app(service: ScriptedService, **settings: Any) -> FastAPI:
    """The whole application over a double; `settings` are `ServerSettings`' fields."""
    from dflash2_mlx.settings import ServerSettings
    from dflash2_server.app import create_app

    return create_app(service, ServerSettings(**settings))


def client(service: ScriptedService, **settings: Any) -> httpx.AsyncClient:
    """An asynchronous client, to be used `async with`. ASGITransport gives a stream only when it has ended."""
    transport = httpx.ASGITransport(app=app(service, **settings), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=BASE_URL)


def test_client(service: ScriptedService, **settings: Any) -> TestClient:
    """A client for plain tests."""
    return TestClient(app(service, **settings), base_url=BASE_URL, raise_server_exceptions=False)


test_client.__test__ = False  # type: ignore[attr-defined]  # pytest would take it for a test


class Connection:
    """One POST on a bare ASGI connection, for what a client library hides: the pieces, and leaving in the middle.

    `pieces` are the texts of the body as they were sent, `status` and `headers` what came before them.
    """

    def __init__(self, application: Any, path: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.pieces: list[str] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self._app = application
        self._left = asyncio.Event()
        self._incoming = [body]
        given = {"host": "127.0.0.1:8000", "content-type": "application/json"} | (headers or {})
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8000),
        }

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def leave(self) -> None:
        """The client closes the connection."""
        self._left.set()

    async def run(self) -> None:
        """Until the application is through with the request."""
        await self._app(self._scope, self._receive, self._send)

    async def until(self, text: str) -> None:
        """Returns once the body holds `text`; TimeoutError after 5 s."""
        async with asyncio.timeout(5):
            while text not in self.text:
                await asyncio.sleep(0.001)

    async def _receive(self) -> dict[str, Any]:
        if self._incoming:
            return {"type": "http.request", "body": self._incoming.pop(0), "more_body": bool(self._incoming)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.pieces.append(message.get("body", b"").decode())
