"""The kept prefixes of one pair: its tree in RAM, its files on disk, and the limits of both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..pairs import Pair
from ..target.copies import arrays_in, copied, cut_rows
from ..target.rollback import flatten, is_trimmable
from .prefix_choice import context_at, knower, missing_rows
from .prefix_limits import CacheFigures, CacheLimits
from .prefix_tree import Mark, Node
from .ssd_cache import Entry, SsdStore, fingerprint_of, pair_folder, remove_files
from .ssd_file import pack
from .ssd_layout import Layout
from .ssd_writer import Writer

# Of the inner marks of a branch, those that go to disk with it: the first (a system prompt, where other conversations
# branch off) and the last ones (where the next turn does, whose template words the end of this one anew).
_FIRST_MARKS, _LAST_MARKS = 1, 3


class PairPrefixes:
    """Everything kept of one pair. Used on the engine's thread."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair  # kept, so that its id is no other's
        self.limits = CacheLimits()
        self.figures = CacheFigures()
        self.root = Node(0, (), [])
        self.nodes: list[Node] = []
        self._caches = flatten(pair.target.new_cache())
        self._by_rows = all(is_trimmable(cache) for cache in self._caches)
        self._ssd: SsdStore | None = None
        self._layout: Layout | None = None

    def set_limits(self, limits: CacheLimits, folder: Path | None, writer: Writer) -> None:
        """Take on new limits, at once. What is on disk is deleted where the disk tier is off."""
        self.limits = limits
        self.figures.ssd_error = None
        if not limits.uses_ssd:
            self._close_ssd(folder)
        elif self._ssd is not None:
            self._ssd.set_limit(limits.ssd_bytes)
        else:
            self._open_ssd(folder, writer)
        if not limits.enabled:
            self.clear()
        self.hold()

    def count(self) -> None:
        """Bring the figures up to date with the tree."""
        self.nodes = [node for node in self.root.subtree() if node.parent]
        self.figures.nodes = len(self.nodes)
        self.figures.marks = sum(node.mark is not None for node in self.nodes)
        self.figures.entries = sum(not node.children for node in self.nodes)
        self.figures.nbytes = sum(node.nbytes for node in self.nodes)

    def hold(self) -> None:
        """Forget what is beyond the pair's own limits, the least recently used first."""
        self.count()
        entries, nbytes = self.limits.max_entries, self.limits.max_bytes
        while entries is not None and self.figures.entries > entries:
            self._forget_branch(min((node for node in self.nodes if not node.children), key=lambda leaf: leaf.used))
        while nbytes is not None and self.figures.nbytes > nbytes:
            self.forget(min(self.nodes, key=last_use))

    def forget(self, node: Node) -> None:
        """A leaf, or the mark of an inner node; what that makes of less use goes to disk before."""
        if self._ssd is not None:
            leaf = max((below for below in node.subtree() if not below.children), key=lambda below: below.used)
            if leaf is node or node.end in _marked(leaf.path())[-_LAST_MARKS:]:
                self.spill(leaf)
        _forget(node)
        self.figures.evictions += 1
        self.count()

    def clear(self) -> None:
        """Forget all that is in RAM; nothing of it goes to disk."""
        self.root.dissolve()
        self.root = Node(0, (), [])
        self.count()

    def spill_all(self) -> None:
        """Write what is in RAM, the most recently used last."""
        if self._ssd is not None:
            for leaf in sorted((node for node in self.nodes if not node.children), key=lambda node: node.used):
                self.spill(leaf, always=True)

    def spill(self, leaf: Node, *, always: bool = False) -> None:
        """Hand the branch that ends in `leaf` to the disk tier, unless it is there. Raises nothing."""
        path = leaf.path()
        while path and not self._by_rows and path[-1].mark is None:
            path.pop()  # rows after the last mark are of no use
        if self._ssd is None or not path:
            return
        tokens = tuple(token for node in path for token in node.tokens)
        if self._ssd.holds(tokens):
            return
        marked = _marked(path)
        kept = marked[:_FIRST_MARKS] + marked[_FIRST_MARKS:][-_LAST_MARKS:]
        tree = [(node.end, tuple(node.rows), _packed_mark(node.mark if node.end in kept else None)) for node in path]
        try:
            packed = pack(tokens, kept, tree)
        except Exception as error:  # a request goes on without
            self._ssd.fail(error)
            return
        self._ssd.write(packed, always=always)

    def find_on_disk(self, tokens: tuple[int, ...], known: int) -> Entry | None:
        """The file that saves enough of `tokens` beside the `known` ones to be read."""
        return None if self._ssd is None else self._ssd.find(tokens, known)

    def fetch(self, entry: Entry) -> bool:
        """Bring a file back into RAM."""
        assert self._ssd is not None
        tree = self._ssd.read(entry)
        if tree is None:
            return False
        try:
            branch = self._unpacked(entry.tokens, tree)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            self._ssd.drop(entry, f"it holds something else ({error})")
            return False
        for start, end, rows, mark in branch:
            self._place(entry.tokens[:end], start, rows, mark)
        self.figures.ssd_hits += 1
        self.count()
        return True

    def _unpacked(self, tokens: Sequence[int], tree: Any) -> list[tuple[int, int, list[Any], Mark | None]]:
        """(start, end, rows, mark) of each piece, checked against the pair's own caches."""
        if self._layout is None:
            self._layout = Layout(self.pair)
        branch, start = [], 0
        for end, rows, mark in tree:
            self._layout.check_rows(rows, end - start)
            branch.append((start, end, list(rows), None if mark is None else self._mark(mark, end)))
            start = end
        if start != len(tokens):
            raise ValueError(f"{start} rows for {len(tokens)} tokens")
        return branch

    def _mark(self, packed: Any, end: int) -> Mark:
        states, tree = packed
        assert self._layout is not None
        self._layout.check_states(states)
        context = None
        if tree is not None:
            if self.pair.drafter is None:
                raise ValueError("a drafter's context, of a pair without drafter")
            context = self.pair.drafter.new_context()
            context.unpack(tree)
            if context.end != end:
                raise ValueError(f"a drafter's context up to {context.end}, not {end}")
        return Mark(list(states), context)

    def _place(self, tokens: tuple[int, ...], start: int, rows: list[Any], mark: Mark | None) -> None:
        """Add the piece from `start` on of `tokens`, so far as RAM lacks it."""
        if mark is None and self.root.walk(tokens)[1] == len(tokens):
            return

        def take(position: int) -> list[Any]:
            if position == start:
                return rows
            return [piece and copied(cut_rows(piece, position - start, len(tokens) - start)) for piece in rows]

        node = self.root.place(tokens, take)[-1]
        if node.mark is None:
            node.mark = mark
        mx.eval(arrays_in(node.rows))

    def _forget_branch(self, leaf: Node) -> None:
        """A leaf with all above it that leads nowhere else."""
        self.spill(leaf)
        node = leaf
        while node.parent is not None and not node.children:
            above = node.parent
            _forget(node)
            node = above
        self.figures.evictions += 1
        self.count()

    def _open_ssd(self, folder: Path | None, writer: Writer) -> None:
        mark = fingerprint_of(self.pair)
        if folder is None:
            self.figures.ssd_error = "no folder is set for it"
        elif mark is None:
            self.figures.ssd_error = "the pair was not loaded from folders, so that its files could not be told apart"
        else:
            place = pair_folder(folder, self.pair.model_name)
            self._ssd = SsdStore(place, mark, self.limits.ssd_bytes, writer, self.figures, by_rows=self._by_rows)

    def _close_ssd(self, folder: Path | None) -> None:
        if self._ssd is not None:
            self._ssd.clear()
            self._ssd = None
        if folder is not None:
            remove_files(folder, self.pair.model_name)


def last_use(node: Node) -> float:
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
        _hand_up(node, parent, mark)


def _hand_up(node: Node, parent: Node, mark: Mark) -> None:
    """An unbounded context is the one of all shorter prefixes: it goes on with them, where no other branch has it."""
    if missing_rows(knower(parent, parent.end), parent.end) == 0:
        return
    if parent.mark is None and not mark.has_states:
        parent.mark = Mark(mark.states, None, mark.used)
    context = context_at(node, parent.end)
    if parent.mark is not None and parent.mark.context is None and context is not None:
        parent.mark = Mark(parent.mark.states, context.compact(), parent.mark.used)
        mx.eval(parent.mark.arrays())


def _marked(path: Sequence[Node]) -> list[int]:
    """Where the marks along a branch stand."""
    return [node.end for node in path if node.mark]


def _packed_mark(mark: Mark | None) -> Any:
    return mark and (tuple(mark.states), mark.context and mark.context.pack())
