"""Sampling laws: what a request's parameters make of the target's logits, row by row.

The order is mlx-lm's: bias, repetition, presence and frequency penalties on the logits; top_p, min_p and top_k on the
log-probabilities; the temperature last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from ..errors import RequestError


@dataclass(frozen=True, kw_only=True)
class SamplingLaw:
    """The parameters of one request; build it with `sampling_law`, which checks them.

    A penalty of None is off. `*_context_size` counts the tokens before a row that its penalty looks at, prompt
    included.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float | None = None
    repetition_context_size: int = 20
    presence_penalty: float | None = None
    presence_context_size: int = 20
    frequency_penalty: float | None = None
    frequency_context_size: int = 20
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def deterministic(self) -> bool:
        """The law of every row is one-hot: its largest logit."""
        return self.temperature == 0 or self.top_k == 1

    @property
    def history_size(self) -> int:
        """How many tokens before a row the penalties look at."""
        sizes = [
            size
            for penalty, size in (
                (self.repetition_penalty, self.repetition_context_size),
                (self.presence_penalty, self.presence_context_size),
                (self.frequency_penalty, self.frequency_context_size),
            )
            if penalty is not None
        ]
        return max(sizes, default=0)

    def adjust(self, logits: mx.array, history: mx.array | None) -> mx.array:
        """Bias and penalties: (R, V) to (R, V).

        `history` (R, h) holds the last h tokens before each row, oldest first and -1 where there was none; None
        without penalties.
        """
        if self.logit_bias:
            ids, values = (
                mx.array(list(self.logit_bias)),
                mx.array(list(self.logit_bias.values()), logits.dtype),
            )
            logits = logits.at[:, ids].add(values)
        if history is None:
            return logits
        if self.repetition_penalty is not None:
            seen = _seen(logits, history[:, -self.repetition_context_size :])
            scaled = mx.where(logits < 0, logits * self.repetition_penalty, logits / self.repetition_penalty)
            logits = mx.where(seen > 0, scaled, logits)
        if self.presence_penalty is not None:
            seen = _seen(logits, history[:, -self.presence_context_size :])
            logits = mx.where(seen > 0, logits - self.presence_penalty, logits)
        if self.frequency_penalty is not None:
            logits = logits - self.frequency_penalty * _seen(logits, history[:, -self.frequency_context_size :])
        return logits

    def log_law(self, logits: mx.array) -> mx.array:
        """Unnormalised logarithm (R, V) of the law that is sampled, from adjusted logits (R, V): -inf where cut."""
        logits = logits.astype(mx.float32)
        if 0 < self.top_p < 1:
            # The one filter that looks at masses and not at differences alone.
            logits = apply_top_p(log_probabilities(logits), self.top_p)
        if self.min_p > 0:
            logits = apply_min_p(logits, self.min_p)
        if 0 < self.top_k < logits.shape[-1]:
            logits = apply_top_k(logits, self.top_k)
        return logits if self.temperature == 1 else logits * (1 / self.temperature)


def _seen(logits: mx.array, history: mx.array) -> mx.array:
    """How often each token of the vocabulary stands in each row's history, (R, V) in the logits' dtype."""
    counted = (history >= 0).astype(logits.dtype)
    rows = mx.arange(history.shape[0])[:, None]
    return mx.zeros_like(logits).at[rows, mx.maximum(history, 0)].add(counted)


