"""Measures what cycles cost: real ones of every width in turn, at several depths of context, and how drafts fare."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from dflash2_mlx.decode.adaptive import HeldWidth
from dflash2_mlx.decode.generate import generate_tokens
from dflash2_mlx.decode.request import make_request
from dflash2_mlx.decode.width import WidthController
from dflash2_mlx.errors import PairError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.prompts.filler import long_context

# Cycles of one width in a row: the first after a change from or to plain decoding is not timed.
_RUN = 3
# Samples of each width at each depth: fewer are no median, more than the table keeps are of no use.
LEAST, MOST = 3, 9
_CHUNK = 2048

Report = Callable[[str, float], None]


@dataclass
class Survey:
    """A `WidthChooser` that goes through every width in turn, and keeps the seconds of each."""

    widths: Sequence[int]
    rounds: int
    seconds: dict[int, list[float]] = field(default_factory=dict)
    reason: str | None = "measuring"
    done: int = 0

    @property
    def over(self) -> bool:
        return self.done >= self.rounds * len(self.widths) * _RUN

    def choose(self, depth: int) -> int:
        """See `decode.chooser.WidthChooser`, as for the rest."""
        return self.widths[self.done // _RUN % len(self.widths)]

    def cycle_done(self, width: int, accepted: int, depth: int, seconds: float | None) -> None:
        self.done += 1
        if seconds is not None:
            self.seconds.setdefault(width, []).append(seconds)

    def end(self) -> None:
        return None


@dataclass(frozen=True)
class DepthCosts:
    """Median, least and most seconds by width after `depth` tokens of context, samples of each, seconds of prefill."""

    depth: int
    seconds: dict[int, tuple[float, float, float]]
    samples: int
    prompt_seconds: float


def survey_depth(pair: Pair, depth: int, *, until: float, report: Report) -> DepthCosts:
    """Cycles of every width after a prompt of `depth` tokens, until the clock says `until` or there are enough."""
    widths = order(pair.block_size)
    survey = Survey(widths, rounds=-(-MOST // (_RUN - 1)))
    request = make_request(
        _prompt(pair, depth),
        vocab_size=pair.target.vocab_size,
        checkpoint_block_size=pair.block_size,
        max_tokens=1 << 20,
        prefill_step_size=_CHUNK,
        progress=lambda done, total: report(f"reading {depth} tokens", done / total),
        cancelled=lambda: survey.over or (_enough(survey) and time.monotonic() > until),
    )
    stats = pair.new_stats(pair.block_size, "dflash")
    total = survey.rounds * len(widths) * _RUN
    for _ in generate_tokens(pair.target, pair.drafter, request, pair.new_state(), stats, survey):
        report(f"cycles after {depth} tokens", min(1.0, survey.done / total))
    missing = sorted(set(widths) - set(survey.seconds))
    if missing:
        raise PairError(
            f"no cycle of block size {missing[0]} could be timed: close what else runs models, and tune again"
        )
    measured = {width: (median(s), min(s), max(s)) for width, s in sorted(survey.seconds.items())}
    return DepthCosts(depth, measured, min(len(s) for s in survey.seconds.values()), stats.prompt_seconds)


def learn_acceptance(pair: Pair, prompts: Sequence[Sequence[int]], *, tokens: int, until: float) -> Iterator[int]:
    """Answers to prompts at the widest block, from which the pair's controller learns; gives how many are done."""
    controller = _controller(pair)
    eos = pair.tokenizer.eos_token_ids if pair.tokenizer else ()
    for done, prompt in enumerate(prompts, 1):
        if time.monotonic() > until:
            return
        request = make_request(
            prompt,
            vocab_size=pair.target.vocab_size,
            checkpoint_block_size=pair.block_size,
            max_tokens=tokens,
            eos_token_ids=eos,
        )
        chooser = HeldWidth(controller, request.kind, pair.block_size, "measuring acceptance")
        stats = pair.new_stats(pair.block_size, "dflash")
        for _ in generate_tokens(pair.target, pair.drafter, request, pair.new_state(), stats, chooser):
            pass
        yield done


def order(block_size: int) -> list[int]:
    """Every width once; blocks outward from the middle, so that no trend of the machine favours one side."""
    middle = (block_size + 2) // 2
    return [1, *sorted(range(2, block_size + 1), key=lambda width: (abs(width - middle), width))]


def _enough(survey: Survey) -> bool:
    return all(len(survey.seconds.get(width, ())) >= LEAST for width in survey.widths)


def _prompt(pair: Pair, depth: int) -> list[int]:
    """So many tokens: text where there is a tokenizer, since experts are chosen by it and drafts are rejected by it."""
    if pair.tokenizer is None:
        return [(7 * i + 3) % pair.target.vocab_size for i in range(depth)]
    ids: list[int] = pair.tokenizer.encode(long_context(depth + 64, pair.tokenizer.encode))
    return ids[:depth]


def _controller(pair: Pair) -> WidthController:
    assert pair.widths is not None, "a pair with a drafter has one"
    return pair.widths
