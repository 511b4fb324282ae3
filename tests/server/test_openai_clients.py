"""The openai package against the routes, over the whole application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from dflash2_mlx.errors import DecodeError
from dflash2_server.inference import NamedTool, Text

from . import doubles
from .openai_running import CALL, WEATHER, Service, tokens

MESSAGES: Any = [{"role": "user", "content": "Hi"}]
CHAT_TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
FLAT_TOOL: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}


def drive(service: Service, use: Callable[[AsyncOpenAI], Awaitable[Any]]) -> Any:
    """What `use` returns, given a client of the service."""

    async def run() -> Any:
        async with doubles.client(service) as web:
            client = AsyncOpenAI(api_key="none", base_url=f"{doubles.BASE_URL}/v1", http_client=web, max_retries=0)
            return await use(client)

    return asyncio.run(run())


def test_chat() -> None:
    service = Service([Text("reasoning", "Hm"), Text("content", "Hello", tokens(0, top=2)), doubles.done()])

    async def use(client: AsyncOpenAI) -> Any:
        return await client.chat.completions.create(
            model="demo", messages=MESSAGES, logprobs=True, top_logprobs=2, extra_body={"dflash": {"enabled": False}}
        )

    answer = drive(service, use)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.reasoning_content == "Hm"
    assert answer.choices[0].logprobs.content[0].top_logprobs[1].logprob == -9999.0
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.timings["draft_n"] == 4
    assert service.inference.parameters == {"logprobs": 2, "verify_mode": "off"}


def test_chat_stream_put_together_by_the_client() -> None:
    service = Service([Text("reasoning", "Hm"), Text("content", "Hello"), CALL, doubles.done("tool_calls")])

    async def use(client: AsyncOpenAI) -> Any:
        async with client.chat.completions.stream(
            model="demo", messages=MESSAGES, tools=[CHAT_TOOL], stream_options={"include_usage": True}
        ) as stream:
            kinds = [event.type async for event in stream]
            return kinds, await stream.get_final_completion()

    kinds, answer = drive(service, use)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Hello"
    assert choice.message.tool_calls[0].function.arguments == CALL.arguments
    assert (choice.message.tool_calls[0].id, choice.message.tool_calls[0].function.name) == ("call_a", "weather")
    assert answer.usage.total_tokens == 9
    assert {"content.delta", "content.done", "tool_calls.function.arguments.delta"} <= set(kinds)


def test_a_tool_round_trip() -> None:
    """The client's own message objects go back as they came."""
    service = Service(
        lambda inference: [CALL, doubles.done("tool_calls")] if len(inference.messages or []) == 1 else doubles.hello()
    )

    async def use(client: AsyncOpenAI) -> Any:
        choice: Any = {"type": "function", "function": {"name": "weather"}}
        first = await client.chat.completions.create(
            model="demo", messages=MESSAGES, tools=[CHAT_TOOL], tool_choice=choice
        )
        result = {"role": "tool", "tool_call_id": "call_a", "content": "rain"}
        history: Any = [*MESSAGES, first.choices[0].message, result]
        return await client.chat.completions.create(model="demo", messages=history, tools=[CHAT_TOOL])

    assert drive(service, use).choices[0].message.content == "Hello there"
    assert service.inferences[0].tool_choice == NamedTool("weather")
    assert service.inference.messages is not None
    assert service.inference.messages[1]["content"] is None
    assert service.inference.messages[1]["tool_calls"][0]["function"]["arguments"] == CALL.arguments
    assert service.inference.messages[2] == {"role": "tool", "content": "rain", "tool_call_id": "call_a"}


class Weather(BaseModel):
    city: str


def test_structured_answers() -> None:
    service = Service([Text("content", '{"city": "Oslo"}'), doubles.done()])

    async def use(client: AsyncOpenAI) -> Any:
        chat = await client.chat.completions.parse(model="demo", messages=MESSAGES, response_format=Weather)
        flat = await client.responses.parse(model="demo", input="Hi", text_format=Weather)
        return chat.choices[0].message.parsed, flat.output_parsed

    assert drive(service, use) == (Weather(city="Oslo"), Weather(city="Oslo"))
    for inference in service.inferences:
        assert isinstance(inference.grammar, dict)
        assert inference.grammar["required"] == ["city"]


def test_errors_are_the_clients_own() -> None:
    async def use(client: AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="demo", messages=MESSAGES, n=2)
        assert refused.value.param == "n"
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.responses.create(model="another", input="Hi")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError, match="whole input"):
            await client.responses.create(model="demo", input="Hi", previous_response_id="resp_1")

    drive(Service(), use)


def test_an_error_in_a_stream_is_raised() -> None:
    async def use(client: AsyncOpenAI) -> str:
        text = ""
        stream = await client.chat.completions.create(model="demo", messages=MESSAGES, stream=True)
        try:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        except openai.APIError as error:
            return text + "|" + error.message
        return text

    assert drive(Service([Text("content", "He"), DecodeError("row 3 is not finite")]), use) == "He|row 3 is not finite"


def test_completions() -> None:
    async def use(client: AsyncOpenAI) -> Any:
        whole = await client.completions.create(model="demo", prompt="x", logprobs=0)
        pieces = [
            choice.text
            async for chunk in await client.completions.create(model="demo", prompt=[1, 2], stream=True)
            for choice in chunk.choices
        ]
        return whole, pieces

    service = Service([Text("content", "Hello", tokens(0)), doubles.done()])
    whole, pieces = drive(service, use)
    assert whole.choices[0].text == "Hello"
    assert whole.choices[0].logprobs.tokens == ["Hello"]
    assert "".join(pieces) == "Hello"
    assert service.inference.prompt == [1, 2]


def test_responses() -> None:
    service = Service([Text("reasoning", "Hm"), Text("content", "Hello"), CALL, doubles.done("tool_calls")])

    async def use(client: AsyncOpenAI) -> Any:
        return await client.responses.create(model="demo", input="Hi", tools=[FLAT_TOOL], max_output_tokens=9)

    answer = drive(service, use)
    assert answer.output_text == "Hello"
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
    assert answer.output[2].arguments == CALL.arguments
    assert answer.usage.total_tokens == 9
    assert service.inference.parameters == {"max_tokens": 9}


def test_responses_stream_and_the_output_sent_back() -> None:
    """The client checks that ids and indexes match; its items are the next request's input."""
    service = Service([Text("reasoning", "Hm"), Text("content", "Hello"), CALL, doubles.done("tool_calls")])

    async def use(client: AsyncOpenAI) -> Any:
        reasoning: Any = {"effort": "low", "summary": "auto"}
        async with client.responses.stream(model="demo", input="Hi", tools=[FLAT_TOOL], reasoning=reasoning) as stream:
            kinds = [event.type async for event in stream]
            answer = await stream.get_final_response()
        result = {"type": "function_call_output", "call_id": "call_a", "output": "rain"}
        items: Any = [{"role": "user", "content": "Hi"}, *answer.output, result]
        await client.responses.create(model="demo", input=items, tools=[FLAT_TOOL])
        return kinds, answer

    kinds, answer = drive(service, use)
    assert answer.output_text == "Hello"
    assert kinds[-1] == "response.completed"
    assert "response.reasoning_summary_text.delta" in kinds
    call = {"id": "call_a", "type": "function", "function": {"name": "weather", "arguments": CALL.arguments}}
    assert service.inference.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
    ]
