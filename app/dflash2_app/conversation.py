"""A chat: its turns, its options, and the task that answers. It outlives the pages that show it, and knows none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_server.inference import Answer, Done, Event, Inference, Text
from dflash2_server.management import Management

log = logging.getLogger(__name__)

State = Literal["loading", "waiting", "thinking", "writing", "done", "stopped", "failed"]
RUNNING: tuple[State, ...] = ("loading", "waiting", "thinking", "writing")
# Chats that a browser's tab keeps besides the one that is shown.
KEPT_CHATS = 20
# An answer that nobody can see any more is stopped after so many seconds: longer than a reload or a nap in the network.
UNSEEN_SECONDS = 120.0
_LOOK_SECONDS = 5.0


@dataclass(eq=False)
class Reply:
    """One answer. `revision` grows with each change."""

    model: str
    plain: bool = False  # asked for with speculation off
    state: State = "waiting"
    reasoning: str = ""
    content: str = ""
    done: Done | None = None
    error: str | None = None
    thought_seconds: float | None = None
    revision: int = 0
    _thinking_since: float = 0.0

    @property
    def running(self) -> bool:
        return self.state in RUNNING

    def turn_to(self, state: State) -> None:
        if state == self.state:
            return
        if state == "thinking":
            self._thinking_since = time.monotonic()
        elif self.state == "thinking":
            self.thought_seconds = time.monotonic() - self._thinking_since
        self.state = state
        self.revision += 1

    def take(self, event: Event) -> None:
        if isinstance(event, Text) and event.kind == "reasoning":
            self.turn_to("thinking")
            self.reasoning += event.text
        elif isinstance(event, Text):
            self.turn_to("writing")
            self.content += event.text
        elif isinstance(event, Done):
            self.done = event
            self.turn_to("stopped" if event.finish_reason == "cancelled" else "done")
        self.revision += 1

    def fail(self, message: str) -> None:
        self.error = message
        self.turn_to("failed")


@dataclass(eq=False)
class Turn:
    """A message and its answer; `other` is the same with speculation off, where that was asked for."""

    prompt: str
    reply: Reply
    other: Reply | None = None


@dataclass
class Options:
    """What the next message is sent with; None leaves it to the model's settings."""

    model: str | None = None
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    compare: bool = False

    def parameters(self) -> dict[str, Any]:
        given = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(eq=False)
