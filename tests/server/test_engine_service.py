"""The service on the real engine: growing chats from the prefix cache, interleaved ones, constraints, cancelling."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dflash2_mlx.engine.worker import Engine, EngineOptions
from dflash2_mlx.errors import DecodeError, EngineBusy, ModelNotFound, PromptTooLong, QueueFull, RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.settings import ServerSettings
from dflash2_server.inference import Done, Event, Inference, NamedTool, Text, ToolCall
from dflash2_server.service import EngineService, serve_pair
from tests import tiny
from tests.running import Subject, real_drafter
from tests.server.scripted import scripted_pair, tools_tokenizer
from tests.tiny_families import NAMED

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": "3"}}\n</tool_call>'


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def random_pair(kind: str, folder: Path) -> Pair:
    """A random target of a family with a chat tokenizer."""
    tokenizer = tools_tokenizer()
    config = NAMED[kind](16)
    config.get("text_config", config)["vocab_size"] = len(tokenizer) + 2
    model, tapped = (tiny.build_config(config) for _ in range(2))
    of = Subject(model, tapped)
    return Pair(
        of.target,
        real_drafter(folder, of, block_size=4),
        tokenizer,
        kind,
        "random",
        config={"max_position_embeddings": 100_000},
    )


@asynccontextmanager
async def serving(
    load: Callable[[], Pair], options: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[EngineService]:
    engine = Engine(EngineOptions(**(options or {})))
    engine.start()
    service = serve_pair(engine, engine.call(load).result(), ServerSettings(**settings))
    try:
        yield service
    finally:
        service.close()


async def gather(service: EngineService, inference: Inference) -> list[Event]:
    return [event async for event in await service.submit(inference)]


def text_of(events: list[Event], kind: str = "content") -> str:
    return "".join(event.text for event in events if isinstance(event, Text) and event.kind == kind)


def end_of(events: list[Event]) -> Done:
    *_, last = events
    assert isinstance(last, Done)
    assert sum(isinstance(event, Done) for event in events) == 1
    return last


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))  # type: ignore[arg-type]


@pytest.fixture(params=["llama", "gpt_oss", "qwen3_5"], ids=["dense", "sliding", "hybrid"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_growing_agent_chat_comes_from_the_cache_and_equals_cold_runs(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(lambda: random_pair(kind, tmp_path / "warm")) as warm,
            serving(lambda: random_pair(kind, tmp_path / "cold"), {"cache_bytes": 0}) as cold,
        ):
            messages = [
                {"role": "system", "content": "You are an agent. " + "Follow every rule. " * 12},
                user("Begin."),
            ]
            cached = total = 0
            for turn in range(10):
                inference = Inference(messages=messages, tools=[WEATHER], parameters={"max_tokens": 12})
                events, again = await gather(warm, inference), await gather(cold, inference)
                assert text_of(events) == text_of(again)
                assert text_of(events, "reasoning") == text_of(again, "reasoning")
                done = end_of(events)
                assert end_of(again).cached_tokens == 0
                if turn:
                    cached, total = cached + done.cached_tokens, total + done.prompt_tokens
                answer = {"role": "assistant", "content": text_of(events)}
                if text_of(events, "reasoning"):
                    answer["reasoning_content"] = text_of(events, "reasoning")
                calls = [event for event in events if isinstance(event, ToolCall)]
                assert not calls  # of a random target
                call = {"name": "get_weather", "arguments": json.dumps({"city": f"City {turn}"})}
                said = {**answer, "tool_calls": [{"id": f"c{turn}", "type": "function", "function": call}]}
                result = {"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn} degrees"}
                messages += [said, result] if turn % 2 else [answer, user(f"And then {turn}?")]
            assert cached / total >= 0.9

    run(test)


def test_interleaved_sessions_equal_cold_runs(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with (
            serving(lambda: random_pair(kind, tmp_path / "warm")) as warm,
            serving(lambda: random_pair(kind, tmp_path / "cold"), {"cache_bytes": 0}) as cold,
        ):
            a, b = [user("The first session")], [user("Another one altogether")]
            for messages in (a, a, b, a):
                inference = Inference(messages=messages, parameters={"max_tokens": 12})
                events = await gather(warm, inference)
                assert text_of(events) == text_of(await gather(cold, inference))
                messages += [{"role": "assistant", "content": text_of(events)}, user("Go on.")]
            both = [Inference(messages=each, parameters={"max_tokens": 12}) for each in (a, b)]
            together = await asyncio.gather(*(gather(warm, inference) for inference in both))
            apart = [await gather(cold, inference) for inference in both]
            assert [text_of(events) for events in together] == [text_of(events) for events in apart]

    run(test)


def script(prompt: str) -> str:
    """What the scripted target answers."""
    question = prompt.rsplit("<|im_start|>user\n", 1)[-1]
    if "tool_response" in question:
        return "It is sunny."
    if "both" in question:
        return CALL + "\n" + CALL.replace("Paris", "Rome")
    if "weather" in question:
        return f"<think>\nI should look.\n</think>\n\nOne moment.\n{CALL}"
    if "JSON" in question:
        return 'Sure! {"city": "Oslo", "days": 2} is it.'
    if "endless" in question:
        return "word " * 4000
    if "long" in question:
        return "word " * 60
    if "think" in question:
        return "<think>\n" + "hmm " * 50 + "\n</think>\n\nDone."
    return "Grüße, 世界!"


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[[], Pair]:
    return lambda: scripted_pair(tmp_path / "drafter", script)


def test_a_tool_call_round_trip(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            messages: list[dict[str, Any]] = [user("How is the weather?")]
            events = await gather(service, Inference(messages=messages, tools=[WEATHER]))
            (call,) = [event for event in events if isinstance(event, ToolCall)]
            assert (call.index, call.name, json.loads(call.arguments)) == (
                0,
                "get_weather",
                {"city": "Paris", "days": 3},
            )
            assert text_of(events, "reasoning").strip() == "I should look."
            assert text_of(events) == "One moment."
            done = end_of(events)
            assert done.finish_reason == "tool_calls"
            assert 0 < done.reasoning_tokens < done.completion_tokens
            called = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [called]},
                {"role": "tool", "tool_call_id": call.id, "content": "sun"},
            ]
            events = await gather(service, Inference(messages=messages, tools=[WEATHER]))
            assert text_of(events) == "It is sunny."
            assert end_of(events).finish_reason == "stop"
            # speculation with a drafter that is nearly always wrong changes none of it
            plain = Inference(messages=messages, tools=[WEATHER], parameters={"verify_mode": "off"})
            assert text_of(await gather(service, plain)) == "It is sunny."

    run(test)


def test_parallel_calls_and_only_one_where_they_are_not_wanted(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            for parallel, cities in ((True, ["Paris", "Rome"]), (False, ["Paris"])):
                inference = Inference(messages=[user("both")], tools=[WEATHER], parallel_tool_calls=parallel)
                events = await gather(service, inference)
                calls = [event for event in events if isinstance(event, ToolCall)]
                assert [json.loads(call.arguments)["city"] for call in calls] == cities
                assert [call.index for call in calls] == list(range(len(cities)))
                assert end_of(events).finish_reason == "tool_calls"
            events = await gather(service, Inference(messages=[user("both")], tools=[WEATHER], tool_choice="none"))
            assert not any(isinstance(event, ToolCall) for event in events)

    run(test)


def test_a_forced_call_is_a_call_whatever_the_target_wants(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        checked = 0
        async with serving(scripted) as service:
            for choice in ("required", NamedTool("get_weather")):
                for mode in ("dflash", "off"):
                    inference = Inference(
                        messages=[user("Hello")],
                        tools=[WEATHER],
                        tool_choice=choice,  # type: ignore[arg-type]
                        parameters={
                            "verify_mode": mode,
                            "max_tokens": 300,
                            "seed": 1,
                            "temperature": 5.0,
                            "top_p": 0.99,
                        },
                    )
                    events = await gather(service, inference)
                    if end_of(events).finish_reason == "length":
                        continue  # a long string, by chance
                    call = next(event for event in events if isinstance(event, ToolCall))
                    assert call.name == "get_weather"
                    assert isinstance(json.loads(call.arguments)["city"], str)
                    checked += 1
        assert checked

    run(test)


def test_a_schema_binds_after_the_reasoning(scripted: Callable[[], Pair]) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }

    async def test() -> None:
        async with serving(scripted) as service:
            texts = []
            for mode in ("dflash", "off"):
                inference = Inference(
                    messages=[user("JSON")], grammar=schema, parameters={"verify_mode": mode, "max_tokens": 200}
                )
                events = await gather(service, inference)
                assert end_of(events).finish_reason == "stop"
                texts.append(text_of(events))
            assert texts[0] == texts[1]
            assert set(json.loads(texts[0])) == {"city", "days"}

    run(test)


def test_a_thinking_budget_closes_the_reasoning(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            free = await gather(service, Inference(messages=[user("think")], parameters={"max_tokens": 400}))
            bound = await gather(
                service, Inference(messages=[user("think")], thinking_budget=20, parameters={"max_tokens": 60})
            )
            assert end_of(free).reasoning_tokens > 150
            assert end_of(bound).reasoning_tokens <= 20 + 3

    run(test)


def test_stops_limits_and_logprobs_are_honoured(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            events = await gather(service, Inference(messages=[user("Hello")], parameters={"stop": ["世"]}))
            assert (text_of(events), end_of(events).finish_reason, end_of(events).stop_sequence) == (
                "Grüße, ",
                "stop",
                "世",
            )
            events = await gather(service, Inference(messages=[user("long")], parameters={"max_tokens": 7}))
            assert (end_of(events).finish_reason, end_of(events).completion_tokens) == ("length", 7)
            events = await gather(service, Inference(messages=[user("Hello")], parameters={"logprobs": 2}))
            entries = [entry for event in events if isinstance(event, Text) for entry in event.logprobs]
            assert len(entries) == end_of(events).completion_tokens - 1
            assert all(len(entry.top) == 2 for entry in entries)
            raw = await gather(service, Inference(prompt="abc", parameters={"max_tokens": 3}))
            assert end_of(raw).prompt_tokens == 3

    run(test)


def test_reasoning_cut_by_the_limit_stays_reasoning(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            events = await gather(service, Inference(messages=[user("think")], parameters={"max_tokens": 30}))
            assert text_of(events) == ""
            assert text_of(events, "reasoning").startswith("hmm hmm")
            assert end_of(events).finish_reason == "length"

    run(test)


def test_wrong_requests_are_refused_before_they_are_queued(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted, context_length=200, alias=["gpt-4o"]) as service:
            with pytest.raises(PromptTooLong, match=r"prompt is too long: \d+ tokens > 199 maximum"):
                await service.submit(Inference(messages=[user("x" * 500)]))
            for parameters, param in (({"temperature": -1}, "temperature"), ({"max_tokens": 0}, "max_tokens")):
                with pytest.raises(RequestError) as refused:
                    await service.submit(Inference(messages=[user("x")], parameters=parameters))
                assert refused.value.param == param
            with pytest.raises(RequestError, match="messages"):
                await service.submit(Inference(messages=[]))
            with pytest.raises(ModelNotFound, match="no model 'other'"):
                await service.submit(Inference(model="other", messages=[user("x")]))
            await gather(service, Inference(model="gpt-4o", messages=[user("x")]))
            done = end_of(await gather(service, Inference(messages=[user("long")], parameters={"max_tokens": 10_000})))
            assert done.prompt_tokens + done.completion_tokens == 200
            assert service.engine.totals.requests == 2
            assert await service.count(Inference(messages=[user("x")])) == done.prompt_tokens - 3

    run(test)


def test_leaving_cancels_within_a_cycle_and_the_next_answer_is_cold(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            answer = await service.submit(Inference(messages=[user("long")]))
            async for _ in answer:
                break
            await answer.aclose()
            await answer.aclose()
            while service.engine.load != (0, 0):
                await asyncio.sleep(0.005)
            assert service.engine.totals.by_reason == {"cancelled": 1}
            assert service.engine.totals.generation_tokens < 300
            events = await gather(service, Inference(messages=[user("long")], parameters={"max_tokens": 2000}))
            assert text_of(events) == ("word " * 60)

    run(test)


def test_a_full_queue_and_a_closing_server_tell(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted, {"max_active": 1, "max_queue": 1}) as service:
            answers = [await service.submit(Inference(messages=[user("endless")])) for _ in range(1)]
            while service.engine.load[0] == 0:
                await asyncio.sleep(0.001)
            answers.append(await service.submit(Inference(messages=[user("endless")])))
            with pytest.raises(QueueFull):
                await service.submit(Inference(messages=[user("endless")]))
            await asyncio.get_running_loop().run_in_executor(None, service.close)
            for answer in answers:
                with pytest.raises(EngineBusy, match="shutting down"):
                    async for _ in answer:
                        pass

    run(test)


def test_a_request_that_waits_for_its_template_hears_of_the_end_too(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            held = threading.Event()
            service._text_thread.submit(held.wait)
            asked = asyncio.create_task(service.submit(Inference(messages=[user("x")])))
            await asyncio.sleep(0.05)
            await asyncio.get_running_loop().run_in_executor(None, service.close)
            held.set()
            with pytest.raises(EngineBusy, match="shutting down"):
                await asked
            with pytest.raises(EngineBusy, match="shutting down"):
                await service.submit(Inference(messages=[user("x")]))

    run(test)


def test_requests_on_their_way_count_for_the_queue(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted, {"max_queue": 2}) as service:
            held = threading.Event()
            service._text_thread.submit(held.wait)
            coming = [asyncio.create_task(gather(service, Inference(messages=[user("x")]))) for _ in range(2)]
            await asyncio.sleep(0.05)
            with pytest.raises(QueueFull, match="2 requests wait"):
                await service.submit(Inference(messages=[user("x")]))
            held.set()
            assert [text_of(events) for events in await asyncio.gather(*coming)] == ["Grüße, 世界!"] * 2

    run(test)


def test_a_failing_target_ends_its_answer_with_an_error(tmp_path: Path) -> None:
    def fails(prompt: str) -> str:
        if prompt:  # not in the probe at load
            raise DecodeError("the weights are at fault")
        return ""

    async def test() -> None:
        async with serving(lambda: scripted_pair(tmp_path, fails)) as service:
            with pytest.raises(DecodeError, match="at fault"):
                await gather(service, Inference(messages=[user("x")]))
            assert service.readiness() == (True, "ready")

    run(test)


def test_metrics_count_what_ran(scripted: Callable[[], Pair]) -> None:
    async def test() -> None:
        async with serving(scripted) as service:
            await gather(service, Inference(messages=[user("Hello")]))
            text = service.metrics()
            values = dict(_samples(text))
            totals = service.engine.totals
            assert values['vllm:spec_decode_num_drafts_total{model_name="scripted"}'] == totals.cycles > 0
            assert values['vllm:spec_decode_num_draft_tokens_total{model_name="scripted"}'] == totals.drafted_tokens
            assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="scripted",position="0"}' in values
            assert values['dflash2_requests_total{model_name="scripted",reason="stop"}'] == 1

    run(test)


def _samples(text: str) -> Iterator[tuple[str, float]]:
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            yield name, float(value)
