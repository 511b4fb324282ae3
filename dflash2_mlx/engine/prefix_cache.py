"""The prefix cache: what conversations have computed, kept in RAM for whoever begins with the same tokens.

Rows of keys and values are stored once for all prefixes that share them. A target with other caches (windows, recurrent
states) can be taken up only at marks; the drafter's context is kept with the marks too. What leaves the RAM goes to
disk, where a pair's limits allow it, and comes back from there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import mlx.core as mx

from ..decode.state import DecodeState
from ..pairs import Pair
from ..target.copies import arrays_in, take_rows
from ..target.rollback import flatten, is_trimmable
from .prefix_choice import choose, fill, knows_less, mark_of
from .prefix_limits import CacheFigures, CacheLimits
from .prefix_pair import PairPrefixes, last_use
from .prefix_tree import Node
from .ssd_writer import Writer

# Seconds to wait for the disk: where memory is short, and where a pair is unloaded, which takes long anyway.
_WAIT_FOR_ROOM, _WAIT_AT_END = 10.0, 60.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restored:
    """A state that holds a prefix of a prompt, and how much of the prompt the cache has seen at all."""

    state: DecodeState
    known: int


class PrefixCache:
    """Prefixes by pair and token ids, at most `limit` bytes, the least recently used forgotten first.

    All of it is called from the thread that runs the models, but for the figures. A limit of 0 keeps nothing. Nothing
    is brought back from the disk that would take MLX beyond `memory_limit` bytes.
    """

    def __init__(self, limit: int, ssd_folder: Path | None = None, *, memory_limit: int | None = None) -> None:
        self.limit = limit
        self._ssd_folder, self._memory_limit = ssd_folder, memory_limit
        self._writer = Writer()
        self._trees: dict[int, PairPrefixes] = {}
        self._gone = CacheFigures()  # of pairs that were dropped
        self._tick = 0

    @property
    def figures(self) -> CacheFigures:
        """Of all pairs, those that were dropped too; any thread."""
        return sum((tree.figures for tree in list(self._trees.values())), self._gone)

    def figures_of(self, pair: Pair) -> CacheFigures:
        """Of one pair, as they are now; any thread."""
        tree = self._trees.get(id(pair))
        return replace(tree.figures) if tree else CacheFigures()

    def set_limits(self, pair: Pair, limits: CacheLimits) -> None:
        """Limit what is kept of a pair, at once; also tries a disk again that had failed.

        A pair whose disk tier is off has nothing on disk: what is there is deleted.
        """
        self._tree(pair).set_limits(limits, self._ssd_folder, self._writer)

    def restore(self, pair: Pair, prompt: Sequence[int]) -> Restored:
        """A new state with the longest usable prefix of `prompt`, leaving at least its last token to run."""
        state = DecodeState(pair.target, pair.drafter, keeps_marks=False)
        tree, tokens = self._tree(pair), tuple(prompt[:-1])
        path, known = tree.root.walk(tokens)
        chosen = choose(path, known, state)
        if self._fetch(tree, tokens, chosen.length):
            path, known = tree.root.walk(tokens)
            chosen = choose(path, known, state)
        if chosen.length:
            tree.figures.hits += 1
            self._touch(path, chosen.length, chosen.state, chosen.context)
            fill(state, path, chosen)
            state.tokens = list(prompt[: chosen.length])
        else:
            tree.figures.misses += 1
        return Restored(state, known)

    def store(self, pair: Pair, state: DecodeState) -> None:
        """Keep what `state` holds; only what is new costs anything."""
        tree = self._tree(pair)
        if self.limit <= 0 or not tree.limits.enabled or not state.tokens:
            return

        def take(position: int) -> list[object]:
            end = len(state.tokens)
            return [take_rows(c, position, end) if is_trimmable(c) else None for c in flatten(state.caches)]

        path = tree.root.place(state.tokens, take)
        node = path[-1]
        if node.mark is None or knows_less(node.mark, state):
            node.mark = mark_of(state)
        mx.eval(arrays_in(node.rows), node.mark.arrays())
        if state.context is not None and state.context.unbounded:
            # Such a context serves every shorter prefix too.
            for earlier in path[:-1]:
                earlier.mark = earlier.mark and earlier.mark.without_context()
        self._touch(path, len(state.tokens), node)
        tree.hold()
        self._shrink(self.limit)

    def drop(self, pair: Pair) -> None:
        """Forget everything of a pair; what is in RAM goes to disk first, where its limits allow it."""
        tree = self._trees.pop(id(pair), None)
        if tree is not None:
            self._end([tree], _WAIT_AT_END)

    def close(self, timeout: float = _WAIT_AT_END) -> None:
        """Forget everything, with what is in RAM written to disk, for `timeout` seconds at most."""
        trees, self._trees = list(self._trees.values()), {}
        self._end(trees, timeout)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left to be written to disk; any thread."""
        return self._writer.drain(timeout)

    def give_back(self, nbytes: int) -> None:
        """Forget at least so many bytes, as far as there are any."""
        self._shrink(max(0, self._nbytes - nbytes))
        self._wait(_WAIT_FOR_ROOM)

    @property
    def _nbytes(self) -> int:
        return sum(tree.figures.nbytes for tree in self._trees.values())

    def _tree(self, pair: Pair) -> PairPrefixes:
        tree = self._trees.get(id(pair))
        if tree is None:
            tree = self._trees[id(pair)] = PairPrefixes(pair)
        return tree

    def _end(self, trees: Sequence[PairPrefixes], timeout: float) -> None:
        for tree in trees:
            tree.spill_all()
            tree.clear()
        self._wait(timeout)
        self._gone = sum((tree.figures.counts_only() for tree in trees), self._gone)

    def _wait(self, timeout: float) -> None:
        if not self._writer.drain(timeout):
            log.warning("SSD cache: %d bytes are still to be written", self._writer.pending)

    def _fetch(self, tree: PairPrefixes, tokens: tuple[int, ...], known: int) -> bool:
        """Bring back from disk what RAM lacks of `tokens`, where that is worth it and there is room."""
        entry = tree.find_on_disk(tokens, known)
        own = tree.limits.max_bytes
        if entry is None or entry.nbytes > (self.limit if own is None else min(own, self.limit)):
            return False
        self._shrink(self.limit - entry.nbytes)
        # Twice: a request has a copy of what is kept.
        if self._memory_limit is not None and mx.get_active_memory() + 2 * entry.nbytes > self._memory_limit:
            return False
        if not tree.fetch(entry):
            return False
        self._touch(tree.root.walk(entry.tokens)[0], len(entry.tokens))
        tree.hold()
        self._shrink(self.limit)
        return True

    def _touch(self, path: Sequence[Node], length: int, *marked: Node | None) -> None:
        self._tick += 1
        for node in path:
            if node.start < length:
                node.used = self._tick
        for source in marked:
            if source is not None and source.mark is not None:
                source.mark.used = self._tick

    def _shrink(self, limit: int) -> None:
        """Forget leaves and marks until no more than `limit` bytes are held."""
        while self._nbytes > limit:
            trees = [tree for tree in self._trees.values() if tree.nodes]
            tree = min(trees, key=lambda tree: min(map(last_use, tree.nodes)))
            tree.forget(min(tree.nodes, key=last_use))
