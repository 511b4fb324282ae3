"""Does a verify of a width give the logits of single rows on this machine? Measured, and told in three words.

`equal` is bit for bit. `rounding` is a gap that the dtype explains. `different` is a gap beyond that: a kernel, or a
rollback, is at fault. The row after a rolled-back block is compared too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx

from ..target.adapter import Target
from ..target.bookmark import Bookmark
from ..target.one_by_one import verify
from .exactness_report import ExactnessReport, WidthExactness

__all__ = ["ExactnessReport", "WidthExactness", "exactness", "sample_tokens", "tolerance"]

# The largest share of a row's largest logit by which rounding moves a logit. On the tiny families of the tests, whose
# layers amplify rounding more than trained ones (2026-11, MLX 0.32 on a CPU): float32 up to 1.5e-5, bfloat16 up to 0.04
# and with 4-bit weights 0.08 (once 0.17); a rollback that does nothing moves one by 0.2 to 1.5 where layers look back.
# float16 has three bits more than bfloat16; so have products of float32 where a GPU makes them in TF32.
_TOLERANCES = {mx.bfloat16: 0.2, mx.float16: 0.02, mx.float32: 1e-3}
_TOLERANCE_OF_TF32 = 0.02
_PREFILL = 512

_PROSE = """The ferry left a quarter of an hour late, and nobody on the pier seemed to mind. Two boys were counting
jellyfish from the end of the jetty, a woman sold warm bread out of the back of a van, and the harbour master, who had
seen the tide tables change hands four times in his life, wrote the time of departure into a book."""


def exactness(
    target: Target,
    widths: Iterable[int],
    *,
    tokens: Sequence[int],
    anchors: int = 2,
    progress: Callable[[float], None] = lambda share: None,
) -> ExactnessReport:
    """Compare blocks of each of the `widths` (two or more rows) with single rows, after `tokens` (two or more).

    The rows are the target's own greedy text. Every width begins at `anchors` positions in turn. That costs widest +
    2 * `anchors` single rows, and `anchors` times a block and a single row for each width; it holds the logits of
    widest + `anchors` rows. `progress` is told the share that is done.
    """
    sizes = sorted(set(widths))
    if len(tokens) < 2 or anchors < 1 or (sizes and sizes[0] < 2):
        raise ValueError(f"widths {sizes}, {len(tokens)} tokens, {anchors} anchors: two rows, two tokens, an anchor")
    found: dict[int, list[_Row]] = {size: [] for size in sizes}
    if sizes:
        caches = _prefilled(target, tokens[:-1])
        singles = _single_rows(target, caches, tokens[-1], sizes[-1] + anchors)
        for anchor in range(anchors):
            for number, (size, rows) in enumerate(found.items()):
                progress((anchor + number / len(sizes)) / anchors)
                rows += _block(target, caches, singles, anchor, size)
            _feed(target, caches, singles.tokens[anchor])
    limit = tolerance(target.dtype)
    judged = tuple(_judge(size, rows, limit) for size, rows in found.items())
    return ExactnessReport(str(target.dtype).rsplit(".", 1)[-1], judged)


def sample_tokens(tokenizer: Any, vocab_size: int) -> list[int]:
    """A few dozen tokens to check after: prose by a pair's tokenizer; without one, ids from all over the vocabulary."""
    if tokenizer is None:
        return [(i * 7919 + 11) % vocab_size for i in range(48)]
    tokens: list[int] = tokenizer.encode(_PROSE)
    return tokens[:64]


def tolerance(dtype: mx.Dtype) -> float:
    """The largest share of a row's largest logit by which rounding in `dtype` moves a logit on this device."""
    if dtype == mx.float32 and mx.default_device() != mx.cpu:
        return _TOLERANCE_OF_TF32
    return _TOLERANCES.get(dtype, _TOLERANCES[mx.bfloat16])


class _Singles(NamedTuple):
    """A greedy text: its tokens, and the logits (n, V) of each of them, fed one by one."""

    tokens: list[int]
    logits: mx.array


