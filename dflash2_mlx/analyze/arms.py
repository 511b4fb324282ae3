"""The arms of an ablation, and one arm's blocks along a text, scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..drafter.propose import Drafter
from .drafted import Block
from .figures import Scored
from .reading import Reading
from .scoring import greedy_walk, proposal_of, ranks, standing, walked
from .variants import no_convolution, static_convolution, with_convolutions

SERVED = "as served"
NO_SELECTOR = "no selector"
STATIC_CONVOLUTION = "convolution without its dynamic part"
NO_CONVOLUTION = "no convolution"
NEITHER = "no selector, no convolution"


@dataclass(frozen=True)
class Arm:
    """Drafts of the drafter named `drafter`: the selector's walk, or each row's own best token."""

    name: str
    drafter: str
    selector: bool


def arms_of(drafter: Drafter) -> tuple[dict[str, Drafter], list[Arm]]:
    """The drafters that have to run, by name, and the arms, of which the first is what is served.

    What a drafter does not have cannot be taken out: a first-generation one has one arm.
    """
    config = drafter.config
    drafters, arms = {SERVED: drafter}, [Arm(SERVED, SERVED, selector=config.has_selector)]
    if config.has_selector:
        arms.append(Arm(NO_SELECTOR, SERVED, selector=False))
    if config.has_conv:
        drafters[STATIC_CONVOLUTION] = with_convolutions(drafter, static_convolution)
        drafters[NO_CONVOLUTION] = with_convolutions(drafter, no_convolution)
        arms += [Arm(name, name, selector=config.has_selector) for name in (STATIC_CONVOLUTION, NO_CONVOLUTION)]
    if config.has_selector and config.has_conv:
        arms.append(Arm(NEITHER, NO_CONVOLUTION, selector=False))
    return drafters, arms


@dataclass
class ArmRows:
    """What one arm gave so far along one text, block by block."""

    arm: Arm
    left: list[int] = field(default_factory=list)
    hits: list[np.ndarray] = field(default_factory=list)
    ranks: list[np.ndarray] = field(default_factory=list)
    walk_ranks: list[np.ndarray] = field(default_factory=list)
    stands: list[np.ndarray] = field(default_factory=list)
    depth: int = 0

    def add(self, reading: Reading, anchor: int, blocks: Mapping[str, Block]) -> None:
        """Score the block after answer token `anchor`; `blocks` by the name of their drafter."""
        block = blocks[self.arm.drafter]
        rows, self.depth = block.candidates.shape
        answer = reading.text.answer
        reference = padded(answer[anchor + 1 : anchor + 1 + rows], rows, -1)
        log_p = padded(reading.log_p[anchor + 1 : anchor + 1 + rows], rows, 0.0)
        self.left.append(len(answer) - 1 - anchor)
        self.ranks.append(ranks(block.candidates, block.unary, reference))
        if self.arm.selector and block.scores is not None:
            path = greedy_walk(block.scores)
            drafts = block.candidates[np.arange(rows), path]
            self.walk_ranks.append(ranks(block.candidates, walked(block.scores, path), reference))
            q = proposal_of(block.candidates, block.scores, reference)
        else:
            drafts = block.best
            q = (drafts == reference).astype(np.float64)  # proposed with certainty
        self.hits.append(drafts == reference)
        self.stands.append(standing(q, log_p))

    def scored(self, temperature: float) -> Scored:
        """All blocks; there is at least one."""
        walks = np.stack(self.walk_ranks) if self.walk_ranks else None
        left, hits, places, stands = (np.array(self.left), *map(np.stack, (self.hits, self.ranks, self.stands)))
        return Scored(temperature, self.depth, left, hits, places, walks, stands)


def padded(values: Sequence[int] | np.ndarray, rows: int, filler: float) -> np.ndarray:
    """The values as (rows,), those that the text lacks as `filler`."""
    return np.array([*values, *[filler] * (rows - len(values))])
