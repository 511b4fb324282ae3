"""What mlx-lm's own processors and sampler make of logits: the oracle of every sampling law."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np
from mlx_lm import sample_utils

_FILTERS = ("temperature", "top_p", "top_k", "min_p")


def library_logits(logits: mx.array, tokens: Sequence[int], parameters: dict[str, Any]) -> mx.array:
    """What mlx-lm's processors make of one row of logits (V,) after `tokens`."""
    penalties = {name: value for name, value in parameters.items() if name not in _FILTERS}
    row = mx.array(np.array(logits)[None])
    for processor in sample_utils.make_logits_processors(**penalties):
        row = processor(mx.array(tokens), row)
    return row[0]


def library_law(logits: mx.array, parameters: dict[str, Any]) -> np.ndarray:
    """The probabilities (R, V) that mlx-lm's sampler draws from after rows of logits (R, V)."""
    captured = []

    def capture(logprobs: mx.array, temp: float) -> mx.array:
        captured.append(logprobs * (1 / temp))
        return mx.argmax(logprobs, axis=-1)

    options = {name: parameters[name] for name in _FILTERS if name in parameters}
    if options.get("top_k", 0) >= logits.shape[-1]:  # mlx-lm refuses these; they cut nothing
        del options["top_k"]
    with patch.object(sample_utils, "categorical_sampling", capture):
        sampler = sample_utils.make_sampler(temp=options.pop("temperature"), **options)
        sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    return np.array(mx.softmax(captured[0], axis=-1))