class _Row(NamedTuple):
    """A row of a block against the same row alone; `rolled_back`: it is the row after a block, part of which went."""

    gap: float  # the largest of a logit
    scale: float  # the largest magnitude of a logit
    flips: bool  # the best logits are those of two tokens
    margin: float  # between the logits of these two tokens, in the single row
    rolled_back: bool


def _prefilled(target: Target, tokens: Sequence[int]) -> list[Any]:
    caches = target.new_cache()
    for start in range(0, len(tokens), _PREFILL):
        target(mx.array([list(tokens[start : start + _PREFILL])]), caches)
        mx.eval([cache.state for cache in caches])
    return caches


def _feed(target: Target, caches: list[Any], token: int) -> mx.array:
    """The logits (V,) of one row."""
    logits = target(mx.array([[token]]), caches)[0, 0]
    mx.eval(logits, [cache.state for cache in caches])
    return logits


def _single_rows(target: Target, caches: list[Any], token: int, count: int) -> _Singles:
    """`count` rows of greedy text from `token` on; the caches are left as they were."""
    before = Bookmark(caches)
    tokens, rows = [token], []
    for _ in range(count):
        rows.append(_feed(target, caches, tokens[-1]))
        best: int = mx.argmax(rows[-1]).item()  # type: ignore[assignment]
        tokens.append(best)
    before.go_back()
    return _Singles(tokens[:count], mx.stack(rows))


def _block(target: Target, caches: list[Any], singles: _Singles, start: int, rows: int) -> list[_Row]:
    """A block from `start` on, half of it committed, and the row after that; the caches are left as they were."""
    before = Bookmark(caches)
    block = mx.array([singles.tokens[start : start + rows]])
    transaction, logits, _ = verify(target, caches, block)
    found = _compare(logits[0], singles.logits[start : start + rows])
    keep = (rows + 1) // 2
    transaction.commit(keep)
    after = start + keep
    following = _feed(target, caches, singles.tokens[after])
    found += _compare(following[None], singles.logits[after : after + 1], rolled_back=True)
    before.go_back()
    return found


def _compare(ours: mx.array, singles: mx.array, *, rolled_back: bool = False) -> list[_Row]:
    """Row by row, each (n, V)."""
    ours, singles = ours.astype(mx.float32), singles.astype(mx.float32)
    # What is equal has no gap, infinities too: some families forbid tokens with them.
    gaps = mx.where(ours == singles, 0.0, mx.abs(ours - singles)).max(axis=-1)
    scales = mx.where(mx.isfinite(singles), mx.abs(singles), 0.0).max(axis=-1)
    chosen = mx.argmax(ours, axis=-1)
    flips = chosen != mx.argmax(singles, axis=-1)
    margins = singles.max(axis=-1) - mx.take_along_axis(singles, chosen[:, None], axis=-1)[:, 0]
    columns: list[Any] = [column.tolist() for column in (gaps, scales, flips, margins)]
    return [_Row(gap, scale, flip, margin, rolled_back) for gap, scale, flip, margin in zip(*columns, strict=True)]


def _judge(width: int, rows: Sequence[_Row], limit: float) -> WidthExactness:
    """The verdict on a width.

    No limit is set to the margin at a flip: twice the gap of the row is the most that it can be.
    """
    worst = max(rows, key=_share)
    share = _share(worst)
    flips = [row.margin for row in rows if row.flips]
    finite = math.isfinite(share)
    verdict = "different" if share > limit else "rounding" if any(row.gap for row in rows) else "equal"
    return WidthExactness(
        width=width,
        verdict=verdict,
        rows=len(rows),
        gap=max(row.gap for row in rows) if finite else None,
        share=share if finite else None,
        flips=len(flips),
        margin=max(flips) if flips and finite else None,
        rolled_back=worst.rolled_back,
    )


def _share(row: _Row) -> float:
    """The gap as a share of the row's scale; what is not finite is infinite."""
    if not math.isfinite(row.gap):
        return math.inf
    return row.gap / row.scale if row.scale else math.inf if row.gap else 0.0
