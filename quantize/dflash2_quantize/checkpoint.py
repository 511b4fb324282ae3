"""Writes a packed checkpoint, module by module: no more than one module's weights are in memory at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.facts import INDEX
from dflash2_mlx.hub import shown_name

from .error import relative_error
from .folder import built_aside, check_space
from .packing import Plan, config_entry, pack
from .safetensors_file import Layout, file_names, layout_of, shards, write_safetensors
from .source import Source

SHARD_BYTES = 5_000_000_000  # as mlx-lm and the Hub cut
QUANTIZED_FROM = "dflash2_quantized_from"
_DTYPE_KEYS = ("torch_dtype", "dtype")

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Written:
    """What was written: `bytes` of all files, the relative RMS error by module that was packed here."""

    folder: Path
    bytes: int
    plan: Plan
    errors: Mapping[str, float]


@dataclass
class _Stream:
    """Tensors by the name in the file, not yet computed, and what is learned while they are."""

    tensors: dict[str, mx.array]
    before: dict[str, mx.array]  # weights by module path, as they are before packing
    plan: Plan
    errors: dict[str, float] = field(default_factory=dict)

    def layouts(self) -> dict[str, Layout]:
        return {name: layout_of(array) for name, array in self.tensors.items()}

    def take(self, names: Mapping[str, Layout], progress: Progress) -> Iterator[tuple[str, mx.array]]:
        """The named tensors one after another; nothing here holds one that was taken."""
        for name in names:
            module, _, part = name.rpartition(".")
            if part == "weight" and module in self.plan:
                self.errors[module] = self._error(module)
            yield name, self.tensors.pop(name)
            mx.clear_cache()
            progress(names[name].bytes)

    def _error(self, module: str) -> float:
        integers, scales, biases = (self.tensors[f"{module}.{part}"] for part in ("weight", "scales", "biases"))
        packing = self.plan[module]
        return relative_error(
            self.before.pop(module), integers, scales, biases, bits=packing.bits, group_size=packing.group_size
        )


def write_checkpoint(
    source: Source,
    out: Path,
    plan: Plan,
    dtype: mx.Dtype,
    *,
    progress: Progress = lambda share: None,
    shard_bytes: int = SHARD_BYTES,
) -> Written:
    """Write `source`, packed by `plan`, with everything else in `dtype`, to the folder `out`, which is replaced.

    The files appear all at once at the end; when it breaks off, `out` is as it was. Raises RequestError (param out)
    without room on the disk, CheckpointError when it cannot be written.
    """
    config, stream = _prepare(source, plan, dtype)
    layouts = stream.layouts()
    total = sum(layout.bytes for layout in layouts.values())
    check_space(out, total)
    done = 0.0

    def advance(count: float) -> None:
        nonlocal done
        done += count
        progress(done / total)

    with built_aside(out) as scratch:
        parts = shards(layouts, shard_bytes)
        names = file_names(len(parts))
        for name, part in zip(names, parts, strict=True):
            write_safetensors(scratch / name, part, stream.take(part, advance))
        if len(parts) > 1:
            index = {tensor: name for name, part in zip(names, parts, strict=True) for tensor in part}
            _write_json(scratch / INDEX, {"metadata": {"total_size": total}, "weight_map": index})
        _write_json(scratch / "config.json", config)  # last: without it the folder is no model
    size = sum(file.stat().st_size for file in out.iterdir())
    return Written(out, size, plan, stream.errors)


def stored_bytes(source: Source, plan: Plan, dtype: mx.Dtype) -> int:
    """The bytes of the weights that `write_checkpoint` would write."""
    return sum(layout.bytes for layout in _prepare(source, plan, dtype)[1].layouts().values())


def _prepare(source: Source, plan: Plan, dtype: mx.Dtype) -> tuple[dict[str, Any], _Stream]:
    model = source.model(dtype)
    before = pack(model, plan)
    config = _config(source, model, dtype)
    parameters: Any = tree_flatten(model.parameters())
    return config, _Stream({_file_name(name, source): array for name, array in parameters}, before, plan)


def _file_name(name: str, source: Source) -> str:
    """The name that the source has for the tensor: the published layout has the codebooks as bare tensors."""
    bare = name.removesuffix(".weight")
    return bare if bare in source.tensor_names else name


def _config(source: Source, model: DraftModel, dtype: mx.Dtype) -> dict[str, Any]:
    """The source's config, with the packing and the dtype that are in the new files, and with the source's name.

    By the name the model manager knows a copy, which is no drafter that it chooses by itself.
    """
    raw = source.raw
    config = {key: value for key, value in raw.items() if key not in ("quantization", "quantization_config")}
    stored = str(dtype).removeprefix("mlx.core.")
    config |= {key: stored for key in _DTYPE_KEYS if key in raw}
    entry = config_entry(model)
    if entry is not None:
        config |= {key: entry for key in ("quantization", "quantization_config") if key == "quantization" or key in raw}
    return config | {QUANTIZED_FROM: shown_name(source.name)}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
