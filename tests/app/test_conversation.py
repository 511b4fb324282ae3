"""A chat without a page: what is sent, what is kept, and how it ends. And what Markdown becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from dflash2_app import answer_words, conversation
from dflash2_app.conversation import Chat, Chats, Reply
from dflash2_app.markdown import plain_to_html, to_html
from dflash2_mlx.errors import QueueFull, RequestError
from dflash2_mlx.settings import ServerSettings
from dflash2_server.inference import Done, Inference, Text
from tests.manager.doubles import FakeManager
from tests.manager.fake_catalog import DAMAGED, LOAD_ERROR, TARGET
from tests.server.doubles import ENGINE, TIMINGS, Step, done


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(10):
            await coroutine

    asyncio.run(limited())


async def chat_with(*steps: Step, model: str = "demo", **settings: Any) -> Chat:
    """A chat with a loaded model whose answers are these steps."""
    manager = FakeManager(ServerSettings(**settings))
    if steps:
        manager.service.events = list(steps)
    if model == "demo":
        await manager.load(model)
    chat = Chat(manager)
    chat.options.model = model
    return chat


async def ended(chat: Chat) -> Reply:
    while chat.running:
        await asyncio.sleep(0)
    return chat.turns[-1].reply


async def until(reply: Reply, state: str) -> None:
    while reply.state != state:
        await asyncio.sleep(0)


def test_thoughts_and_text_are_kept_apart_and_come_with_the_figures() -> None:
    async def body() -> None:
        chat = await chat_with(Text("reasoning", "hm"), Text("content", "It is "), Text("content", "so."), done())
        chat.send("Is it?")
        reply = await ended(chat)
        assert (reply.state, reply.reasoning, reply.content) == ("done", "hm", "It is so.")
        assert reply.done is not None
        assert reply.thought_seconds is not None

    run(body())


def test_the_model_is_given_what_was_answered_with_its_thoughts_and_options() -> None:
    async def body() -> None:
        chat = await chat_with(Text("reasoning", "hm"), Text("content", "Yes."), done())
        chat.options.system, chat.options.temperature, chat.options.max_tokens = "Be short.", 0.5, 20
        chat.send("One?")
        await ended(chat)
        chat.manager.service.events = [QueueFull("the queue is full", retry_after=1)]  # type: ignore[attr-defined]
        chat.send("Two?")
        assert (await ended(chat)).state == "failed"
        chat.manager.service.events = [done()]  # type: ignore[attr-defined]
        chat.send("Three?")
        await ended(chat)
        inference: Inference = chat.manager.service.inference  # type: ignore[attr-defined]
        assert inference.messages == [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "One?"},
            {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"},
            {"role": "user", "content": "Three?"},
        ]
        assert inference.parameters == {"temperature": 0.5, "max_tokens": 20}
        assert [turn.prompt for turn in chat.turns] == ["One?", "Two?", "Three?"]

    run(body())


def test_stopping_keeps_the_text_and_closes_the_answer() -> None:
    async def body() -> None:
        chat = await chat_with(Text("content", "Half"), asyncio.Event(), done())
        chat.send("Go on")
        await until(chat.turns[0].reply, "writing")
        await chat.stop()
        reply = await ended(chat)
        assert (reply.state, reply.content, reply.done) == ("stopped", "Half", None)
        assert chat.manager.service.closed  # type: ignore[attr-defined]
        await chat.stop()

    run(body())


def test_an_error_in_the_middle_keeps_what_came_before() -> None:
    async def body() -> None:
        chat = await chat_with(Text("content", "Half"), QueueFull("the queue is full", retry_after=1))
        chat.send("Go on")
        reply = await ended(chat)
        assert (reply.state, reply.content, reply.error) == ("failed", "Half", "the queue is full")

    run(body())


def test_what_is_no_error_of_ours_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        chat = await chat_with(KeyError("surprise"))
        chat.send("Go on")
        reply = await ended(chat)
        assert (reply.state, reply.error) == ("failed", "KeyError: 'surprise'")

    run(body())
    assert "a chat's answer failed" in caplog.text


def test_a_model_is_loaded_first_and_a_failed_load_is_told_in_its_words() -> None:
    async def body() -> None:
        chat = await chat_with(model=TARGET)
        chat.send("Hello")
        assert (await ended(chat)).state == "done"
        assert chat.manager.model(TARGET).state == "ready"
        chat.options.model = DAMAGED
        chat.send("Hello again")
        reply = await ended(chat)
        assert (reply.state, reply.error) == ("failed", LOAD_ERROR)
        chat.options.model = TARGET
        chat.again()
        assert (await ended(chat)).state == "done"
        assert [turn.prompt for turn in chat.turns] == ["Hello", "Hello again"]

    run(body())


def test_stopping_a_load_leaves_the_load_to_itself() -> None:
    async def body() -> None:
        chat = await chat_with(model=TARGET)
        gate = asyncio.Event()
        chat.manager.step = gate.wait  # type: ignore[attr-defined]
        chat.send("Hello")
        await until(chat.turns[0].reply, "loading")
        await asyncio.sleep(0)
        await chat.stop()
        assert (await ended(chat)).state == "stopped"
        gate.set()
        assert (await chat.manager.load(TARGET)).state == "ready"

    run(body())


def test_what_may_not_be_loaded_on_request_is_not() -> None:
    async def body() -> None:
        chat = await chat_with(model=TARGET, load_on_request=False)
        chat.send("Hello")
        reply = await ended(chat)
        assert reply.state == "failed"
        assert "load it on the page Models" in str(reply.error)
        assert chat.manager.model(TARGET).state == "unloaded"

    run(body())


def test_a_comparison_runs_after_the_answer_and_not_beside_it() -> None:
    async def body() -> None:
        gate = asyncio.Event()
        chat = await chat_with(Text("content", "Same"), gate, done())
        chat.options.compare, chat.options.temperature = True, 0.0
        chat.send("Go on")
        await until(chat.turns[0].reply, "writing")
        service: Any = chat.manager.service
        assert len(service.inferences) == 1
        gate.set()
        await ended(chat)
        first, second = service.inferences
        assert first.messages == second.messages
        assert first.parameters == {"temperature": 0.0}
        assert second.parameters == {"temperature": 0.0, "verify_mode": "off"}
        other = chat.turns[0].other
        assert other is not None
        assert other.state == "done"

    run(body())


@pytest.mark.parametrize("ending", [done(engine={**ENGINE, "engine": "plain"}), QueueFull("full", retry_after=1)])
def test_nothing_is_compared_without_a_drafter_or_after_a_failure(ending: Step) -> None:
    async def body() -> None:
        chat = await chat_with(ending)
        chat.options.compare = True
        chat.send("Go on")
        await ended(chat)
        assert chat.turns[0].other is None
        assert len(chat.manager.service.inferences) == 1  # type: ignore[attr-defined]

    run(body())


def test_one_answer_at_a_time_and_no_empty_message() -> None:
    async def body() -> None:
        chat = await chat_with(asyncio.Event())
        with pytest.raises(RequestError, match="empty"):
            chat.send("  \n")
        chat.draft = "kept"
        chat.send("One")
        with pytest.raises(RequestError, match="stop it first"):
            chat.send("Two")
        with pytest.raises(RequestError, match="stop it first"):
            chat.again()
        assert len(chat.turns) == 1
        await asyncio.sleep(0)
        await chat.stop()
        chat.options.model = None
        await ended(chat)
        with pytest.raises(RequestError, match="no model"):
            chat.send("Two")

    run(body())


def test_an_answer_that_nobody_sees_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(conversation, "UNSEEN_SECONDS", 0.05)

    async def body() -> None:
        chat = await chat_with(Text("content", "Half"), asyncio.Event())
        seen = True
        chat.seen = lambda: seen
        chat.send("Go on")
        await asyncio.sleep(0.15)
        assert chat.running
        seen = False
        assert (await ended(chat)).state == "stopped"

    run(body())


def test_a_new_chat_keeps_the_ones_before_and_the_options() -> None:
    async def body() -> None:
        manager = FakeManager()
        await manager.load("demo")
        chats = Chats(manager)
        chats.new()
        assert chats.earlier == []  # an empty one is not worth keeping
        first = chats.current
        first.options.model = "demo"
        first.send("One\nand more")
        chats.new()
        assert chats.current is not first
        assert chats.current.options.model == "demo"
        await ended(first)
        assert first.turns[0].reply.state == "done"
        assert [chat.title for chat in chats.earlier] == ["One and more"]
        chats.open(first)
        assert (chats.current, chats.earlier) == (first, [])

    run(body())


def of(content: str, **timings: float) -> Reply:
    return Reply("demo", state="done", content=content, done=done(timings=TIMINGS | timings))


def test_two_answers_in_words() -> None:
    fast, slow = of("The same.", predicted_per_second=60.0), of("The same.", predicted_per_second=24.0)
    assert answer_words.verdict(fast, slow, greedy=True) == "2.50 times the speed. The texts are equal."
    forked = of("The some.", predicted_per_second=0.0)
    told = answer_words.verdict(fast, forked, greedy=False)
    assert told == "The texts differ from character 6 on: sampled answers do."
    assert answer_words.first_difference("abc", "ab") == 2


def test_figures_in_words() -> None:
    ending: Done = done("length", completion_tokens=1, cached_tokens=3)
    assert answer_words.figures(ending) == [
        "1 token", "100.0 tok/s", "2.00 tokens per cycle", "1 of 4 drafts accepted", "3 of 7 prompt tokens cached",
        "dflash2, block size 5, dflash", "cut at the token limit",
    ]  # fmt: skip
    fallback = ENGINE | {"engine": "plain", "fallback_reason": "no such drafter"}
    assert answer_words.engine_words(fallback) == "plain decoding: no such drafter"
    assert answer_words.engine_words(ENGINE | {"verify_mode": "off"}) == "dflash2, speculation off"


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "![a](https://example.org/x.png)",
        '![a"onload=alert(1)](https://example.org/x.png "t")',
        "[a](data:text/html;base64,PHNjcmlwdD4=)",
        "<a href='javascript:alert(1)'>a</a>",
        "```html\n<script>alert(1)</script>\n```",
        "`<script>`",
        "<!-- <script> -->",
        "<https://example.org/<script>>",
    ],
)
def test_nothing_of_a_models_markdown_is_run_or_fetched(text: str) -> None:
    for html in (to_html(text), plain_to_html(text)):
        lowered = html.lower()
        assert "<script" not in lowered
        assert "<img" not in lowered
        assert 'href="javascript' not in lowered
        assert 'href="data' not in lowered
        assert not any(f" {name}=" in tag for tag in _tags(lowered) for name in ("onload", "onerror", "src", "style"))


def _tags(html: str) -> list[str]:
    return [piece.partition(">")[0] for piece in html.split("<")[1:]]


def test_an_image_becomes_a_link_with_its_words() -> None:
    html = to_html('![a *cat* <b>](https://example.org/x.png "title")')
    assert 'href="https://example.org/x.png"' in html
    assert ">image: a cat &lt;b&gt;</a>" in html
