"""Blocks to learn: where anchors may stand, what is learnt of each, and that nothing else is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash2_mlx.train.data.tokens import Conversation
from dflash2_mlx.train.learning.anchors import blocks_at, possible_anchors, sample_blocks
from dflash2_mlx.train.learning.step import position_weights


def conversation(mask: list[int]) -> Conversation:
    return Conversation(np.arange(100, 100 + len(mask), dtype=np.int32), np.array(mask, np.bool_))


def test_an_anchor_is_the_targets_own_as_in_decoding_with_something_before_it_and_after_it() -> None:
    assert possible_anchors(conversation([0, 0, 0, 1, 1, 1])).tolist() == [3, 4]
    assert possible_anchors(conversation([1, 1, 1, 1])).tolist() == [1, 2]
    assert possible_anchors(conversation([0, 1, 0, 1])).tolist() == []
    assert possible_anchors(conversation([0, 0, 0])).tolist() == []
    assert possible_anchors(conversation([1])).tolist() == []


def test_a_row_is_learnt_while_all_before_it_are_the_targets_own() -> None:
    one = conversation([0, 0, 1, 1, 0, 1, 1, 1])
    blocks = blocks_at([one], [np.array([1, 4, 6])], 4)
    assert blocks.truth.tolist() == [[[101, 102, 103, 104], [104, 105, 106, 107], [106, 107, 0, 0]]]
    assert blocks.learnt.tolist() == [[[True, True, False], [True, True, True], [True, False, False]]]
    assert blocks.labels == 6


def test_conversations_with_fewer_anchors_are_padded_by_blocks_that_learn_nothing() -> None:
    blocks = sample_blocks([conversation([0, 1, 1]), conversation([0] + [1] * 9)], 5, 3, np.random.default_rng(0))
    assert blocks.anchors.shape == (2, 5)
    assert blocks.learnt[0].any(axis=1).tolist() == [True, False, False, False, False]
    assert blocks.learnt[1].any(axis=1).all()
    assert len(set(blocks.anchors[1].tolist())) == 5
    assert (position_weights(blocks, 4.0)[~blocks.learnt] == 0).all()


def test_later_rows_weigh_less_and_equal_rows_equally() -> None:
    weights = position_weights(blocks_at([conversation([0] + [1] * 9)], [np.array([1, 2])], 4), 2.0)
    assert np.allclose(weights[0, 0], np.exp([0, -0.5, -1.0]))
    assert (weights[0, 0] == weights[0, 1]).all()


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 1), min_size=3, max_size=40), st.integers(2, 9), st.integers(0, 5))
def test_every_learnt_row_names_the_token_that_stands_there(mask: list[int], block: int, seed: int) -> None:
    one = conversation(mask)
    blocks = sample_blocks([one], 6, block, np.random.default_rng(seed))
    for anchor, truth, learnt in zip(blocks.anchors[0], blocks.truth[0], blocks.learnt[0], strict=True):
        for row, is_learnt in enumerate(learnt, 1):
            if is_learnt:
                assert one.tokens[anchor + row] == truth[row]
                assert one.mask[anchor + 1 : anchor + row + 1].all()
