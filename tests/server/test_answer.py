"""A running answer by itself: what reaches it from the engine's thread, in whatever steps, gives the same events."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dflash2_mlx.decode.generate import TokenStep
from dflash2_mlx.decode.logprobs import TokenLogprobs
from dflash2_mlx.decode.stats import Stats
from dflash2_mlx.errors import DecodeError, EngineBusy
from dflash2_mlx.text.answer import answer_parser
from dflash2_mlx.text.stream import GenerationStep
from dflash2_server.answer import RunningAnswer
from dflash2_server.inference import Done, Event, Text, ToolCall
from tests.text_doubles import make_tokenizer, tool

TOKENIZER = make_tokenizer(parser="json_tools")
END = TOKENIZER.eos_token_id
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def answer(**options: Any) -> RunningAnswer:
    run: Any = SimpleNamespace(
        request=SimpleNamespace(prompt=(1, 2, 3), eos_token_ids=frozenset([END])), stop_found=None, step=_with_text
    )
    parser = answer_parser(TOKENIZER, "", tools=[tool("f")])
    ends = TOKENIZER.think_end_tokens or ()
    return RunningAnswer(run, parser, asyncio.get_running_loop(), reasoning_end=ends, **options)


def _with_text(step: TokenStep) -> GenerationStep:
    text = TOKENIZER.decode([token for token in step.tokens if token != END])
    return GenerationStep(text, step.tokens, 0, step.finish_reason, step.logprobs, step.stats)


def steps(ids: Sequence[int], size: int, reason: str = "stop") -> list[TokenStep]:
    """The ids in steps of so many, with log-probabilities."""
    cut = [list(ids[i : i + size]) for i in range(0, len(ids), size)]
    return [
        TokenStep(part, 0, reason if i == len(cut) - 1 else None, [TokenLogprobs(t, -1.0, []) for t in part], Stats())
        for i, part in enumerate(cut)
    ]


async def heard(running: RunningAnswer, given: Sequence[TokenStep], error: Exception | None = None) -> list[Event]:
    for step in given:
        running.step(step)
    running.end(error)
    return [event async for event in running]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_steps_of_any_size_give_the_same_answer(size: int) -> None:
    text = "<think>\nhm\n</think>\n\nAh. " + CALL
    ids = [*TOKENIZER.encode(text, add_special_tokens=False), END]

    async def test() -> None:
        events = await heard(answer(), steps(ids, size))
        texts = {
            kind: "".join(e.text for e in events if isinstance(e, Text) and e.kind == kind)
            for kind in ("reasoning", "content")
        }
        assert (texts["reasoning"].strip(), texts["content"].strip()) == ("hm", "Ah.")
        assert [event.name for event in events if isinstance(event, ToolCall)] == ["f"]
        last = events[-1]
        assert isinstance(last, Done)
        assert (last.finish_reason, last.completion_tokens, last.reasoning_tokens) == ("tool_calls", len(ids), 6)

    asyncio.run(test())


@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_end_token_has_no_log_probability_to_report(size: int) -> None:
    ids = TOKENIZER.encode("Hello", add_special_tokens=False)

    async def test() -> None:
        events = await heard(answer(), steps([*ids, END], size))
        assert [entry.token for event in events if isinstance(event, Text) for entry in event.logprobs] == ids

    asyncio.run(test())


def test_what_comes_after_the_only_call_is_left_out_and_the_answer_is_remembered() -> None:
    ids = TOKENIZER.encode(CALL + "\n" + CALL, add_special_tokens=False)
    remembered: list[tuple[str, list[int]]] = []
    cancelled: list[bool] = []

    async def test() -> None:
        running = answer(single_call=True, finished=lambda text, tokens: remembered.append((text, list(tokens))))
        running.cancel = cancelled.append
        events = await heard(running, steps(ids, 1, "cancelled"))
        assert [type(event) for event in events] == [ToolCall, Done]
        assert isinstance(events[-1], Done)
        assert events[-1].finish_reason == "tool_calls"

    asyncio.run(test())
    assert cancelled == [True]
    ((text, tokens),) = remembered
    assert text == CALL
    assert TOKENIZER.decode(tokens) == CALL


def test_a_whole_answer_stays_one_whatever_comes_after_its_last_step() -> None:
    async def test() -> None:
        events = await heard(
            answer(), steps([*TOKENIZER.encode("Hi", add_special_tokens=False), END], 1), EngineBusy("late")
        )
        assert isinstance(events[-1], Done)

    asyncio.run(test())


def test_an_error_before_the_last_step_is_raised_behind_what_came() -> None:
    async def test() -> None:
        running = answer()
        running.step(TokenStep(TOKENIZER.encode("Hi", add_special_tokens=False), 0, None, None, Stats()))
        running.end(DecodeError("at fault"))
        seen: list[Event] = []

        with pytest.raises(DecodeError):
            await _collect(running, seen)
        assert "".join(event.text for event in seen if isinstance(event, Text)) == "Hi"

    asyncio.run(test())


async def _collect(running: RunningAnswer, seen: list[Event]) -> None:
    async for event in running:
        seen.append(event)  # noqa: PERF401 (what came before an error counts)


def test_closing_cancels_and_ends_the_wait_of_others() -> None:
    async def test() -> None:
        running = answer()
        cancelled: list[bool] = []
        running.cancel = cancelled.append

        async def consume() -> list[Event]:
            return [event async for event in running]

        waiting = asyncio.create_task(consume())
        await asyncio.sleep(0)
        await running.aclose()
        await running.aclose()
        assert await asyncio.wait_for(waiting, 5) == []
        assert cancelled[0] is False

    asyncio.run(test())
