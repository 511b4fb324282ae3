"""Prefill: all but the last prompt token in chunks, keeping the tapped rows that the drafter's window can see.

That is at the end, and at every border, where others may take the prompt up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import mlx.core as mx

from ..drafter.config import DrafterConfig
from ..target.adapter import Target
from .request import Request
from .state import DecodeState

# Templates open a turn with a few tokens (a role, a thinking block) that the next prompt words differently: a point to
# come back to has to lie before them.
_BEFORE_END = 16


def prefill(target: Target, state: DecodeState, request: Request) -> Iterator[None]:
    """Feed what `state` lacks of the prompt, up to its last token; yields after each chunk.

    Ends early when the request is cancelled between chunks. Chunks are the same forwards as mlx-lm's. Where the caches
    cannot be trimmed, one border lies shortly before the end, and a mark there.
    """
    prompt, end = request.prompt, len(request.prompt) - 1
    request.progress(len(state.tokens), len(prompt))
    mark = max(len(state.tokens), end - _BEFORE_END) if state.needs_marks else end
    while (start := len(state.tokens)) < end and not request.cancelled():
        if start == mark:
            state.mark()
        border = min(b for b in (*request.borders, mark, end) if b > start)
        chunk = prompt[start : min(start + request.prefill_step_size, border)]
        after = [b for b in request.borders if b >= start + len(chunk)]
        with state.changing():
            _feed(target, state, chunk, min(after, default=len(prompt)))
        if len(state.tokens) in request.borders:
            request.at_border(state)
        request.progress(len(state.tokens), len(prompt))
        yield


def _feed(target: Target, state: DecodeState, chunk: Sequence[int], horizon: int) -> None:
    """Feed a chunk; of its tapped rows those are kept that a block after `horizon` tokens can see."""
    start, context = len(state.tokens), state.context
    tokens = mx.array([chunk])
    wanted = [] if context is None else _visible(context.config, start, start + len(chunk), horizon)
    if context is None or not wanted:
        target(tokens, state.caches)
    else:
        _, taps = target.with_taps(tokens, state.caches)
        for first, last in wanted:
            context.append([tap[:, first - start : last - start] for tap in taps], first)
        del taps
    mx.eval([cache.state for cache in state.caches], context.arrays() if context else [])
    mx.clear_cache()
    state.tokens.extend(chunk)


def _visible(config: DrafterConfig, start: int, end: int, horizon: int) -> list[tuple[int, int]]:
    """Of positions `start` to `end`, the ranges whose context rows a block after `horizon` tokens can see."""
    near = start if config.context_rows is None else max(start, horizon - config.context_rows)
    sunk = min(end, config.sink_rows)
    if sunk <= start:
        ranges = [(near, end)]
    elif near <= sunk:
        ranges = [(start, end)]
    else:
        ranges = [(start, sunk), (near, end)]
    return [(first, last) for first, last in ranges if first < last]
