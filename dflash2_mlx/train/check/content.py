"""What the conversations of a data folder are good for, told by one reading of all shards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ...errors import CheckpointError
from ..data.dataset import Dataset
from ..learning.anchors import possible_anchors
from ..wording import counted

_Ids = tuple[int, ...]


@dataclass(frozen=True)
class Content:
    """`leaked`: how many of the held-out prompts are prompts of the data; `masks`: mask tokens in the answers."""

    leaked: int
    masks: int


def content_of(data: Dataset, held_out: Collection[_Ids], mask_token: int) -> Content:
    """Reads every shard. Raises CheckpointError where nothing can be learnt from any conversation."""
    wanted = set(held_out)
    lengths = {len(ids) for ids in wanted}
    leaked: set[_Ids] = set()
    masks, anchors = 0, 0
    for shard in range(data.shards):
        for one in data.conversations_of(shard):
            first = int(one.mask.argmax())
            if first in lengths and (ids := tuple(one.tokens[:first].tolist())) in wanted:
                leaked.add(ids)
            masks += int(np.count_nonzero(one.tokens[one.mask] == mask_token))
            anchors += len(possible_anchors(one))
    if anchors == 0:
        raise CheckpointError(
            f"the data in {data.folder} has nothing to learn from ({counted(data.answer_tokens, 'token')} of the "
            "target's, never two in a row behind a prompt): prepare it with longer answers (`train data --max-tokens`)"
        )
    return Content(len(leaked), masks)
