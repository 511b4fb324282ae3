"""How likely drafts stand: by position over many requests and by kind of request, and the offset of one request.

All rates here are conditional: that the draft at a position stands, given that those before it do.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

# Cycles over which a profile forgets, and of how many the prior counts. Chosen in simulation (tests/width): shorter
# memories follow noise, a longer one takes too long after the drafter or the user's work has changed.
_MEMORY = 400.0
_PRIOR_CYCLES = 8.0
# What is expected of a drafter that nobody has seen at work.
_UNSEEN = 0.6
# A request's offset, in logits: how far requests are expected to lie from their kind (its standard deviation), and the
# cycles after which what it did has faded to a third. Chosen likewise: content changes within an answer.
_SPREAD = 1.0
_FADES, _FADES_UNSEEN = 40.0, 160.0


class Profile:
    """Moving averages by position. Where little was seen, `prior` decides, and without one the position before."""

    def __init__(self, positions: int, prior: Profile | None = None) -> None:
        self._prior = prior
        self._tried = [0.0] * positions
        self._stood = [0.0] * positions
        self.version = 0  # grows with every block
        self._rates: tuple[int, list[float]] | None = None  # as last worked out, and for which version of the prior

    def observe(self, width: int, accepted: int) -> None:
        """A block of `width` rows, of which `accepted` drafts stood."""
        self._rates, keep = None, 1.0 - 1.0 / _MEMORY
        self.version += 1
        for i in range(min(width - 1, accepted + 1, len(self._tried))):
            self._tried[i] = keep * self._tried[i] + 1.0
            self._stood[i] = keep * self._stood[i] + (i < accepted)

    def rates(self) -> list[float]:
        """By position."""
        prior = 0 if self._prior is None else self._prior.version
        if self._rates is None or self._rates[0] != prior:
            self._rates = (prior, self._worked_out())
        return self._rates[1]

    def _worked_out(self) -> list[float]:
        priors = self._prior.rates() if self._prior is not None else None
        found: list[float] = []
        for i, (tried, stood) in enumerate(zip(self._tried, self._stood, strict=True)):
            prior = priors[i] if priors is not None else found[-1] if found else _UNSEEN
            found.append((stood + _PRIOR_CYCLES * prior) / (tried + _PRIOR_CYCLES))
        return found

    @property
    def cycles(self) -> float:
        """How many cycles it stands on, those that are forgotten left out."""
        return self._tried[0] if self._tried else 0.0

    def pack(self) -> dict[str, list[float]]:
        """For a file."""
        return {"tried": [round(x, 3) for x in self._tried], "stood": [round(x, 3) for x in self._stood]}

    def unpack(self, tree: dict[str, list[float]]) -> None:
        """Raises ValueError for what is no profile of as many positions."""
        tried, stood = [float(x) for x in tree["tried"]], [float(x) for x in tree["stood"]]
        sound = all(0 <= s <= t <= _MEMORY + 1 for t, s in zip(tried, stood, strict=True))
        if len(tried) != len(self._tried) or not sound:
            raise ValueError("no acceptance by position")
        self._tried, self._stood, self._rates = tried, stood, None
        self.version += 1


class Offset:
    """One request against its kind: a single number, so that a few cycles tell much, at every position."""

    def __init__(self) -> None:
        self._value = 0.0
        self._seen = 0.0  # information of what was observed, in 1 / logits²

    def observe(self, profile: Sequence[float], width: int, accepted: int) -> None:
        """A block of this request, where its kind has the rates `profile`."""
        expected = self.applied(profile)[: min(width - 1, accepted + 1)]
        self._seen = (1.0 - 1.0 / _FADES) * self._seen + sum(p * (1.0 - p) for p in expected)
        slope = sum((i < accepted) - p for i, p in enumerate(expected)) - self._value / _SPREAD**2 / _FADES
        self._value += slope / (self._seen + 1.0 / _SPREAD**2)
        self._value = max(-4.0, min(4.0, self._value))

    def rest(self) -> None:
        """A plain step: nothing is seen of drafts, and the text moves on from what was."""
        keep = 1.0 - 1.0 / _FADES_UNSEEN
        self._value, self._seen = keep * self._value, keep * self._seen

    def applied(self, profile: Sequence[float]) -> list[float]:
        """The rates of this request."""
        odds = math.exp(self._value)
        return [p * odds / (1.0 - p + p * odds) for p in profile]


def committed(rates: Sequence[float]) -> list[float]:
    """Expected tokens of a cycle by width, from width 1 on: the target's own, and each draft if all before it stand."""
    tokens, standing = [1.0], 1.0
    for rate in rates:
        standing *= rate
        tokens.append(tokens[-1] + standing)
    return tokens


def survival(rates: Sequence[float]) -> tuple[float, ...]:
    """The share of cycles in which the draft at each position stands."""
    tokens = committed(rates)
    return tuple(after - before for before, after in itertools.pairwise(tokens))
