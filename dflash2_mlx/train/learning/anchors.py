"""Which blocks of a conversation are learnt in one step: their anchors, and the true tokens behind each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..data.tokens import Conversation


@dataclass(frozen=True)
class Blocks:
    """S conversations padded to L tokens, with A anchors each, for blocks of B rows.

    `tokens` (S, L); `anchors` (S, A) positions; `truth` (S, A, B) the tokens from the anchor on; `learnt` (S, A, B-1)
    whether the drafted row's true token exists, was written by the target, and is to be learnt.
    """

    tokens: NDArray[np.int32]
    anchors: NDArray[np.int32]
    truth: NDArray[np.int32]
    learnt: NDArray[np.bool_]

    @property
    def labels(self) -> int:
        return int(self.learnt.sum())


def possible_anchors(conversation: Conversation) -> NDArray[np.int64]:
    """Positions that an anchor can have: something lies before it, and the target wrote it and what follows it."""
    both = conversation.mask[1:-1] & conversation.mask[2:]
    return np.flatnonzero(both) + 1


def sample_blocks(
    conversations: Sequence[Conversation], anchors: int, block_size: int, generator: np.random.Generator
) -> Blocks:
    """`anchors` of each conversation, drawn without repetition where it has so many; the rest are not learnt."""
    chosen = []
    for conversation in conversations:
        places = possible_anchors(conversation)
        chosen.append(np.sort(generator.permutation(places)[:anchors]))
    return blocks_at(conversations, chosen, block_size, anchors)


def blocks_at(
    conversations: Sequence[Conversation],
    chosen: Sequence[NDArray[np.int64]],
    block_size: int,
    anchors: int | None = None,
    length: int | None = None,
) -> Blocks:
    """The blocks at the chosen positions of each conversation, padded to the most of any, or to the given sizes.

    Padding repeats no anchor: a padded one stands at position 1 and learns nothing.
    """
    anchors = max(map(len, chosen)) if anchors is None else anchors
    length = max(map(len, conversations)) if length is None else length
    count = len(conversations)
    tokens = np.zeros((count, length), np.int32)
    places = np.ones((count, anchors), np.int32)
    written = np.zeros((count, length + block_size), np.bool_)
    padded = np.zeros((count, length + block_size), np.int32)
    for i, (conversation, positions) in enumerate(zip(conversations, chosen, strict=True)):
        n = len(conversation)
        tokens[i, :n] = padded[i, :n] = conversation.tokens
        written[i, :n] = conversation.mask
        places[i, : len(positions)] = positions
    reach = places[:, :, None] + np.arange(block_size)  # (S, A, B)
    row = np.arange(count)[:, None, None]
    # A row is learnt only while every row before it is: past the end of an answer nothing was accepted.
    learnt = np.logical_and.accumulate(written[row, reach[..., 1:]], axis=-1)
    for i, positions in enumerate(chosen):
        learnt[i, len(positions) :] = False
    return Blocks(tokens, places, padded[row, reach], learnt)
