"""What to take up of a prefix that the cache knows, and filling a new state with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..decode.state import DecodeState
from ..drafter.context import DraftContext
from ..target.copies import compact_state, copied, put_rows, renewed
from ..target.rollback import flatten, is_trimmable
from .prefix_tree import Mark, Node

# A drafter that slides needs the rows before its next block. Up to so many tokens are run again where that gives them
# back, and no more than so many for each row: a judgement, not measured (a prefill's tokens are cheap beside an
# answer's, but a short context mends itself within a window).
_RERUN, _RERUN_A_ROW = 512, 32


@dataclass(frozen=True)
class Choice:
    """How much to take up; the nodes whose marks give the states and the drafter's context."""

    length: int
    state: Node | None = None
    context: Node | None = None


def choose(path: Sequence[Node], known: int, state: DecodeState) -> Choice:
    """What to take up of the `known` tokens along `path`."""
    last = next((node for node in reversed(path) if node.mark and node.end <= known), None)
    if not state.trimmable:
        return Choice(last.end, last, knower(last, last.end)) if last else Choice(0)
    if state.context is None or not path:
        return Choice(known)
    here = knower(path[-1], known)
    missing = missing_rows(here, known)
    if last and missing:
        there = knower(last, last.end)
        gain = missing - missing_rows(there, last.end)
        if known - last.end <= min(_RERUN, _RERUN_A_ROW * gain):
            return Choice(last.end, last, there)
    return Choice(known, None, here)


def knower(node: Node, end: int) -> Node | None:
    """The node in or below `node` whose mark knows most of the drafter's context at `end`."""
    found = [below for below in node.subtree() if below.mark and below.mark.context and below.end >= end]
    return min(found, key=lambda below: missing_rows(below, end), default=None)


def missing_rows(node: Node | None, end: int) -> int:
    """Rows of the drafter's context at `end` that the node's mark does not know."""
    return node.mark.context.missing(end) if node and node.mark and node.mark.context else end


def context_at(node: Node | None, end: int) -> DraftContext | None:
    if node is None or node.mark is None or node.mark.context is None:
        return None
    context = node.mark.context.copy()
    context.trim(end)
    return context


def fill(state: DecodeState, path: Sequence[Node], chosen: Choice) -> None:
    used = [node for node in path if node.start < chosen.length]
    for i, cache in enumerate(flatten(state.caches)):
        if is_trimmable(cache):
            put_rows(cache, [node.rows[i] for node in used])
            excess = used[-1].end - chosen.length
            if excess:
                cache.trim(excess)
        else:
            assert chosen.state is not None
            assert chosen.state.mark is not None
            cache.state = renewed(chosen.state.mark.states[i])
    context = context_at(chosen.context, chosen.length)
    if context is not None:
        state.context = context


def knows_less(mark: Mark, state: DecodeState) -> bool:
    """Whether the state's context has rows that the mark's lacks."""
    if state.context is None:
        return False
    end = state.context.end
    return mark.context is None or mark.context.missing(end) > state.context.missing(end)


def mark_of(state: DecodeState) -> Mark:
    states = [None if is_trimmable(cache) else copied(compact_state(cache)) for cache in flatten(state.caches)]
    return Mark(states, state.context.compact() if state.context else None)