def log_probabilities(logits: mx.array) -> mx.array:
    """Log-probabilities (R, V) of logits (R, V), in float32."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def rows_finite(logits: mx.array) -> mx.array:
    """Whether no logit of a row (R, V) is NaN or +inf: (R,). A family may mask tokens with -inf."""
    largest = logits.max(axis=-1)
    return largest - largest == 0  # as mx.isfinite, in two operations


def only(logits: mx.array, allowed: mx.array | None) -> mx.array:
    """Logits (R, V) with -inf where `allowed` (R, V) is false; None allows everything."""
    return logits if allowed is None else mx.where(allowed, logits, mx.array(-math.inf, logits.dtype))


def history_rows(history: Sequence[int], size: int, drafts: mx.array) -> mx.array:
    """The last `size` tokens before each of R + 1 rows that follow `history` and then the R `drafts`: (R + 1, size).

    Fewer than `size` where fewer tokens are there: a penalty may look back over any number.
    """
    size = max(1, min(size, len(history) + drafts.shape[0]))
    tail = list(history[-size:])
    line = mx.concatenate([mx.array([-1] * (size - len(tail)) + tail, mx.int32), drafts.astype(mx.int32)])
    rows = drafts.shape[0] + 1
    return line[mx.arange(rows)[:, None] + mx.arange(size)]


# name: (low, high, what it may be)
_RANGES: dict[str, tuple[float, float, str]] = {
    "temperature": (0, 100, "a number from 0 (greedy) to 100"),
    "top_p": (1e-6, 1, "a number above 0, up to 1 (off)"),
    "min_p": (0, 1, "a number from 0 to 1"),
    "top_k": (0, 1 << 31, "a whole number from 0 (off)"),
    "repetition_penalty": (1e-3, 100, "a number above 0, up to 100 (1 is neutral)"),
    "presence_penalty": (-100, 100, "a number from -100 to 100 (0 is neutral)"),
    "frequency_penalty": (-100, 100, "a number from -100 to 100 (0 is neutral)"),
    "repetition_context_size": (1, 1 << 31, "a whole number of at least 1"),
    "presence_context_size": (1, 1 << 31, "a whole number of at least 1"),
    "frequency_context_size": (1, 1 << 31, "a whole number of at least 1"),
}
_WHOLE = frozenset(name for name in _RANGES if name == "top_k" or name.endswith("_size"))
_COLDEST = 1e-6  # below, logits divided by it leave float32
_LARGEST_BIAS = 1e30  # beyond, they leave it with the bias
_NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def sampling_law(*, vocab_size: int, **parameters: Any) -> SamplingLaw:
    """The checked law of a request; parameters are SamplingLaw's fields.

    Raises RequestError that names the parameter, its value and what it may be.
    """
    checked: dict[str, Any] = {}
    for name, value in parameters.items():
        if name != "logit_bias" and name not in _RANGES:
            raise RequestError(f"{name} is no parameter of a request: check its spelling", param=name)
        if value is not None:
            checked[name] = _check_bias(value, vocab_size) if name == "logit_bias" else _check(name, value)
    for name, neutral in _NEUTRAL.items():
        if checked.get(name) == neutral:
            del checked[name]
    return SamplingLaw(**checked)


def _check(name: str, value: Any) -> float | int:
    low, high, meaning = _RANGES[name]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high or (name in _WHOLE and value != int(value)):
        raise RequestError(f"{name} is {value!r}: it must be {meaning}", param=name)
    if name == "temperature" and 0 < value < _COLDEST:
        raise RequestError(f"temperature is {value!r}: use 0 for greedy decoding", param=name)
    return int(value) if name in _WHOLE else float(value)


def _check_bias(bias: Any, vocab_size: int) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise RequestError(f"logit_bias is {bias!r}: it must map token ids to numbers", param="logit_bias")
    out: dict[int, float] = {}
    for token, value in bias.items():
        # Token ids are strings where the mapping came as JSON.
        written = isinstance(token, str) and token.isdecimal()
        number = int(token) if written or (isinstance(token, int) and not isinstance(token, bool)) else -1
        amount = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not 0 <= number < vocab_size or not abs(amount) <= _LARGEST_BIAS:
            raise RequestError(
                f"logit_bias has {token!r}: {value!r}; it takes token ids 0 to {vocab_size - 1} and finite numbers",
                param="logit_bias",
            )
        out[number] = float(amount)
    return out
