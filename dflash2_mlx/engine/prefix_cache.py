"""The prefix cache: what conversations have computed, kept in RAM for whoever begins with the same tokens.

Rows of keys and values are stored once for all prefixes that share them. A target with other caches (windows, recurrent
states) can be taken up only at marks; the drafter's context is kept with the marks too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from ..decode.state import DecodeState
from ..drafter.context import DraftContext
from ..pairs import Pair
from ..target.copies import arrays_in, compact_state, copied, put_rows, renewed, take_rows
from ..target.rollback import flatten, is_trimmable
from .prefix_tree import Mark, Node

# A drafter that slides needs the rows before its next block. Up to so many tokens are run again where that gives them
# back, and no more than so many for each row: a judgement, not measured (a prefill's tokens are cheap beside an
# answer's, but a short context mends itself within a window).
_RERUN, _RERUN_A_ROW = 512, 32


@dataclass(frozen=True)
class Restored:
    """A state that holds a prefix of a prompt, and how much of the prompt the cache has seen at all."""

    state: DecodeState
    known: int


@dataclass
class CacheFigures:
    """Counts since the start, and what is held."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    nbytes: int = 0
    nodes: int = 0
    marks: int = 0


@dataclass
class _Tree:
    pair: Pair  # kept, so that its id is no other's
    root: Node = field(default_factory=lambda: Node(0, (), []))


class PrefixCache:
    """Prefixes by pair and token ids, at most `limit` bytes, the least recently used forgotten first.

    All of it is called from the thread that runs the models. A limit of 0 keeps nothing.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.figures = CacheFigures()
        self._trees: dict[int, _Tree] = {}
        self._tick = 0

    def restore(self, pair: Pair, prompt: Sequence[int]) -> Restored:
        """A new state with the longest usable prefix of `prompt`, leaving at least its last token to run."""
        state = DecodeState(pair.target, pair.drafter, keeps_marks=False)
        path, known = self._tree(pair).root.walk(tuple(prompt[:-1]))
        chosen = _choose(path, known, state)
        if chosen.length:
            self.figures.hits += 1
            self._touch(path, chosen.length, chosen.state, chosen.context)
            _fill(state, path, chosen)
            state.tokens = list(prompt[: chosen.length])
        else:
            self.figures.misses += 1
        return Restored(state, known)

    def store(self, pair: Pair, state: DecodeState) -> None:
        """Keep what `state` holds; only what is new costs anything."""
        if self.limit <= 0 or not state.tokens:
            return
        tokens = tuple(state.tokens)
        root = self._tree(pair).root
        path, matched = root.walk(tokens)
        node = path[-1] if path else root
        if matched < node.end:
            node = node.split(matched)
            path = [*path[:-1], node]
        if matched < len(tokens):
            rows = [take_rows(c, matched, len(tokens)) if is_trimmable(c) else None for c in flatten(state.caches)]
            node = node.add(tokens[matched:], rows)
            path.append(node)
        if node.mark is None or _knows_less(node.mark, state):
            node.mark = _mark(state)
        mx.eval(arrays_in(node.rows), node.mark.arrays())
        if state.context is not None and state.context.unbounded:
            # Such a context serves every shorter prefix too.
            for earlier in path[:-1]:
                earlier.mark = earlier.mark and earlier.mark.without_context()
        self._touch(path, len(tokens), node)
        self._shrink(self.limit)

    def drop(self, pair: Pair) -> None:
        """Forget everything of a pair."""
        tree = self._trees.pop(id(pair), None)
        if tree is not None:
            tree.root.dissolve()
        self._count()

    def _tree(self, pair: Pair) -> _Tree:
        return self._trees.setdefault(id(pair), _Tree(pair))

    def _touch(self, path: Sequence[Node], length: int, *marked: Node | None) -> None:
        self._tick += 1
        for node in path:
            if node.start < length:
                node.used = self._tick
        for source in marked:
            if source is not None and source.mark is not None:
                source.mark.used = self._tick

    def give_back(self, nbytes: int) -> None:
        """Forget at least so many bytes, as far as there are any."""
        self._shrink(max(0, self.figures.nbytes - nbytes))

    def _shrink(self, limit: int) -> None:
        """Forget leaves and marks until no more than `limit` bytes are held."""
        nodes = self._count()
        while self.figures.nbytes > limit:
            _forget(min(nodes, key=_last_use))
            self.figures.evictions += 1
            nodes = self._count()

    def _count(self) -> list[Node]:
        nodes = [node for tree in self._trees.values() for node in tree.root.subtree() if node.parent]
        self.figures.nodes = len(nodes)
        self.figures.marks = sum(node.mark is not None for node in nodes)
        self.figures.nbytes = sum(node.nbytes for node in nodes)
        return nodes


def _last_use(node: Node) -> float:
    """Of what can be forgotten of it: an inner node gives up its mark alone."""
    if not node.children:
        return node.used
    return node.mark.used if node.mark else float("inf")


def _forget(node: Node) -> None:
    if node.children:
        node.mark = None
        return
    node.remove()
    parent, mark = node.parent, node.mark
    if parent and parent.parent and mark and mark.context and mark.context.unbounded:
        # The one context of all shorter prefixes: it goes on with them.
        if parent.mark is None and not mark.has_states:
            parent.mark = Mark(mark.states, None, mark.used)
        if parent.mark is not None and parent.mark.context is None:
            parent.mark = Mark(parent.mark.states, _context(node, parent.end), parent.mark.used)


@dataclass(frozen=True)
class _Choice:
    """How much to take up; the nodes whose marks give the states and the drafter's context."""

    length: int
    state: Node | None = None
    context: Node | None = None


