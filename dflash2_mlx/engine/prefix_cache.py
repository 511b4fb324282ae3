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
# back; a longer stretch costs more than the acceptance that a short context loses for as many tokens.
_RERUN = 512


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
        length, source, context = _choose(path, known, state)
        if length:
            self.figures.hits += 1
            self._touch(path, length, source)
            _fill(state, path, length, source, context)
            state.tokens = list(prompt[:length])
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
        if node.mark is None:
            node.mark = _mark(state)
        mx.eval(arrays_in(node.rows), node.mark.arrays())
        if state.context is not None and state.context.config.context_rows is None:
            # A context without a window serves every shorter prefix too.
            for earlier in path[:-1]:
                earlier.mark = earlier.mark and earlier.mark.without_context()
        self._touch(path, len(tokens), node)
        self._shrink()

    def drop(self, pair: Pair) -> None:
        """Forget everything of a pair."""
        tree = self._trees.pop(id(pair), None)
        if tree is not None:
            tree.root.dissolve()
        self._count()

    def _tree(self, pair: Pair) -> _Tree:
        return self._trees.setdefault(id(pair), _Tree(pair))

    def _touch(self, path: Sequence[Node], length: int, source: Node | None) -> None:
        self._tick += 1
        for node in path:
            if node.start < length:
                node.used = self._tick
        if source is not None and source.mark is not None:
            source.mark.used = self._tick

    def _shrink(self) -> None:
        """Forget leaves and marks until the limit holds."""
        nodes = self._count()
        while self.figures.nbytes > self.limit:
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
    else:
        node.remove()


def _choose(path: Sequence[Node], known: int, state: DecodeState) -> tuple[int, Node | None, DraftContext | None]:
    """How much of the `known` tokens along `path` to take up, the node whose mark serves, and the drafter's context."""
    last = next((node for node in reversed(path) if node.mark and node.end <= known), None)
    if not state.trimmable:
        return (last.end, last, _context(last, last.end)) if last else (0, None, None)
    if state.context is None or not path:
        return known, None, None
    context = _context(path[-1], known)
    if last and known - last.end <= _RERUN and (context is None or context.missing(known)):
        return last.end, last, _context(last, last.end)
    return known, None, context


def _context(node: Node, end: int) -> DraftContext | None:
    """The drafter's context at `end`, from the mark in or below `node` that knows most of it."""
    found = [n.mark.context for n in node.subtree() if n.mark and n.mark.context and n.end >= end]
    if not found:
        return None
    best = min(found, key=lambda context: context.missing(end)).copy()
    best.trim(end)
    return best


def _fill(
    state: DecodeState, path: Sequence[Node], length: int, source: Node | None, context: DraftContext | None
) -> None:
    used = [node for node in path if node.start < length]
    for i, cache in enumerate(flatten(state.caches)):
        if is_trimmable(cache):
            put_rows(cache, [node.rows[i] for node in used])
            excess = used[-1].end - length
            if excess:
                cache.trim(excess)
        else:
            assert source is not None
            assert source.mark is not None
            cache.state = renewed(source.mark.states[i])
    if context is not None:
        state.context = context


def _mark(state: DecodeState) -> Mark:
    states = [None if is_trimmable(cache) else copied(compact_state(cache)) for cache in flatten(state.caches)]
    return Mark(states, state.context.compact() if state.context else None)
