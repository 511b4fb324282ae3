"""Load a target with mlx-lm: model, tokenizer and generation defaults of one folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.utils import dequantize_model, load_model, load_tokenizer

from ..errors import CheckpointError, RequestError

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class LoadedTarget:
    """A target's parts. `defaults` are the sampling parameters that its generation_config.json sets."""

    model: nn.Module
    tokenizer: TokenizerWrapper
    config: dict[str, Any]
    defaults: dict[str, float]


def load_target(
    folder: Path,
    *,
    dtype: str | None = None,
    dequantize: bool = False,
    progress: Callable[[float], None] | None = None,
) -> LoadedTarget:
    """Load the chat model in `folder`, computing in `dtype` (float32, bfloat16 or float16; None: as stored).

    `dequantize` unpacks its matrices, for devices where packed ones are slow. Raises CheckpointError for a folder
    that is no complete chat model.
    """
    if dtype is not None and dtype not in _DTYPES:
        raise RequestError(f"dtype {dtype!r}: use one of {sorted(_DTYPES)}", param="dtype")
    try:
        model, config = load_model(folder, lazy=True)
        tokenizer = load_tokenizer(folder, eos_token_ids=config.get("eos_token_id"))
    except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
        # TypeError: a config key that the family needs is absent; RuntimeError: a weight file is cut short.
        raise CheckpointError(f"{folder} cannot be loaded as a chat model: {error}") from None
    if dtype is not None:
        _cast(model, _DTYPES[dtype])
    if dequantize:
        model = dequantize_model(model)
    _evaluate(model, progress or (lambda share: None))
    return LoadedTarget(model, tokenizer, config, generation_defaults(folder))


def generation_defaults(folder: Path) -> dict[str, float]:
    """Sampling parameters from generation_config.json; a checkpoint that says do_sample false is greedy."""
    path = folder / "generation_config.json"
    if not path.exists():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}): mend or remove it") from None
    if stored.get("do_sample") is False:
        return {"temperature": 0.0}
    if stored.get("do_sample") and stored.get("temperature") is None:
        stored["temperature"] = 1.0  # what transformers takes then
    return {key: stored[key] for key in _SAMPLING_KEYS if stored.get(key) is not None}


def _cast(model: nn.Module, dtype: mx.Dtype) -> None:
    """Set the compute dtype; a family may keep some parameters as they are (mlx-lm's `cast_predicate`)."""
    allowed = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, array: mx.array) -> mx.array:
        return array.astype(dtype) if mx.issubdtype(array.dtype, mx.floating) and allowed(path) else array

    model.update(tree_map_with_path(cast, model.parameters()))


def _evaluate(model: nn.Module, progress: Callable[[float], None]) -> None:
    """Read the weights module by module, so that there is progress to show."""
    arrays: list[mx.array] = [array for _, array in tree_flatten(model.parameters())]  # type: ignore[misc, str-unpack]
    total, done = sum(array.nbytes for array in arrays) or 1, 0
    for array in arrays:
        mx.eval(array)
        done += array.nbytes
        progress(done / total)
