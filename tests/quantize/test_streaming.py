"""A drafter is quantised in the memory that one module takes, however many it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from dflash2_mlx.drafter.load import load_drafter, read_weights
from dflash2_quantize.source import open_source
from tests.quantize.subjects import DFLASH2, write
from tests.quantize.test_round_trip import quantised

WIDE = {
    **DFLASH2,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "head_dim": 64,
    "intermediate_size": 1024,
}


def source(folder: Path, layers: int) -> Path:
    return write(folder, {**WIDE, "num_hidden_layers": layers, "layer_types": ["sliding_attention"] * layers})


def extra_memory(work: Callable[[], object]) -> int:
    """The most that mlx held while `work` ran, beyond what it held before."""
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    return mx.get_peak_memory() - before


def test_the_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    small, large = source(tmp_path / "small", 3), source(tmp_path / "large", 9)
    size = (large / "model.safetensors").stat().st_size
    assert size > 40e6
    peaks = [
        extra_memory(lambda of=of: quantised(of, tmp_path / f"{of.name}-out", "w4a16:gs64")) for of in (small, large)
    ]
    assert peaks[1] < 1.05 * peaks[0] < 0.4 * size
    # The measure sees what is held: quantising at load keeps the packed tensors, reading keeps everything.
    assert extra_memory(lambda: load_drafter(large, spec="w4a16:gs64")) > 1.5 * peaks[1]
    assert extra_memory(lambda: mx.eval(read_weights(large))) > 0.9 * size


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    folder = source(tmp_path / "source", 1)
    assert extra_memory(lambda: open_source(str(folder)).model()) < 1e5
    assert extra_memory(lambda: mx.eval(open_source(str(folder)).model().parameters())) > 1e6
