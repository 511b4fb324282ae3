"""Acceptance of a drafter, measured: by real greedy decoding, and by drafting along a recorded text of the target.

Greedy speculation gives the target's own greedy text whatever the drafter, so a text that is recorded once stands for
every decoding: drafting along it needs no forward of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import mlx.core as mx

from dflash2_mlx.decode.generate import generate_tokens
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.state import DecodeState
from dflash2_mlx.decode.stats import Stats
from dflash2_mlx.drafter.context import DraftContext
from dflash2_mlx.drafter.propose import Drafter
from dflash2_mlx.target.adapter import Target

Progress = Callable[[float], None]
Ids = Sequence[int]


def _silent(_share: float) -> None:
    """For whoever wants no progress."""


@dataclass(frozen=True)
class Acceptance:
    """`by_position` is the share of cycles whose draft at each position stood; a last cycle counts in full."""

    tokens_per_cycle: float
    by_position: tuple[float, ...]
    cycles: int
    tokens: int

    def __str__(self) -> str:
        shares = " ".join(f"{share:.2f}" for share in self.by_position)
        return f"{self.tokens_per_cycle:.2f} tokens per cycle (by position {shares})"


@dataclass(frozen=True)
class Recording:
    """A greedy text of the target: `tokens` with the prompt's, the answer from `start` up to `end`, and its taps.

    Some tokens follow `end`, so that a block that begins before it can be compared whole. `taps` are the tapped rows
    of all tokens, each (1, n, H).
    """

    tokens: list[int]
    start: int
    end: int
    taps: list[mx.array]


def acceptance(
    target: Target,
    drafter: Drafter,
    prompts: Sequence[Ids],
    *,
    tokens: int = 64,
    block_size: int | None = None,
    eos_token_ids: Collection[int] = (),
    progress: Progress = _silent,
) -> Acceptance:
    """Decode up to `tokens` greedy tokens after each of the `prompts` (token ids) in blocks of `block_size` rows.

    None is the checkpoint's block size. Raises RequestError for a block size that the drafter does not have.
    """
    target = target.tapped(drafter.config.target_layer_ids)
    stats = []
    for number, prompt in enumerate(prompts):
        request = make_request(
            prompt,
            vocab_size=target.vocab_size,
            checkpoint_block_size=drafter.config.block_size,
            max_tokens=tokens,
            block_size=drafter.config.block_size if block_size is None else block_size,
            eos_token_ids=eos_token_ids,
            seed=0,
        )
        stats.append(Stats())
        state = DecodeState(target, drafter, keeps_marks=False)
        for _ in generate_tokens(target, drafter, request, state, stats[-1]):
            pass
        progress((number + 1) / len(prompts))
    accepted = [sum(counts) for counts in zip(*(one.accepted_by_position for one in stats if one.cycles), strict=True)]
    return _acceptance(accepted, sum(one.cycles for one in stats), sum(one.generation_tokens for one in stats))


def record(
    target: Target,
    drafter_layers: Sequence[int],
    prompts: Sequence[Ids],
    *,
    tokens: int = 64,
    beyond: int = 16,
    eos_token_ids: Collection[int] = (),
    progress: Progress = _silent,
) -> list[Recording]:
    """Record the target's greedy answers of up to `tokens` tokens, tapped at `drafter_layers`.

    An answer ends at an end token; `beyond` more tokens are decoded after it.
    """
    target = target.tapped(drafter_layers)
    out = []
    for number, prompt in enumerate(prompts):
        request = make_request(
            prompt, vocab_size=target.vocab_size, checkpoint_block_size=1, max_tokens=tokens + beyond, seed=0
        )
        state = DecodeState(target, None, keeps_marks=False)
        answer: list[int] = []
        for step in generate_tokens(target, None, request, state, Stats()):
            answer += step.tokens
        length = next((i + 1 for i, token in enumerate(answer[:tokens]) if token in eos_token_ids), tokens)
        text = [*prompt, *answer]
        taps = target.with_taps(mx.array([text]), target.new_cache())[1]
        mx.eval(taps)
        out.append(Recording(text, len(prompt), len(prompt) + length, taps))
        progress((number + 1) / len(prompts))
    return out


def replayed(
    target: Target, drafter: Drafter, recordings: Sequence[Recording], *, block_size: int | None = None
) -> Acceptance:
    """What `acceptance` would give for the recorded answers, without running the target.

    `block_size` is at most one more than the tokens that were recorded beyond each end.
    """
    width = block_size or drafter.config.block_size
    accepted = [0] * (width - 1)
    cycles = tokens = 0
    for recording in recordings:
        context = _context(drafter, recording)
        anchor = recording.start
        while anchor + 1 < recording.end:
            proposal = drafter.propose(target, context, mx.array(recording.tokens[anchor : anchor + 1]), width)
            drafts: list[int] = proposal.tokens.tolist()  # type: ignore[assignment]
            kept = _matches(drafts, recording.tokens[anchor + 1 :])
            accepted = [count + (i < kept) for i, count in enumerate(accepted)]
            _append(context, recording, anchor + kept + 1)
            anchor += kept + 1
            cycles += 1
        tokens += recording.end - recording.start
    return _acceptance(accepted, cycles, tokens)


def expected_tokens(
    target: Target, drafter: Drafter, recordings: Sequence[Recording], *, anchors: int, block_size: int | None = None
) -> float:
    """The mean number of tokens that a cycle commits when drafts are drawn from the drafter's own law.

    Taken at `anchors` places, evenly spread over the recorded answers. It changes smoothly with the weights, where
    the count of right guesses jumps: so that few places tell two drafters apart.
    """
    width = block_size or drafter.config.block_size
    each = max(1, -(-anchors // len(recordings)))
    sums = []
    for recording in recordings:
        context = _context(drafter, recording)
        for place in _spread(recording.start, recording.end - 1, each):
            _append(context, recording, place)
            right = text_law(target, drafter, context, recording.tokens[place : place + width])
            sums.append(1.0 + mx.cumprod(right).sum())
        mx.eval(sums)
    return float(mx.stack(sums).mean().item())  # type: ignore[arg-type]


def text_law(target: Target, drafter: Drafter, context: DraftContext, text: Ids) -> mx.array:
    """The drafter's probability (R,) of each token of `text` after its first, given that those before came so."""
    anchor, wanted = mx.array(list(text[:1])), mx.array(list(text[1:]))
    if not drafter.config.has_selector:
        logits = drafter.logits(target, drafter.hidden(target, context, anchor, len(text)))
        return mx.take_along_axis(mx.softmax(logits, axis=-1), wanted[:, None], axis=1)[:, 0]
    lattice = drafter.lattice(target, context, anchor, len(text))
    here = lattice.candidates == wanted[:, None]  # (R, k); a row without the token ends the block there
    before = mx.concatenate([mx.zeros((1,), mx.uint32), mx.argmax(here[:-1], axis=1)])
    law = mx.softmax(mx.take_along_axis(lattice.scores, before[:, None, None], axis=1)[:, 0], axis=-1)
    return (law * here).sum(axis=1)


def _context(drafter: Drafter, recording: Recording) -> DraftContext:
    context = drafter.new_context()
    _append(context, recording, recording.start)
    return context


def _append(context: DraftContext, recording: Recording, end: int) -> None:
    if end > context.end:
        context.append([tap[:, context.end : end] for tap in recording.taps], context.end)


def _spread(start: int, end: int, count: int) -> list[int]:
    """Up to `count` different whole numbers from start to end - 1, in order."""
    count = min(count, end - start)
    return [start + i * (end - start) // count for i in range(count)]


def _matches(drafts: Ids, text: Ids) -> int:
    return next((i for i, (draft, token) in enumerate(zip(drafts, text, strict=False)) if draft != token), len(drafts))


def _acceptance(accepted: Sequence[int], cycles: int, tokens: int) -> Acceptance:
    if not cycles:
        return Acceptance(1.0, (), 0, tokens)
    return Acceptance(1 + sum(accepted) / cycles, tuple(count / cycles for count in accepted), cycles, tokens)
