"""What an answer may say, as a mask for every row that decides a token. Grammars and budgets stand above."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx


class Constraint(Protocol):
    """The state of one answer: it has seen every emitted token, of which `advance` tells."""

    def free(self, rows: int) -> bool:
        """Whether the next `rows` tokens are free, whatever they are: then nobody asks for masks."""
        ...

    def masks(self, tokens: Sequence[int]) -> mx.array:
        """Which tokens may stand in each of R + 1 rows, bool (R + 1, V), row i after tokens[:i] of the R `tokens`.

        They may be drafts that will be rejected: the state stays. A row after a token that may not stand is not
        looked at, and every row allows at least one token (an end token, where nothing else may follow).
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Take in emitted tokens; none comes that the masks did not allow, except where `free` said so."""
        ...
