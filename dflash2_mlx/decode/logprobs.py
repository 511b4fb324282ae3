"""Log-probabilities of emitted tokens and of their best alternatives, taken from the rows that decided them."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx

from .laws import log_probabilities


@dataclass(frozen=True)
class TokenLogprobs:
    """A token, its log-probability after bias and penalties, and the best (token, logprob) pairs, best first."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


class RowLogprobs:
    """The figures of R rows, still on the device until `read`."""

    def __init__(self, logits: mx.array, emitted: mx.array, alternatives: int) -> None:
        table = log_probabilities(logits)
        self.chosen = mx.take_along_axis(table, emitted[:, None].astype(mx.int32), axis=-1)[:, 0]
        self.alternatives = alternatives
        if alternatives:
            self.ids = mx.argpartition(table, kth=-alternatives, axis=-1)[:, -alternatives:]
            self.values = mx.take_along_axis(table, self.ids, axis=-1)

    def arrays(self) -> list[mx.array]:
        """What has to be evaluated."""
        return [self.chosen, self.ids, self.values] if self.alternatives else [self.chosen]

    def read(self, tokens: list[int]) -> list[TokenLogprobs]:
        """The figures of the first len(tokens) rows, which emitted `tokens`."""
        chosen: list[float] = self.chosen.tolist()  # type: ignore[assignment]
        tops: list[list[tuple[int, float]]] = [[] for _ in tokens]
        if self.alternatives:
            ids, values = self.ids.tolist(), self.values.tolist()
            tops = [
                sorted(zip(row_ids, row_values, strict=True), key=lambda pair: -pair[1])  # type: ignore[arg-type]
                for row_ids, row_values in zip(ids, values, strict=True)  # type: ignore[arg-type]
            ]
        return [TokenLogprobs(token, chosen[i], tops[i]) for i, token in enumerate(tokens)]
