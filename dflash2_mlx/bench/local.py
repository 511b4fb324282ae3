"""A loaded pair as a backend: every sample is a cold run, its times those that the decoder itself takes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx

from ..decode.stats import Stats
from ..errors import RequestError
from ..facts import context_length
from ..pairs import Pair
from ..prompts import long_context
from ..text.stream import Generation, stream_generate
from ..text.template import ChatTemplate
from .depth import with_context
from .model import Arm, BenchPrompt, Sample
from .packing import packing_words
from .seeds import filler_seed, seed_for

_DIGEST = 12  # hexadecimal characters


class LocalPair:
    """Answers with a pair, on the thread that loaded it, one answer at a time.

    Messages go through the pair's chat template, or as they are where it has none. `cancelled` is looked at in every
    cycle; an answer that it breaks off says so in its finish reason.
    """

    concurrent = False

    def __init__(self, pair: Pair, *, cancelled: Callable[[], bool] = lambda: False) -> None:
        if pair.tokenizer is None:
            raise RequestError("this pair has no tokenizer: it cannot be given a benchmark's prompts", param="model")
        self.pair = pair
        self._cancelled = cancelled
        self._tokenizer = pair.tokenizer
        has_template = getattr(pair.tokenizer, "has_chat_template", False)
        self._template = ChatTemplate(pair.tokenizer) if has_template else None
        self._encoded: dict[tuple[str, int], list[int]] = {}
        self._longer: set[tuple[str, int]] = set()

    @property
    def facts(self) -> Mapping[str, str]:
        """The pair, as it is loaded."""
        pair = self.pair
        facts = {
            "target": pair.model_name,
            "target quantisation": packing_words(pair.config),
            "target compute type": str(pair.target.dtype).rpartition(".")[2],
            "drafter": pair.drafter_name or ("a drafter" if pair.drafter else f"none {_why(pair)}".strip()),
            "chat template": "used" if self._template else "none: prompts are given as they are",
        }
        if pair.drafter is not None:
            facts |= {
                "drafter quantisation": pair.drafter.quantization,
                "drafter's block size": str(pair.block_size),
                "engine": pair.engine,
            }
        return facts

    def check(self, arm: Arm, prompt: BenchPrompt, max_tokens: int) -> None:
        """Raises RequestError for what this pair cannot do, without running it."""
        from ..chat.backend import check_parameters

        given = parameters(arm, max_tokens, seed=0)
        try:
            check_parameters(given, vocab_size=self.pair.target.vocab_size, block_size=self.pair.block_size)
        except RequestError as error:
            raise RequestError(f"arm {arm.name!r}: {error}", param=error.param) from None
        longest, limit = prompt.depth + max_tokens, context_length(self.pair.config)
        if limit is not None and longest > limit:
            raise RequestError(
                f"depth {prompt.depth} and max_tokens {max_tokens} make {longest} tokens: {self.pair.model_name} has "
                f"a context of {limit}, so use a lesser depth",
                param="depths",
            )

    def sample(self, arm: Arm, prompt: BenchPrompt, *, max_tokens: int, seed: int) -> Sample:
        """One answer from empty caches. Raises what `stream_generate` raises."""
        ids = self.prompt_ids(prompt)
        mx.clear_cache()
        answer = Generation()
        for step in stream_generate(
            self.pair, ids, cancelled=self._cancelled, **parameters(arm, max_tokens, seed=seed)
        ):
            answer.text += step.text
            answer.tokens += step.tokens
            answer.finish_reason, answer.stats = step.finish_reason, step.stats
        return self.sample_of(arm, prompt, answer)

    def sample_of(self, arm: Arm, prompt: BenchPrompt, answer: Generation) -> Sample:
        """An answer to `prompt_ids` as a sample, whoever has run it."""
        return _sample(arm, prompt, answer, longer=(prompt.id, prompt.depth) in self._longer)

    def prompt_ids(self, prompt: BenchPrompt) -> list[int]:
        """The ids of a prompt at its depth; kept, since every arm and round begins with them."""
        key = (prompt.id, prompt.depth)
        if key not in self._encoded:
            ids = self._encode(prompt, "")
            missing = prompt.depth - len(ids)
            if prompt.depth and missing < 0:
                self._longer.add(key)
            if missing > 0:
                ids = self._encode(prompt, long_context(missing, self._tokenizer.encode, seed=filler_seed(prompt)))
            self._encoded[key] = ids
        return self._encoded[key]

    def _encode(self, prompt: BenchPrompt, context: str) -> list[int]:
        messages = with_context(prompt.messages, context)
        if self._template is not None:
            return self._template.encode(self._template.render(messages))
        return list(self._tokenizer.encode("\n\n".join(message["content"] for message in messages)))


def parameters(arm: Arm, max_tokens: int, *, seed: int) -> dict[str, Any]:
    """What `stream_generate` is given for an arm."""
    return {
        "max_tokens": max_tokens,
        "temperature": arm.temperature,
        "block_size": arm.block_size if arm.asks_for_speculation else 1,
        "verify_mode": arm.verify_mode,
        "seed": seed_for(arm, seed),
    }


def _sample(arm: Arm, prompt: BenchPrompt, answer: Generation, *, longer: bool) -> Sample:
    stats = answer.stats
    widths = tuple(stats.cycles_by_width)
    width = widths.index(max(widths)) + 1 if any(widths) else stats.block_size
    notes = [stats.alarm, f"{stats.dropped_blocks} draft blocks dropped" if stats.dropped_blocks else None]
    if arm.asks_for_speculation and stats.fallback_reason:
        notes.append(f"no drafter: {stats.fallback_reason}")
    if longer:
        notes.append(f"longer by itself than depth {prompt.depth}")
    return Sample(
        arm=arm.name,
        prompt=prompt.id,
        kind=prompt.kind,
        depth=prompt.depth,
        round=0,
        prompt_tokens=stats.prompt_tokens,
        generation_tokens=stats.generation_tokens,
        prompt_seconds=stats.prompt_seconds,
        generation_seconds=stats.generation_seconds,
        tokens_per_cycle=_tokens_per_cycle(stats),
        acceptance_by_position=tuple(stats.acceptance_by_position),
        accepted_by_position=tuple(stats.accepted_by_position),
        proposed_by_position=tuple(stats.proposed_by_position),
        engine=stats.engine,
        block_size=width,
        cycles_by_width=widths,
        finish_reason=answer.finish_reason,
        digest=f"tokens:{hashlib.sha256(repr(answer.tokens).encode()).hexdigest()[:_DIGEST]}",
        note="; ".join(note for note in notes if note),
    )


def _tokens_per_cycle(stats: Stats) -> float:
    """Of all passes of the target, plain steps of a speculative answer included."""
    steps = stats.cycles_by_width[0] if stats.cycles_by_width else 0
    passes = stats.cycles + steps
    return (stats.cycle_tokens + steps) / passes if passes else 1.0


def _why(pair: Pair) -> str:
    return f"({pair.fallback_reason})" if pair.fallback_reason else ""
