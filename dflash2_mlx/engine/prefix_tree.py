"""A radix tree over token ids whose nodes hold cache rows, and marks where a conversation can be taken up again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from ..drafter.context import DraftContext
from ..target.copies import arrays_in, copied, cut_rows


@dataclass
class Mark:
    """What cannot be cut to a length: the states of caches that do not go by rows, and the drafter's context."""

    states: list[Any]  # by cache; None for those that go by rows
    context: DraftContext | None
    used: int = 0  # tick of the last use
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.nbytes = sum(array.nbytes for array in self.arrays())

    def arrays(self) -> list[mx.array]:
        """Every array held."""
        return [*arrays_in(self.states), *(self.context.arrays() if self.context else [])]

    @property
    def has_states(self) -> bool:
        """Whether some cache does not go by rows."""
        return any(state is not None for state in self.states)

    def without_context(self) -> Mark | None:
        """The states alone; None where nothing is left."""
        return Mark(self.states, None, self.used) if self.has_states else None


@dataclass
class Node:
    """Tokens `start` to `end` of a prefix, with the rows of every cache that goes by rows."""

    start: int
    tokens: tuple[int, ...]
    rows: list[Any]  # by cache; None for those that do not go by rows
    parent: Node | None = field(repr=False, default=None)
    mark: Mark | None = None  # at its end
    children: dict[int, Node] = field(default_factory=dict)
    used: int = 0  # tick of the last use
    row_bytes: int = 0

    def __post_init__(self) -> None:
        self.row_bytes = sum(array.nbytes for array in arrays_in(self.rows))

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def nbytes(self) -> int:
        return self.row_bytes + (self.mark.nbytes if self.mark else 0)

    def walk(self, tokens: Sequence[int]) -> tuple[list[Node], int]:
        """The nodes below this root that `tokens` lead through, the last perhaps only in part, and how many matched."""
        tokens = tuple(tokens)
        path: list[Node] = []
        node, matched = self, 0
        while matched < len(tokens) and (child := node.children.get(tokens[matched])):
            path.append(child)
            matched += common_prefix(child.tokens, tokens[matched : child.end])
            if matched < child.end:
                break
            node = child
        return path, matched

    def add(self, tokens: Sequence[int], rows: list[Any]) -> Node:
        """A new child for the `tokens` that follow this node."""
        child = Node(self.end, tuple(tokens), rows, parent=self)
        self.children[child.tokens[0]] = child
        return child

    def place(self, tokens: Sequence[int], take: Callable[[int], list[Any]]) -> list[Node]:
        """The nodes below this root of exactly `tokens`; `take` gives the rows from a position on that it lacks."""
        tokens = tuple(tokens)
        path, matched = self.walk(tokens)
        node = path[-1] if path else self
        if matched < node.end:
            node = node.split(matched)
            path = [*path[:-1], node]
        if matched < len(tokens):
            path.append(node.add(tokens[matched:], take(matched)))
        return path

    def split(self, at: int) -> Node:
        """Cut in two at position `at`, inside it; the upper part takes this node's place and is returned."""
        cut = at - self.start
        upper = Node(self.start, self.tokens[:cut], _halves(self.rows, 0, cut), parent=self.parent, used=self.used)
        self.rows = _halves(self.rows, cut, len(self.tokens))
        self.start, self.tokens = at, self.tokens[cut:]
        self.row_bytes -= upper.row_bytes
        assert self.parent is not None, "a root has no tokens to split"
        self.parent.children[upper.tokens[0]] = upper
        upper.children[self.tokens[0]] = self
        self.parent = upper
        # Both now: a half that is evaluated later would pin the whole until then.
        mx.eval(arrays_in(upper.rows), arrays_in(self.rows))
        return upper

    def remove(self) -> None:
        """Take a leaf out of the tree."""
        assert self.parent is not None
        del self.parent.children[self.tokens[0]]

    def path(self) -> list[Node]:
        """The nodes from the root, which is not among them, down to this one."""
        node: Node | None = self
        upwards: list[Node] = []
        while node is not None and node.parent is not None:
            upwards.append(node)
            node = node.parent
        return upwards[::-1]

    def dissolve(self) -> None:
        """Take all of it apart: parents and children hold each other, and memory would wait for the collector."""
        for node in list(self.subtree()):
            node.parent = None
            node.children = {}

    def subtree(self) -> Iterator[Node]:
        """This node and all below it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many of the first items are equal; halving, since whole slices are compared a hundred times faster."""
    equal, most = 0, min(len(a), len(b))
    while equal < most:
        middle = (equal + most + 1) // 2
        if a[equal:middle] == b[equal:middle]:
            equal = middle
        else:
            most = middle - 1
    return equal


def _halves(rows: list[Any], start: int, end: int) -> list[Any]:
    return [None if piece is None else copied(cut_rows(piece, start, end)) for piece in rows]
