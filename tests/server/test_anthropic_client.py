"""Anthropic's own client against the routes."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

from dflash2_mlx.errors import EngineBusy
from dflash2_server.inference import Text
from tests.server import doubles
from tests.server.anthropic_running import CALL, MESSAGE, RICH, WEATHER


def with_client(service: doubles.ScriptedService, use: Any, **settings: Any) -> Any:
    """What `use` gives, called with Anthropic's own client over the application."""

    async def run() -> Any:
        async with doubles.client(service, **settings) as http:
            client = anthropic.AsyncAnthropic(api_key="k", base_url=doubles.BASE_URL, http_client=http, max_retries=0)
            return await use(client)

    return asyncio.run(run())


def test_its_client_gets_a_message() -> None:
    async def use(client: anthropic.AsyncAnthropic) -> Any:
        return await client.messages.create(**MESSAGE)

    message = with_client(doubles.ScriptedService(), use, api_key="k")
    assert (message.content[0].text, message.stop_reason) == ("Hello there", "end_turn")
    assert message._request_id.startswith("req_")


def test_its_client_gets_a_stream_with_thinking_and_tools() -> None:
    async def use(client: anthropic.AsyncAnthropic) -> Any:
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        tools: Any = [WEATHER]
        async with client.messages.stream(**MESSAGE, thinking=thinking, tools=tools) as stream:
            kinds = [event.type async for event in stream]
            return kinds, await stream.get_final_message()

    kinds, message = with_client(doubles.ScriptedService(RICH), use)
    assert kinds.count("content_block_stop") == 4
    assert {"thinking", "signature", "text", "input_json", "message_stop"} <= set(kinds)
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[0].thinking == "Let me see."
    assert message.content[2].input == {"city": "Zürich"}
    assert (message.stop_reason, message.usage.cache_read_input_tokens) == ("tool_use", 4)


def test_its_client_sends_a_result_back() -> None:
    service = doubles.ScriptedService(RICH)

    async def use(client: anthropic.AsyncAnthropic) -> Any:
        tools: Any = [WEATHER]
        first = await client.messages.create(**MESSAGE, tools=tools)
        result: Any = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "sunny"}
        history: Any = [
            *MESSAGE["messages"],
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [result]},
        ]
        return await client.messages.create(model="demo", max_tokens=9, messages=history, tools=tools)

    with_client(service, use)
    assert service.inference.messages is not None
    _, turn, result = service.inference.messages
    assert turn["reasoning_content"] == "Let me see."
    assert turn["tool_calls"][0]["function"]["arguments"] == CALL.arguments
    assert result == {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}


def test_its_client_counts_and_lists() -> None:
    async def use(client: anthropic.AsyncAnthropic) -> Any:
        count = await client.messages.count_tokens(model="demo", messages=MESSAGE["messages"])
        models = await client.models.list()
        return count.input_tokens, [model.id for model in models.data], (await client.models.retrieve("demo")).type

    assert with_client(doubles.ScriptedService(), use) == (7, ["demo"], "model")


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("key", anthropic.AuthenticationError),
        ("model", anthropic.NotFoundError),
        ("field", anthropic.BadRequestError),
    ],
)
def test_its_client_raises_its_errors(raised: str, kind: type[Exception]) -> None:
    async def use(client: anthropic.AsyncAnthropic) -> Any:
        changes = {"model": {"model": "nope"}, "field": {"max_tokens": 0}}.get(raised, {})
        with pytest.raises(kind):
            await client.messages.create(**(MESSAGE | changes))

    with_client(doubles.ScriptedService(), use, api_key="other" if raised == "key" else "k")


def test_its_client_raises_an_error_in_the_middle() -> None:
    service = doubles.ScriptedService([Text("content", "a"), EngineBusy("the server is stopping")])

    async def use(client: anthropic.AsyncAnthropic) -> Any:
        with pytest.raises(anthropic.APIStatusError, match="stopping"):
            async for _ in await client.messages.create(**MESSAGE, stream=True):
                pass

    with_client(service, use)
