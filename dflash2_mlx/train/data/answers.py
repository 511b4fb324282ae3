"""The target's answers, many at a time: token ids as it chose them, each sequence at its own temperature."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.generate import BatchGenerator, generate_step
from mlx_lm.models.cache import make_prompt_cache

_PREFILL_BATCH = 8  # prompts that are read at once

Sampler = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class Asked:
    """A prompt; `number` is what the answer is told by. Temperature 0 is greedy, else `seed` decides."""

    number: int
    prompt: list[int]
    temperature: float = 0.0
    seed: int = 0


@dataclass
class _Running:
    number: int
    tokens: list[int] = field(default_factory=list)


def answers(
    model: nn.Module,
    asked: Iterable[Asked],
    *,
    end_tokens: Collection[int],
    max_tokens: int,
    batch: int,
    on_tokens: Callable[[int], None] = lambda count: None,
) -> Iterator[tuple[int, list[int]]]:
    """Numbers and answers as they are finished, in any order; an answer ends with its end token or is cut.

    `batch` of them run at a time; a model whose caches cannot be batched answers one by one. `on_tokens` is told how
    many tokens came.
    """
    if batch > 1 and all(hasattr(cache, "merge") for cache in make_prompt_cache(model)):
        yield from _batched(model, iter(asked), end_tokens, max_tokens, batch, on_tokens)
    else:
        yield from _one_by_one(model, asked, end_tokens, max_tokens, on_tokens)


def _batched(
    model: nn.Module,
    asked: Iterator[Asked],
    end_tokens: Collection[int],
    max_tokens: int,
    batch: int,
    on_tokens: Callable[[int], None],
) -> Iterator[tuple[int, list[int]]]:
    generator: Any = BatchGenerator(
        model,
        stop_tokens=[[token] for token in sorted(end_tokens)],
        completion_batch_size=batch,
        prefill_batch_size=min(batch, _PREFILL_BATCH),
    )
    running: dict[int, _Running] = {}
    try:
        while True:
            _fill(generator, running, asked, max_tokens, batch)
            if not running:
                return
            responses = generator.next_generated()
            on_tokens(len(responses))
            for response in responses:
                running[response.uid].tokens.append(int(response.token))
            for response in responses:
                if response.finish_reason is not None:
                    one = running.pop(response.uid)
                    yield one.number, one.tokens
    finally:
        generator.close()


def _fill(generator: Any, running: dict[int, _Running], asked: Iterator[Asked], max_tokens: int, batch: int) -> None:
    """Give the generator new prompts for those that are finished."""
    new: list[Asked] = []
    while len(running) + len(new) < batch and (one := next(asked, None)) is not None:
        new.append(one)
    if not new:
        return
    uids = generator.insert(
        [one.prompt for one in new],
        max_tokens=[max_tokens] * len(new),
        samplers=[_sampler(one) for one in new],
    )
    running.update({uid: _Running(one.number) for uid, one in zip(uids, new, strict=True)})


def _one_by_one(
    model: nn.Module,
    asked: Iterable[Asked],
    end_tokens: Collection[int],
    max_tokens: int,
    on_tokens: Callable[[int], None],
) -> Iterator[tuple[int, list[int]]]:
    for one in asked:
        tokens = []
        for token, _ in generate_step(mx.array(one.prompt), model, max_tokens=max_tokens, sampler=_sampler(one)):
            tokens.append(int(token))
            on_tokens(1)
            if tokens[-1] in end_tokens:
                break
        yield one.number, tokens


def _greedy(logprobs: mx.array) -> mx.array:
    return mx.argmax(logprobs, axis=-1)


def _sampler(asked: Asked) -> Sampler:
    """Log-probabilities (1, V) to ids (1,); each sequence draws from its own generator, whatever runs beside it."""
    if asked.temperature == 0:
        return _greedy
    key = mx.random.key(asked.seed)

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal key
        key, now = mx.random.split(key)
        return mx.random.categorical(logprobs.astype(mx.float32) / asked.temperature, key=now)

    return sample
