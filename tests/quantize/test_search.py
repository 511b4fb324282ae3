"""Bits by module: what is tried, which plan is taken under a limit, and that the trials say what the file will do."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.errors import CheckpointError, RequestError
from dflash2_quantize.checkpoint import write_checkpoint
from dflash2_quantize.measure import Acceptance, record, replayed
from dflash2_quantize.packing import Packing
from dflash2_quantize.search import (
    Limit,
    downhill,
    last_good,
    measured_losses,
    packings,
    search,
    size_of,
    stored_sizes,
)
from dflash2_quantize.source import Source, open_source
from dflash2_quantize.trials import Trials
from tests.drafting import outputs
from tests.quantize.subjects import DFLASH2, parameters, write
from tests.running import subject
from tests.tiny_drafters import tiny_drafter_config, write_drafter

W8, W4, W2 = Packing(8, 32), Packing(4, 32), Packing(2, 32)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """A drafter of the tiny target whose modules 32 divides, but for o_proj's."""
    config = tiny_drafter_config(
        subject("llama").plain,
        intermediate_size=64,
        head_dim=12,
        selector_top_k=250,  # or else a random drafter would never have the right candidate
        target_layer_ids=subject("llama").taps,
        layer_types=["sliding_attention", "full_attention"],
    )
    return open_source(str(write_drafter(tmp_path_factory.mktemp("source"), config)))


def trials(source: Source, **options: Any) -> tuple[Trials, Any]:
    of = subject("llama")
    recordings = record(of.target, of.taps, [of.prompt(9)], tokens=12, beyond=6)
    model = source.model()
    return Trials(of.target, model, recordings, dtype=mx.float32, anchors=6, **options), model


# Losses and plans


def test_each_module_is_tried_alone_at_each_width() -> None:
    tried: list[Mapping[str, Packing]] = []
    worth = {(): 3.0, (W8,): 2.9, (W4,): 2.95, (W2,): 2.0}

    def expected(plan: Mapping[str, Packing]) -> float:
        tried.append(plan)
        return worth[tuple(plan.values())]

    shares: list[float] = []
    losses = measured_losses(expected, {"a": [W8, W4, W2], "b": []}, shares.append)
    assert tried == [{}, {"a": W8}, {"a": W4}, {"a": W2}]
    # Four bits came out better than eight: noise, which must not make them the better choice.
    assert losses["a"] == pytest.approx({None: 0.0, W8: 0.1, W4: 0.1, W2: 1.0})
    assert losses["b"] == {None: 0.0}
    assert shares == pytest.approx([1 / 3, 2 / 3, 1.0])


def test_the_cheapest_step_comes_first() -> None:
    losses = {"a": {None: 0.0, W8: 0.0, W4: 0.1}, "b": {None: 0.0, W8: 0.5, W4: 0.6}}
    sizes = {"a": {None: 100, W8: 50, W4: 25}, "b": {None: 1000, W8: 500, W4: 250}}
    plans = [dict(plan) for plan in downhill(losses, sizes)]
    # a: 0 then 0.1/25; b: 0.6/750 straight to four bits beats 0.5/500.
    assert plans == [{}, {"a": W8}, {"a": W8, "b": W4}, {"a": W4, "b": W4}]


