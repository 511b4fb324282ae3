"""A model or drafter on disk, as far as its config and the headers of its weight files tell."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from dflash2_mlx.drafter.config import DrafterConfig
    from dflash2_mlx.pairs import TargetFacts

Source = Literal["folder", "hub", "embedded"]
Kind = Literal["model", "drafter"]

DEMO = "demo"
DEMO_DRAFTER = "demo-drafter"


@dataclass(frozen=True, kw_only=True)
class LocalModel:
    """A complete model or drafter. `problem` says why it cannot be loaded, `dflash_reason` why no drafter can serve."""

    id: str
    path: Path
    source: Source
    repo_id: str | None
    size: int  # bytes on disk
    kind: Kind
    model_type: str
    quantization: str | None = None  # such as "4-bit, group 64"; None: not quantised
    context_length: int | None = None
    facts: TargetFacts | None = None  # of a model
    drafter: DrafterConfig | None = None  # of a drafter whose config can be read
    problem: str | None = None
    dflash_compatible: bool = False
    dflash_reason: str | None = None
    quantized_from: str | None = None  # of a drafter that `dflash2-mlx quantize` has written: what it was written from
    deletable: bool = False
    stamp: int = field(default=0, repr=False)  # of the files that it was read from
    config: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def load_name(self) -> str:
        """What `dflash2_mlx.load` knows it by, as model or as drafter."""
        return DEMO if self.source == "embedded" else str(self.path)