def _choose(path: Sequence[Node], known: int, state: DecodeState) -> _Choice:
    """What to take up of the `known` tokens along `path`."""
    last = next((node for node in reversed(path) if node.mark and node.end <= known), None)
    if not state.trimmable:
        return _Choice(last.end, last, _knower(last, last.end)) if last else _Choice(0)
    if state.context is None or not path:
        return _Choice(known)
    here = _knower(path[-1], known)
    missing = _missing(here, known)
    if last and missing:
        there = _knower(last, last.end)
        gain = missing - _missing(there, last.end)
        if known - last.end <= min(_RERUN, _RERUN_A_ROW * gain):
            return _Choice(last.end, last, there)
    return _Choice(known, None, here)


def _knower(node: Node, end: int) -> Node | None:
    """The node in or below `node` whose mark knows most of the drafter's context at `end`."""
    found = [below for below in node.subtree() if below.mark and below.mark.context and below.end >= end]
    return min(found, key=lambda below: _missing(below, end), default=None)


def _missing(node: Node | None, end: int) -> int:
    """Rows of the drafter's context at `end` that the node's mark does not know."""
    return node.mark.context.missing(end) if node and node.mark and node.mark.context else end


def _context(node: Node | None, end: int) -> DraftContext | None:
    if node is None or node.mark is None or node.mark.context is None:
        return None
    context = node.mark.context.copy()
    context.trim(end)
    return context


def _fill(state: DecodeState, path: Sequence[Node], chosen: _Choice) -> None:
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
    context = _context(chosen.context, chosen.length)
    if context is not None:
        state.context = context


def _knows_less(mark: Mark, state: DecodeState) -> bool:
    """Whether the state's context has rows that the mark's lacks."""
    if state.context is None:
        return False
    end = state.context.end
    return mark.context is None or mark.context.missing(end) > state.context.missing(end)


def _mark(state: DecodeState) -> Mark:
    states = [None if is_trimmable(cache) else copied(compact_state(cache)) for cache in flatten(state.caches)]
    return Mark(states, state.context.compact() if state.context else None)
