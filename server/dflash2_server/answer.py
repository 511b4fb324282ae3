"""A running answer: hears of token steps on the engine's thread, and gives events on the event loop's."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, cast

from dflash2_mlx.decode.generate import TokenStep
from dflash2_mlx.decode.logprobs import TokenLogprobs
from dflash2_mlx.decode.stats import Stats
from dflash2_mlx.text.parts import Call, Content, Part, Reasoning
from dflash2_mlx.text.stream import GenerationStep, TextRun
from dflash2_server.inference import Done, Event, FinishReason, Text, ToolCall


class WholeText:
    """In place of a parser, where the answer is text and nothing else."""

    def feed(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class RunningAnswer:
    """An answer from the engine (`inference.Answer`), and the listener of its job (`engine.job.Listener`).

    `cancel(enough)` ends the job. With `single_call` the answer ends after its first tool call. `finished` is told the
    whole text and its tokens.
    """

    def __init__(
        self,
        run: TextRun,
        parser: Any,
        loop: asyncio.AbstractEventLoop,
        *,
        single_call: bool = False,
        reasoning_end: Sequence[int] = (),
        token_text: Callable[[int], str] = str,
        finished: Callable[[str, Sequence[int]], None] = lambda text, tokens: None,
    ) -> None:
        self.prompt_tokens = len(run.request.prompt)
        self.token_text = token_text
        self.cancel: Callable[[bool], None] = lambda enough: None
        self._run, self._parser, self._single_call, self._finished = run, parser, single_call, finished
        self._reasoning = _ReasoningCount(reasoning_end)
        self._loop = loop
        self._queue: asyncio.Queue[GenerationStep | BaseException | None] = asyncio.Queue()
        self._calls = 0
        self._logprobs: list[TokenLogprobs] = []
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._ended: str | None = None  # the finish reason, once it is known
        self._stats: Stats | None = None
        self._done = False
        self._events = self._run_events()

    # --- on the engine's thread ---

    def step(self, step: TokenStep) -> None:
        self._post(self._run.step(step))

    def end(self, error: BaseException | None) -> None:
        self._post(error)

    def _post(self, item: GenerationStep | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop has ended: nobody listens
            self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    # --- on the event loop's ---

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events

    async def aclose(self) -> None:
        """Stop it, wherever it stands; what it has computed stays in the prefix cache."""
        self._done = True
        self.cancel(False)
        self._queue.put_nowait(None)  # whoever waits for the next event

    async def _run_events(self) -> AsyncIterator[Event]:
        while not self._done:
            item = await self._queue.get()
            if isinstance(item, GenerationStep):
                for event in self._translate(item):
                    yield event
                continue
            self._done = True
            if self._ended is not None:  # whole, whatever came after its last step
                yield self._last(self._ended)
            elif item is not None:
                raise item

    def _translate(self, step: GenerationStep) -> Iterator[Event]:
        self._stats = step.stats
        if self._ended is not None:
            return  # what came after the one call that was wanted
        parts = self._parser.feed(step.text)
        if step.finish_reason is not None:
            parts = [*parts, *self._parser.finish()]
        self._text.append(step.text)
        self._tokens += step.tokens
        self._reasoning.add(step.tokens, parts)
        # An end token has no text to stand beside.
        self._logprobs += [entry for entry in step.logprobs or [] if entry.token not in self._run.request.eos_token_ids]
        yield from self._of_parts(parts)
        if self._ended is None:
            self._ended = step.finish_reason
        if self._ended is not None:
            self._finished("".join(self._text), self._tokens)

    def _of_parts(self, parts: Sequence[Part]) -> Iterator[Event]:
        last = max((i for i, part in enumerate(parts) if not isinstance(part, Call)), default=-1)
        for i, part in enumerate(parts):
            if isinstance(part, Call):
                yield ToolCall(self._calls, _call_id(), part.name, json.dumps(part.arguments, ensure_ascii=False))
                self._calls += 1
                self._logprobs = []
                if self._single_call:
                    self._ended = "stop"
                    self.cancel(True)
                    return
                continue
            logprobs: Sequence[TokenLogprobs] = ()
            if i == last:
                logprobs, self._logprobs = self._logprobs, []
            yield Text("reasoning" if isinstance(part, Reasoning) else "content", part.text, logprobs)

    def _last(self, reason: str) -> Done:
        assert self._stats is not None
        called = self._calls > 0 and reason == "stop"
        return Done(
            finish_reason="tool_calls" if called else cast(FinishReason, reason),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self._stats.cached_tokens,
            completion_tokens=len(self._tokens),
            reasoning_tokens=self._reasoning.count,
            timings=timings(self._stats),
            engine=engine(self._stats),
            stop_sequence=self._run.stop_found,
        )


class _ReasoningCount:
    """Counts the tokens of reasoning, its markers included."""

    def __init__(self, end: Sequence[int]) -> None:
        self._last = end[-1] if end else None
        self._inside = False
        self._held = 0  # tokens that have given no part yet
        self.count = 0

    def add(self, tokens: Sequence[int], parts: Sequence[Part]) -> None:
        began = self._inside or any(isinstance(part, Reasoning) for part in parts)
        if began:
            self.count += self._held
        self._held = 0 if parts or began else self._held + len(tokens)
        left = any(not isinstance(part, Reasoning) for part in parts)
        if began:
            inside = list(tokens)
            if self._last in inside:
                inside, left = inside[: inside.index(self._last) + 1], True
            self.count += len(inside)
        self._inside = began and not left


def timings(stats: Stats) -> dict[str, Any]:
    """What a request took, by llama.cpp's names where it has one. Seconds of other requests' turns are within."""
    figures = stats.as_dict()
    return {
        "prompt_n": stats.prompt_tokens - stats.cached_tokens,
        "prompt_ms": round(stats.prompt_seconds * 1000, 3),
        "prompt_per_second": figures["prompt_tps"],
        "cache_n": stats.cached_tokens,
        "predicted_n": stats.generation_tokens,
        "predicted_ms": round(stats.generation_seconds * 1000, 3),
        "predicted_per_second": figures["generation_tps"],
        "draft_n": sum(stats.proposed_by_position),
        "draft_n_accepted": stats.accepted_tokens,
        "tokens_per_cycle": figures["tokens_per_cycle"],
    }


def engine(stats: Stats) -> dict[str, Any]:
    """What was in force for a request."""
    names = ("engine", "block_size", "verify_mode", "draft_quant", "fallback_reason", "width_reason", "cycles_by_width")
    figures = stats.as_dict()
    return {name: figures[name] for name in names}


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"
