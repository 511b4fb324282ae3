"""Runs requests on tiny targets, beside what mlx-lm decodes from an untouched model of equal weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn

from dflash2_mlx.decode.generate import TokenStep, generate_tokens
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.decode.stats import Stats
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.target.adapter import Target
from tests import tiny
from tests.proposers import ContextShape, Guessing, Helped, Scripted
from tests.tiny_drafters import tiny_drafter_config, tiny_v1_config, write_drafter

CHUNK = 64
LONGEST_SHORT = 50
ANSWER = 200
SLIDING = "sliding_attention"


class Subject:
    """One model twice, with equal weights: `plain` for mlx-lm alone, and `target`, tapped and recorded."""

    def __init__(self, plain: nn.Module, tapped: nn.Module, *, seed: int = 1) -> None:
        self.plain = plain
        self._first = tiny.random_prompt(1, seed=seed)
        self.target = Target(tapped)
        layers = self.target.num_layers
        self.taps = sorted({0, layers // 2, layers - 1})
        self.target.prepare(self.taps)
        self._texts: dict[tuple[int, ...], list[int]] = {}

    def shape(self, context_rows: int | None = None) -> ContextShape:
        return ContextShape(len(self.taps), self.target.hidden_size, context_rows)

    def prompt(self, length: int) -> list[int]:
        """A prompt. Short ones are one token and the answer to it, so that one plain text serves them all."""
        if length > LONGEST_SHORT:
            return tiny.random_prompt(length)
        return [*self._first, *self._answer_to(self._first, LONGEST_SHORT + ANSWER)[: length - 1]]

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` (up to 200) tokens that mlx-lm decodes after a `prompt` of `prompt`."""
        if len(prompt) > LONGEST_SHORT:
            return self._answer_to(prompt, ANSWER)[:count]
        assert list(prompt) == self.prompt(len(prompt))
        text = self._answer_to(self._first, LONGEST_SHORT + ANSWER)
        return text[len(prompt) - 1 :][:count]

    def _answer_to(self, prompt: Sequence[int], count: int) -> list[int]:
        text = self._texts.get(tuple(prompt))
        if text is None:
            text = tiny.plain_greedy(self.plain, prompt, count, prefill_step_size=CHUNK)
            self._texts[tuple(prompt)] = text
        return text

    def scripted(self, prompt: Sequence[int], count: int, **options: Any) -> Scripted:
        """A proposer for that answer; `right` is the share of drafts that are."""
        return Scripted(self.target, [*prompt, *self.answer(prompt, count)], self.shape(), **options)

    def guessing(self, prompt: Sequence[int], count: int, context_rows: int | None = None) -> Guessing:
        return Guessing(self.target, [*prompt, *self.answer(prompt, count)], self.shape(context_rows))

    def helped(self, drafter: Drafter, prompt: Sequence[int], count: int, **options: Any) -> Helped:
        text = [*prompt, *self.answer(prompt, count)]
        return Helped(drafter, self.target, text, self.shape(), **options)


# First tokens whose answers run into no loop.
_SEEDS = {"gemma3_text": 2, "lfm2": 3}


@cache
def subject(name: str, window: int = 16) -> Subject:
    """A family's subject: small enough to keep, and its plain texts are worth keeping."""
    plain, tapped = (tiny.build(name, window=window) for _ in range(2))
    return Subject(plain, tapped, seed=_SEEDS.get(name, 1))


@cache
def config_of(engine: str, window: int) -> dict[str, Any]:
    """Overrides of the tiny configs: `dflash2` slides in all layers, `mixed` in some, `dflash` in none."""
    return {
        "dflash2": {"layer_types": [SLIDING] * 3, "sliding_window": window},
        "mixed": {"sliding_window": window},
        "dflash": {},
    }[engine]


def real_drafter(
    folder: Path, of: Subject, *, engine: str = "dflash2", window: int = 16, block_size: int = 8
) -> Drafter:
    """A random drafter that fits a subject, through a checkpoint on disk."""
    make = tiny_v1_config if engine == "dflash" else tiny_drafter_config
    config = make(of.plain, block_size=block_size, target_layer_ids=of.taps, **config_of(engine, window))
    return load_drafter(write_drafter(folder, config), dtype="float32")


@dataclass
class Run:
    """All that a request gave."""

    state: DecodeState
    stats: Stats
    tokens: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)  # by cycle
    reasons: list[str] = field(default_factory=list)


def steps(
    target: Target,
    proposer: Any,
    prompt: Sequence[int],
    *,
    state: DecodeState | None = None,
    stats: Stats | None = None,
    checkpoint_block_size: int = 8,
    **parameters: Any,
) -> Iterator[TokenStep]:
    """The steps of one request, prefilled in chunks of 64."""
    request = make_request(
        prompt,
        vocab_size=target.vocab_size,
        checkpoint_block_size=checkpoint_block_size,
        **{"prefill_step_size": CHUNK, **parameters},
    )
    state = DecodeState(target, proposer) if state is None else state
    return generate_tokens(target, proposer, request, state, Stats() if stats is None else stats)


def decode(
    target: Target,
    proposer: Any,
    prompt: Sequence[int],
    *,
    state: DecodeState | None = None,
    **parameters: Any,
) -> Run:
    """A whole request."""
    run = Run(DecodeState(target, proposer) if state is None else state, Stats())
    for number, step in enumerate(steps(target, proposer, prompt, state=run.state, stats=run.stats, **parameters)):
        assert not run.reasons, "a step after the last"
        run.tokens += step.tokens
        if number:
            run.accepted.append(step.accepted)
        if step.finish_reason:
            run.reasons.append(step.finish_reason)
    assert len(run.reasons) == 1
    return run


def cold_drafts(
    of: Subject, drafter: Drafter, text: Sequence[int], cycles: Sequence[tuple[int, list[int]]]
) -> list[list[int]]:
    """What the drafter drafts at those cycles of `Helped.drafted` when its context is made in one piece."""
    _, taps = of.target.with_taps(mx.array([list(text)]), of.target.new_cache())
    drafts = []
    for position, seen in cycles:
        context = drafter.new_context()
        context.append([tap[:, :position] for tap in taps], 0)
        proposal = drafter.propose(of.target, context, mx.array([text[position]]), len(seen) + 1)
        drafts.append(proposal.tokens.tolist())
    return drafts