def test_the_path_is_near_the_best_of_all_plans() -> None:
    """Against every combination: no plan of that size or less loses much less than the one taken."""
    losses: dict[str, dict[Packing | None, float]] = {}
    sizes: dict[str, dict[Packing | None, int]] = {}
    key = mx.random.uniform(shape=(5, 3), key=mx.random.key(3)).tolist()
    for i, (a, b, c) in enumerate(key):  # type: ignore[misc]
        losses[str(i)] = {None: 0.0, W8: 0.1 * a, W4: 0.1 * a + b, W2: 0.1 * a + b + 3 * c}
        size = 100 * (i + 1)
        sizes[str(i)] = {None: size, W8: size // 2, W4: size // 4, W2: size // 8}
    everything = [dict(zip(sizes, choice, strict=True)) for choice in itertools.product((None, W8, W4, W2), repeat=5)]
    total = lambda plan: sum(losses[path][plan.get(path)] for path in losses)  # noqa: E731
    plans = list(downhill(losses, sizes))
    assert [size_of(plan, sizes) for plan in plans] == sorted((size_of(p, sizes) for p in plans), reverse=True)
    for plan in plans:
        size = size_of(plan, sizes)
        best = min(total(other) for other in everything if size_of(other, sizes) <= size)  # type: ignore[arg-type]
        assert total(plan) <= best + 1e-9  # each plan on the path is the best of its size


@pytest.mark.parametrize("good", range(7))
def test_the_last_good_plan_is_found_with_few_measurements(good: int) -> None:
    plans: list[Any] = [{"a": i} for i in range(7)]
    measured = []

    def acceptance(plan: Any) -> Acceptance:
        measured.append(plan["a"])
        return Acceptance(2.0 if plan["a"] <= good else 1.0, (), 1, 1)

    plan, result = last_good(plans, acceptance, 1.5, Acceptance(2.0, (), 1, 1))
    assert plan == plans[good]
    assert result.tokens_per_cycle == 2.0
    assert len(measured) <= 3


# Limits


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({}, "search"),
        ({"max_bytes": 5, "min_share": 0.5}, "search"),
        ({"min_share": 0.0}, "min_acceptance"),
        ({"min_share": 1.5}, "min_acceptance"),
        ({"min_share": float("nan")}, "min_acceptance"),
    ],
)
def test_one_limit_that_can_be(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as error:
        Limit(**options)
    assert error.value.param == param


def test_modules_that_cannot_be_packed_stay(source: Source) -> None:
    options = packings(source.model(), 32)
    assert options["layers.0.self_attn.o_proj"] == []  # 48 wide
    assert options["fc"] == [W8, W4, W2]


def test_what_is_packed_or_fits_nowhere_is_refused(tmp_path: Path, source: Source) -> None:
    with pytest.raises(CheckpointError, match="fc is packed already"):
        packings(open_source("demo").model(), 64)
    narrow = {**DFLASH2, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = {**narrow, "head_dim": 8, "dflash_config": {**DFLASH2["dflash_config"], "conv_group_size": 8}}
    with pytest.raises(CheckpointError, match=r"mlp\.down_proj \(24\)"):
        packings(open_source(str(write(tmp_path / "narrow", config))).model(), 128)


def test_sizes_are_those_of_the_file(source: Source, tmp_path: Path) -> None:
    model = source.model(mx.bfloat16)
    sizes, rest = stored_sizes(model, packings(model, 32), mx.bfloat16)
    for plan in ({}, {"fc": W8, "layers.0.mlp.up_proj": W2}):
        written = write_checkpoint(source, tmp_path / str(len(plan)), plan, mx.bfloat16)
        real = (written.folder / "model.safetensors").stat().st_size
        assert real <= rest + size_of(plan, sizes) < real + 20_000


# Trials


def test_a_trial_says_what_the_file_will_do(source: Source, tmp_path: Path) -> None:
    """A rounded model and a packed one agree but for rounding, and the model is itself again."""
    of = subject("llama")
    trial, model = trials(source)
    plan = {"fc": W4, "layers.1.self_attn.k_proj": W2, "layers.0.mlp.down_proj": W8}
    before = {name: mx.array(value) for name, value in parameters_of(model).items()}
    whole = trial.expected({})
    rounded = trial.expected(plan)
    assert abs(whole - rounded) > 1e-5
    written = write_checkpoint(source, tmp_path / "out", plan, mx.float32)
    recordings = record(of.target, of.taps, [of.prompt(9)], tokens=12, beyond=6)
    packed = load_drafter(written.folder)
    assert trial.acceptance(plan) == replayed(of.target, packed, recordings)
    stored = Trials(of.target, packed.model, recordings, dtype=mx.float32, anchors=6)
    assert stored.expected({}) == pytest.approx(rounded, abs=0.02 * abs(whole - rounded))
    after = parameters_of(model)
    assert all(mx.array_equal(before[name], after[name]) for name in before)
    assert trial.expected({}) == whole


def parameters_of(model: Any) -> dict[str, mx.array]:
    from mlx.utils import tree_flatten

    return dict(tree_flatten(model.parameters()))  # type: ignore[arg-type]


def test_a_search_under_a_size(source: Source, tmp_path: Path) -> None:
    trial, model = trials(source)
    whole = stored_sizes(model, packings(model, 32), mx.float32)
    size = whole[1] + size_of({}, whole[0])
    limit = Limit(max_bytes=int(0.7 * size))
    found = search(model, 32, mx.float32, trial, limit, lambda share: None)
    assert 0 < len(found.plan) < len(found.losses)
    written = write_checkpoint(source, tmp_path / "out", found.plan, mx.float32)
    assert (written.folder / "model.safetensors").stat().st_size <= found.bytes <= 0.7 * size
    drafter = load_drafter(written.folder)
    assert outputs(drafter).size
    assert {name for name in parameters(drafter) if name.endswith("scales")} == {f"{p}.scales" for p in found.plan}


def test_a_size_that_cannot_be_is_refused_before_anything_is_tried(source: Source) -> None:
    _, model = trials(source)
    with pytest.raises(RequestError, match=r"max-size 0\.00 MB: with every module at the fewest bits it is 0\.\d+ MB"):
        search(model, 32, mx.float32, None, Limit(max_bytes=1000), lambda share: None)  # type: ignore[arg-type]


class Costly:
    """In place of trials: every byte saved costs the same, in `fc` ten times as much."""

    def __init__(self, sizes: Mapping[str, Mapping[Packing | None, int]]) -> None:
        self.sizes = sizes

    def expected(self, plan: Mapping[str, Packing]) -> float:
        saved = {path: self.sizes[path][None] - self.sizes[path][packing] for path, packing in plan.items()}
        return 3.0 - sum((1e-4 if path == "fc" else 1e-5) * count for path, count in saved.items())

    def acceptance(self, plan: Mapping[str, Packing]) -> Acceptance:
        return Acceptance(self.expected(plan), (), 1, 1)


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_a_search_under_an_acceptance(share: float, source: Source) -> None:
    model = source.model()
    sizes, rest = stored_sizes(model, packings(model, 32), mx.float32)
    costly: Any = Costly(sizes)
    found = search(model, 32, mx.float32, costly, Limit(min_share=share), lambda share: None)
    assert found.before.tokens_per_cycle == 3.0
    assert found.after.tokens_per_cycle == costly.expected(found.plan) >= share * 3.0
    assert found.bytes == rest + size_of(found.plan, sizes)
    assert bool(found.plan) == (share < 1)
    later = next((p for p in downhill(found.losses, sizes) if size_of(p, sizes) < size_of(found.plan, sizes)), None)
    assert later is None or costly.expected(later) < share * 3.0
    if share == 0.9:
        assert "fc" not in found.plan