class Chat:
    """Turns, the text that is not sent yet, and the answer that runs. `seen` tells whether anybody can see it."""

    manager: Management
    options: Options = field(default_factory=Options)
    turns: list[Turn] = field(default_factory=list)
    draft: str = ""
    seen: Callable[[], bool] = lambda: True
    _task: asyncio.Task[None] | None = None
    _answer: Answer | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def title(self) -> str:
        return " ".join(self.turns[0].prompt.split())[:60] if self.turns else "New chat"

    def send(self, text: str) -> None:
        """Answer a message. Raises RequestError while an answer runs, and for what has no text or no model."""
        self._check()
        if not text.strip():
            raise RequestError("the message is empty", param="messages")
        if self.options.model is None:
            raise RequestError("no model is chosen: load one, or download one first", param="model")
        turn = Turn(text, Reply(self.options.model))
        self.turns.append(turn)
        self.draft = ""
        self._start(turn)

    def again(self) -> None:
        """Answer the last message anew, with the options of now. Raises RequestError while an answer runs."""
        self._check()
        if self.turns:
            last = self.turns[-1]
            last.reply, last.other = Reply(self.options.model or last.reply.model), None
            self._start(last)

    async def stop(self) -> None:
        """End the running answer; what there is of it stays."""
        if self._answer is not None:
            await self._answer.aclose()
        elif self._task is not None:
            self._task.cancel()

    def messages(self, turn: Turn) -> list[dict[str, Any]]:
        """What the model is given: turns that have an answer, then this one's message."""
        found: list[dict[str, Any]] = []
        if self.options.system.strip():
            found.append({"role": "system", "content": self.options.system})
        for earlier in self.turns[: self.turns.index(turn)]:
            if earlier.reply.content:
                thoughts = {"reasoning_content": earlier.reply.reasoning} if earlier.reply.reasoning else {}
                found.append({"role": "user", "content": earlier.prompt})
                found.append({"role": "assistant", "content": earlier.reply.content, **thoughts})
        return [*found, {"role": "user", "content": turn.prompt}]

    def _check(self) -> None:
        if self.running:
            raise RequestError("an answer is running: stop it first (Escape)", param="messages")

    def _start(self, turn: Turn) -> None:
        self._task = asyncio.ensure_future(self._run(turn))

    async def _run(self, turn: Turn) -> None:
        watch = asyncio.ensure_future(self._watch())
        try:
            messages, parameters = self.messages(turn), self.options.parameters()
            await self._fill(turn.reply, messages, parameters)
            if self.options.compare and turn.reply.state == "done" and speculated(turn.reply):
                turn.other = Reply(turn.reply.model, plain=True)
                await self._fill(turn.other, messages, parameters | {"verify_mode": "off"})
        finally:
            watch.cancel()

    async def _fill(self, reply: Reply, messages: list[dict[str, Any]], parameters: dict[str, Any]) -> None:
        with self._failing(reply):
            await self._load(reply)
            inference = Inference(model=reply.model, messages=messages, parameters=parameters)
            self._answer = answer = await self.manager.service.submit(inference)
            try:
                async for event in answer:
                    reply.take(event)
            finally:
                self._answer = None
                await answer.aclose()

    async def _load(self, reply: Reply) -> None:
        """Asked for here, and not left to the request, so that its error is the load's."""
        view = self.manager.model(reply.model)
        if view.state != "ready":
            if not self.manager.settings.load_on_request:
                raise RequestError(
                    f"{view.id} is not loaded, and loading on request is turned off: load it on the page Models",
                    param="model",
                )
            reply.turn_to("loading")
            await self.manager.load(view.id)
        reply.turn_to("waiting")

    @contextlib.contextmanager
    def _failing(self, reply: Reply) -> Iterator[None]:
        """Whatever happens, the reply ends in a state that says so."""
        try:
            yield
            if reply.running:
                reply.turn_to("stopped")
        except asyncio.CancelledError:
            reply.turn_to("stopped")
            raise
        except DFlashError as error:
            reply.fail(str(error))
        except Exception as error:
            log.exception("a chat's answer failed")
            reply.fail(f"{type(error).__name__}: {error}")

    async def _watch(self) -> None:
        """Stop an answer that no page has shown for long."""
        unseen = 0.0
        while unseen < UNSEEN_SECONDS:
            await asyncio.sleep(_LOOK_SECONDS)
            unseen = 0.0 if self.seen() else unseen + _LOOK_SECONDS
        log.info("an answer of the page Chat is stopped: its page is gone")
        await self.stop()


def speculated(reply: Reply) -> bool:
    """Whether it was decoded with a drafter in force."""
    return reply.done is not None and reply.done.engine.get("engine") != "plain"


class Chats:
    """The chats of one tab: the one that is shown, and those before it, the latest first."""

    def __init__(self, manager: Management, seen: Callable[[], bool] = lambda: True) -> None:
        self._manager = manager
        self._seen = seen
        self.current = Chat(manager, seen=seen)
        self.earlier: list[Chat] = []

    def new(self) -> None:
        """An empty chat with the same options. One that still answers goes on."""
        if self.current.turns:
            self.open(Chat(self._manager, options=self.current.options, seen=self._seen))

    def open(self, chat: Chat) -> None:
        others = [other for other in [self.current, *self.earlier] if other is not chat and other.turns]
        self.current, self.earlier = chat, others[:KEPT_CHATS]
