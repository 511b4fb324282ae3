"""The target's hidden rows: computed for a batch of conversations, and kept on disk up to a limit.

A drafter learns from the tapped rows of every position and from the target's likeliest next tokens there. Computing
them costs more than a training step; kept, they are computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ...drafter.selector import top_candidates
from ...errors import CheckpointError
from ...target.adapter import Target
from ..data.tokens import Conversation, write_arrays
from ..lanes import Lanes

# Next tokens kept of the target's law at each position; the drafter's own lists have 16.
LIKELIEST = 16
BATCH_TOKENS = 2048  # of one forward on one lane: more rows bring no more speed on two cores


@dataclass(frozen=True)
class Rows:
    """Of one conversation of n tokens: `taps` (n, T*H) in bfloat16, and the target's likeliest next tokens.

    `ids` (n, K) int32 and `logits` (n, K) are those after each position.
    """

    taps: mx.array
    ids: mx.array
    logits: mx.array


def compute_rows(target: Target, conversations: Sequence[Conversation], lanes: Lanes) -> list[Rows]:
    """The rows of each conversation, evaluated. `target` is prepared for the drafter's taps."""
    order = sorted(range(len(conversations)), key=lambda i: len(conversations[i]))
    found: dict[int, Rows] = {}
    batches = _batches([len(conversations[i]) for i in order])
    for first in range(0, len(batches), len(lanes)):
        wave = [[order[i] for i in batch] for batch in batches[first : first + len(lanes)]]
        parts = lanes.map(lambda batch: _forward(target, [conversations[i] for i in batch]), wave)
        # Whole batches: with a slice of each conversation as an output, the lanes ran one after the other.
        mx.eval(parts)
        for batch, arrays in zip(wave, parts, strict=True):
            for place, i in enumerate(batch):
                # A copy, so that a row does not hold the whole batch.
                found[i] = Rows(*(mx.contiguous(array[place, : len(conversations[i])]) for array in arrays))
    return [found[i] for i in range(len(conversations))]


def _batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of `lengths`, which rise, in groups whose padded size stays near BATCH_TOKENS."""
    groups: list[list[int]] = []
    for i, length in enumerate(lengths):
        if groups and length * (len(groups[-1]) + 1) <= BATCH_TOKENS:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups


def _forward(target: Target, conversations: Sequence[Conversation]) -> tuple[mx.array, mx.array, mx.array]:
    """Taps (N, n, T*H), likeliest ids and logits (N, n, K), padded on the right, which causal layers do not see.

    In chunks, so that the logits of a long conversation do not lie in memory at once.
    """
    longest = max(map(len, conversations))
    padded = mx.array([c.tokens.tolist() + [0] * (longest - len(c)) for c in conversations])
    caches, chunks = target.new_cache(), []
    for first in range(0, longest, BATCH_TOKENS):
        part = padded[:, first : first + BATCH_TOKENS]
        logits, taps = target.with_taps(part, caches)
        ids, values = top_candidates(logits.reshape(-1, logits.shape[-1]), min(LIKELIEST, target.vocab_size))
        likely = (ids.astype(mx.int32), values.astype(mx.float32))
        joined = mx.concatenate(taps, axis=-1).astype(mx.bfloat16)
        chunks.append((joined, *(array.reshape(*part.shape, -1) for array in likely)))
    joined, ids, values = (mx.concatenate(list(arrays), axis=1) for arrays in zip(*chunks, strict=True))
    return joined, ids, values


def rows_path(folder: Path, shard: int) -> Path:
    """Where the rows of the shard of that number lie."""
    return folder / f"rows-{shard:05d}.safetensors"


def write_rows(path: Path, rows: Sequence[Rows]) -> None:
    """Write the rows of one shard's conversations, in their order."""
    arrays: dict[str, mx.array] = {}
    for i, one in enumerate(rows):
        arrays |= {f"taps.{i}": one.taps, f"ids.{i}": one.ids, f"logits.{i}": one.logits}
    write_arrays(path, arrays, {"conversations": str(len(rows))})


def read_rows(path: Path) -> list[Rows]:
    """The rows of one shard, read from the file when they are used. Raises CheckpointError for a damaged file."""
    try:
        arrays = mx.load(str(path))
        assert isinstance(arrays, dict)
        count = len(arrays) // 3
        return [Rows(arrays[f"taps.{i}"], arrays[f"ids.{i}"], arrays[f"logits.{i}"]) for i in range(count)]
    except (RuntimeError, KeyError, OSError) as error:
        raise CheckpointError(f"{path} holds no rows ({error}): remove it, they are computed again") from None
