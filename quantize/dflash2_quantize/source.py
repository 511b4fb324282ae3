"""A drafter to be quantised, opened without reading a weight: its config, its model, its size on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from dflash2_mlx import hub
from dflash2_mlx.demo.paths import drafter_path
from dflash2_mlx.drafter.config import DrafterConfig, parse_config, read_config
from dflash2_mlx.drafter.load import checked_model
from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.facts import tensors
from dflash2_mlx.pairs import DEMO


@dataclass(frozen=True)
class Source:
    """`name` is what the user gave; `bytes` are those of its weights on disk."""

    name: str
    folder: Path
    raw: dict[str, Any]
    config: DrafterConfig
    bytes: int
    tensor_names: frozenset[str]

    def model(self, dtype: mx.Dtype | None = None) -> DraftModel:
        """The model, checked and not yet read, whose numbers are cast to `dtype` (None: as stored) when they are.

        A new one at each call: whoever evaluates its arrays holds their memory, and nobody else does.
        """
        model, stored = checked_model(self.folder, self.raw, self.config)
        model.set_dtype(dtype or stored)
        return model


def open_source(name: str) -> Source:
    """`name` is a folder, a Hub id (downloaded where it is not in the cache) or `demo`.

    Raises ModelNotFound, or CheckpointError for what `load_drafter` would refuse.
    """
    folder = drafter_path() if name == DEMO else hub.resolve(name)
    raw = read_config(folder)
    config = parse_config(raw)
    checked_model(folder, raw, config)
    found = tensors(folder)
    return Source(name, folder, raw, config, sum(tensor.size for tensor in found.values()), frozenset(found))
