"""`load` with a draft window and sinks, and what stands for a pair on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import dflash2_mlx
from dflash2_mlx.engine.ssd_cache import fingerprint_of
from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import Pair
from tests.tiny_checkpoints import write_target
from tests.tiny_drafters import tiny_drafter_config, tiny_v1_config, write_drafter


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    model = write_target(tmp_path / "target")
    sizes = {"head_dim": 16, "intermediate_size": 64}  # that can be packed
    write_drafter(tmp_path / "drafter", tiny_drafter_config(model, **sizes), dtype=mx.bfloat16)
    write_drafter(tmp_path / "first", tiny_v1_config(model), dtype=mx.bfloat16)
    return tmp_path


def load(folder: Path, drafter: str | None = "drafter", **options: Any) -> Pair:
    return dflash2_mlx.load(str(folder / "target"), str(folder / drafter) if drafter else None, **options)


def test_window_and_sinks_reach_the_drafter(checkpoints: Path) -> None:
    pair = load(checkpoints, "first", draft_window=20, draft_sink=4)
    assert pair.drafter is not None
    assert (pair.drafter.config.context_rows, pair.drafter.config.sink_rows, pair.notes) == (19, 4, ())
    answer = dflash2_mlx.generate(pair, list(range(60)), max_tokens=8, ignore_eos=True)
    plain = dflash2_mlx.generate(load(checkpoints, None), list(range(60)), max_tokens=8, ignore_eos=True)
    assert answer.tokens == plain.tokens
    assert load(checkpoints, "first", draft_sink=4).notes != ()
    with pytest.raises(RequestError, match="draft window 17"):
        load(checkpoints, draft_window=17)


def test_whatever_changes_the_rows_changes_the_fingerprint(checkpoints: Path) -> None:
    prints = [fingerprint_of(load(checkpoints)), fingerprint_of(load(checkpoints))]
    assert prints[0] == prints[1]
    each: list[dict[str, Any]] = [
        {"draft_window": 8},
        {"draft_sink": 2},
        {"dtype": "bfloat16"},
        {"quantize": "w8:gs32"},
    ]
    prints += [fingerprint_of(load(checkpoints, **options)) for options in each]
    prints += [fingerprint_of(load(checkpoints, drafter)) for drafter in ("first", None)]
    config = checkpoints / "target" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 3e-5}))
    prints.append(fingerprint_of(load(checkpoints)))
    for folder in ("target", "drafter"):
        (weights, *_) = sorted((checkpoints / folder).glob("*.safetensors"))
        os.utime(weights, (1, 1))
        prints.append(fingerprint_of(load(checkpoints)))
    assert None not in prints
    assert len(set(prints)) == len(prints) - 1
