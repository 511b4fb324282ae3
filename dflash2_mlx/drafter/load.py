"""Load a drafter from a folder: strict both ways, whatever the layout and packing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.utils import dequantize_model, infer_quant_config

from ..errors import CheckpointError
from .config import DrafterConfig, narrowed, parse_config, read_config
from .model import DraftModel
from .propose import Drafter
from .quantization import compute_dtype, describe, parse_spec, quantize


def load_drafter(
    folder: Path,
    *,
    spec: str | None = None,
    dtype: str | mx.Dtype | None = None,
    dequantize: bool = False,
    draft_window: int | None = None,
    draft_sink: int = 0,
) -> Drafter:
    """The drafter in `folder`, packed by `spec` (see `parse_spec`), computing in `dtype`.

    Without a spec, `dtype` (bfloat16 or float32) defaults to bfloat16 unless the weights are float32, and
    `dequantize` unpacks a packed checkpoint, for devices where packed matrices are slow. Every layer sees context rows
    below distance `draft_window` (None: as the checkpoint says), and the first `draft_sink` at any distance. Raises
    CheckpointError for a config or tensor that is missing, unknown or misshapen, RequestError for such an option.
    """
    wanted = parse_spec(spec)
    compute = wanted.dtype if wanted else compute_dtype(dtype)
    raw = read_config(folder)
    config = narrowed(parse_config(raw), draft_window, draft_sink)
    model, stored = checked_model(folder, raw, config)
    model.set_dtype(compute or stored)
    if wanted:
        quantize(model, wanted)
    elif dequantize:
        dequantize_model(model)
    model.freeze()
    model.eval()
    mx.eval(model.parameters())
    return Drafter(model, quantization=describe(model), notes=_notes(config))


def checked_model(folder: Path, raw: dict[str, Any], config: DrafterConfig) -> tuple[DraftModel, mx.Dtype]:
    """The model in `folder`, packed as its weights are, and the dtype for it: float32 where all are, else bfloat16.

    Everything is checked, but no weight is read until it is evaluated. Raises CheckpointError as `load_drafter` does.
    """
    _refuse_foreign_packing(raw)
    weights = DraftModel.sanitize(read_weights(folder))
    model = DraftModel(config)
    _mirror_packing(model, weights)
    try:
        model.load_weights(list(weights.items()), strict=True)
    except ValueError as error:
        raise CheckpointError(f"the weights in {folder} do not fit their config: {error}") from None
    floating = {a.dtype for a in weights.values() if mx.issubdtype(a.dtype, mx.floating)}
    return model, mx.float32 if floating == {mx.float32} else mx.bfloat16


def _notes(config: DrafterConfig) -> tuple[str, ...]:
    if config.sink and not config.sink_rows:
        return (f"draft sink {config.sink}: without a draft window every layer of this drafter sees all rows anyway",)
    return ()


def read_weights(folder: Path) -> dict[str, mx.array]:
    """All tensors of a checkpoint, one file or shards; a shard that the index names must be there."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = _indexed_files(index)
        missing = sorted(named - {file.name for file in files})
        if missing:
            raise CheckpointError(f"{folder} lacks {missing}: the download is incomplete, fetch it again")
        files = [file for file in files if file.name in named]
    if not files:
        raise CheckpointError(f"no .safetensors file in {folder}: the download is incomplete, fetch it again")
    weights: dict[str, mx.array] = {}
    for file in files:
        try:
            tensors: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read ({error}): fetch it again") from None
        twice = sorted(set(tensors) & set(weights))
        if twice:
            raise CheckpointError(f"{file.name} repeats tensors of another file: {twice[:3]}")
        weights.update(tensors)
    return weights


def _indexed_files(index: Path) -> set[str]:
    try:
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is no index of shards ({error!r}): fetch it again") from None


def _refuse_foreign_packing(raw: dict[str, Any]) -> None:
    foreign = raw.get("quantization_config")
    if foreign and "quant_method" in foreign:
        raise CheckpointError(
            f"quantization_config says {foreign['quant_method']!r}: only MLX packing (`.scales`, `.biases`) is read; "
            "use the bfloat16 checkpoint with draft quantisation"
        )


def _mirror_packing(model: DraftModel, weights: dict[str, mx.array]) -> None:
    """Make exactly the modules whose weights come with `.scales` packed modules."""

    def packing(path: str, module: nn.Module) -> bool | dict[str, Any]:
        if f"{path}.scales" not in weights:
            return False
        if f"{path}.weight" not in weights or not hasattr(module, "to_quantized"):
            raise CheckpointError(f"{path}.scales has no packed {path}.weight: the checkpoint is damaged")
        found: dict[str, Any] = infer_quant_config(path, module, weights)
        return found

    try:
        nn.quantize(model, class_predicate=packing)
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(f"the checkpoint is packed in a way that MLX does not know: {error}") from None
