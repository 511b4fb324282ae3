"""An analysis of a pair over texts of its target: `analyze`, or `Analysis`, given one text after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from ..errors import RequestError
from ..pairs import Pair
from .arms import SERVED, ArmRows, arms_of
from .attention import AttentionWatch, Shares
from .drafted import draft
from .figures import ArmFigures, Scored, arm_figures
from .reading import contexts, read
from .text import RecordedText, check_target, drafter_label

# Blocks of an analysis of which one has its attention recomputed: the shares vary little from block to block.
ATTENTION_EVERY = 8
# Below this share of greedy tokens a text is not the target's own: rounding moves near-ties alone.
_LEAST_AGREEMENT = 0.5
_JUDGED_FROM = 16  # tokens
_CLEAR_EVERY = 64  # blocks between releases of unused buffers

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class AttentionFigures:
    """Means over `blocks` blocks: the share of attention on block rows, by (layer, head) and by (layer, row).

    `even` by layer is the share if attention were spread evenly over all visible rows.
    """

    blocks: int
    heads: list[list[float]]
    rows: list[list[float]]
    even: list[float]


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that an analysis tells of a pair; `kinds` are the served arm's figures by kind of content.

    `agreement`: the share of the greedy texts' tokens that are the target's greedy ones when it reads them at once.
    `measured`: tokens per cycle of this drafter while the texts were written, by temperature. `consecutive`: every
    token was an anchor.
    """

    engine: str
    block_size: int
    stride: int
    texts: tuple[RecordedText, ...]
    agreement: float | None
    measured: dict[float, float]
    arms: dict[str, ArmFigures]
    kinds: dict[str, ArmFigures]
    attention: AttentionFigures | None

    @property
    def served(self) -> ArmFigures:
        return self.arms[SERVED]


@dataclass
class _Read:
    """One text's results: its scored blocks by arm."""

    text: RecordedText
    agreement: float
    scored: dict[str, Scored] = field(default_factory=dict)


class Analysis:
    """Figures that grow with each text, so that what is done survives an interruption."""

    def __init__(self, pair: Pair, *, stride: int = 1, attention_every: int = ATTENTION_EVERY) -> None:
        if pair.drafter is None:
            reason = f" ({pair.fallback_reason})" if pair.fallback_reason else ""
            raise RequestError(f"{pair.model_name} has no drafter{reason}: name one with --draft", param="draft")
        if stride < 1:
            raise RequestError(f"stride {stride}: it counts tokens from anchor to anchor, 1 or more", param="stride")
        self.pair, self.stride, self.drafter = pair, stride, pair.drafter
        self._attention_every = attention_every
        self._drafters, self._arms = arms_of(pair.drafter)
        self._watch = AttentionWatch(pair.drafter)
        self._shares: list[Shares] = []
        self._read: list[_Read] = []
        self._blocks = 0

    @property
    def texts(self) -> tuple[RecordedText, ...]:
        """Those that count so far."""
        return tuple(one.text for one in self._read)

    def add(self, text: RecordedText, progress: Progress | None = None) -> None:
        """Draft at every anchor of a text; `progress` is told (anchors done, all).

        A text of one token has no anchor and counts for nothing. Raises RequestError for another target's text.
        """
        check_target([text], self.pair)
        if len(text.answer) < 2:
            return
        target, width = self.pair.target, self.pair.block_size
        reading = read(target, self.drafter, text)
        self._check_agreement(text, reading.agreement)
        rows = [ArmRows(arm) for arm in self._arms]
        shares: list[Shares] = []
        anchors = len(range(0, len(text.answer) - 1, self.stride))
        for done, (anchor, context) in enumerate(contexts(reading, self.stride), 1):
            token = text.answer[anchor]
            blocks = {name: draft(one, target, context, token, width) for name, one in self._drafters.items()}
            for arm in rows:
                arm.add(reading, anchor, blocks)
            if (self._blocks + done) % self._attention_every == 0:
                shares.append(self._watch.shares(target, context, token, width))
            if done % _CLEAR_EVERY == 0:
                mx.clear_cache()
            if progress is not None:
                progress(done, anchors)
        self._blocks += anchors
        self._shares += shares
        scored = {arm.arm.name: arm.scored(text.temperature) for arm in rows}
        self._read.append(_Read(text, reading.agreement, scored))

    def figures(self) -> Figures:
        """Of all texts so far. Raises RequestError when there is none with two tokens."""
        if not self._read:
            raise RequestError("no text has an anchor: give texts of two tokens or more", param="tokens")
        kinds = list(dict.fromkeys(one.text.kind for one in self._read))
        greedy = [one for one in self._read if one.text.temperature == 0]
        weights = [len(one.text.answer) for one in greedy]
        return Figures(
            engine=self.pair.engine,
            block_size=self.pair.block_size,
            stride=self.stride,
            texts=self.texts,
            agreement=float(np.average([one.agreement for one in greedy], weights=weights)) if greedy else None,
            measured=self._measured(),
            arms={arm.name: self._figures(arm.name, self._read) for arm in self._arms},
            kinds={kind: self._figures(SERVED, [one for one in self._read if one.text.kind == kind]) for kind in kinds},
            attention=_attention(self._shares),
        )

    def _figures(self, arm: str, of: Sequence[_Read]) -> ArmFigures:
        return arm_figures([one.scored[arm] for one in of], consecutive=self.stride == 1)

    def _measured(self) -> dict[float, float]:
        """Of the texts that this very drafter helped to write."""
        totals: dict[float, list[int]] = {}
        for text in self.texts:
            if text.cycles and text.drafter == drafter_label(self.pair):
                total = totals.setdefault(text.temperature, [0, 0])
                total[0] += text.cycle_tokens
                total[1] += text.cycles
        return {temperature: tokens / cycles for temperature, (tokens, cycles) in sorted(totals.items())}

    def _check_agreement(self, text: RecordedText, agreement: float) -> None:
        if text.temperature == 0 and len(text.answer) >= _JUDGED_FROM and agreement < _LEAST_AGREEMENT:
            raise RequestError(
                f"only {agreement:.0%} of a recorded text of {text.model} are what {self.pair.model_name} itself would "
                "say: it has other weights; replay with the target that wrote it",
                param="replay",
            )


def analyze(
    pair: Pair,
    texts: Sequence[RecordedText],
    *,
    stride: int = 1,
    attention_every: int = ATTENTION_EVERY,
    progress: Progress | None = None,
) -> Figures:
    """The method's figures of a pair over texts of its target, with every `stride`-th answer token as an anchor.

    One block in `attention_every` has its attention looked at. `progress` is told (texts done, all). Raises
    RequestError for a pair without a drafter and for texts of another target, DecodeError for a drafter that gives
    numbers that are not finite.
    """
    check_target(texts, pair)
    analysis = Analysis(pair, stride=stride, attention_every=attention_every)
    for number, text in enumerate(texts, 1):
        analysis.add(text)
        if progress is not None:
            progress(number, len(texts))
    return analysis.figures()


def _attention(shares: Sequence[Shares]) -> AttentionFigures | None:
    if not shares:
        return None
    block = np.mean([one.block for one in shares], axis=0)  # (layers, heads, B)
    even = np.mean([one.even for one in shares], axis=0)  # (layers, B)
    return AttentionFigures(
        len(shares), block.mean(axis=2).tolist(), block.mean(axis=1).tolist(), even.mean(axis=1).tolist()
    )
