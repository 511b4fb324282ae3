"""A trained drafter on disk: the published layout, read by our loader, by the reference and by `quantize`."""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map_with_path

from dflash2_mlx.drafter.config import parse_config, read_config
from dflash2_mlx.drafter.load import load_drafter, read_weights
from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.errors import CheckpointError, RequestError
from dflash2_mlx.hub import shown_name
from dflash2_mlx.pairs import TargetFacts
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.train.recipe.values import Recipe, Shape
from dflash2_mlx.train.reporting.card import CardFacts
from dflash2_mlx.train.reporting.history import EvaluationLine
from dflash2_mlx.train.run.export import check_export, export
from dflash2_mlx.train.start.design import design
from dflash2_mlx.train.start.warm import new_model
from dflash2_quantize import quantize_command
from tests import tiny
from tests.test_reference_parity import GROWING, Pairing, assert_parity, random_taps
from tests.tiny_drafters import drafter_shapes
from tests.tiny_families import llama_untied

SHAPE = Shape(layers=3, window=16, full_layers=1, selector_rank=8, selector_top_k=4, mask_token=3, intermediate_size=64)
LINE = EvaluationLine(40, 2.25, {"code": 3.5, "prose": 1.5}, [0.75, 0.5])
FACTS = CardFacts(
    recipe=Recipe(target="/homes/someone/a-target", data="/homes/someone/texts", held_out="/homes/someone/prompts.txt"),
    digest="0123456789ab",
    conversations=640,
    answer_tokens=12345,
    step=50,
    kinds={"code": 320, "prose": 320},
    acceptance=LINE,
    prompts=20,
    tokens=96,
)


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny.build("llama_untied")


def trained(model: Any, **shape: Any) -> DraftModel:
    """A warm model in which nothing is at its start: weights as after training."""
    target = Target(model)
    facts = TargetFacts(target.hidden_size, target.num_layers, target.vocab_size)
    config = design(replace(SHAPE, **shape), {**llama_untied(16), "final_logit_softcapping": 12.0}, facts)
    drafter, _ = new_model(config, target, "warm", 0)
    keys = iter(mx.random.split(mx.random.key(1), 200))
    drafter.update(
        tree_map_with_path(
            lambda name, w: w + 0.1 * mx.random.normal(w.shape, key=next(keys)), drafter.trainable_parameters()
        )
    )
    return drafter


def flat(model: DraftModel) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))  # type: ignore[arg-type]


def test_the_reference_reads_it_and_computes_what_we_compute(tmp_path: Path, target: Any) -> None:
    model = trained(target)
    folder = export(tmp_path / "drafter", model, model.config, facts=FACTS)
    pairing = Pairing(folder, target)
    pairing.oracle.model.set_dtype(mx.float32)  # it computes as stored: the numbers are compared, not their rounding
    raw = read_config(folder)
    assert_parity(pairing, random_taps(raw, sum(GROWING)), GROWING)


def test_it_has_the_published_names_shapes_and_numbers(tmp_path: Path, target: Any) -> None:
    model = trained(target)
    folder = export(tmp_path / "new" / "drafter", model, model.config, facts=FACTS)
    weights = read_weights(folder)
    assert {name: w.shape for name, w in weights.items()} == drafter_shapes(read_config(folder))
    assert {w.dtype for w in weights.values()} == {mx.bfloat16}
    assert parse_config(read_config(folder)) == model.config
    ours = DraftModel.sanitize(weights)
    assert all(mx.array_equal(ours[name], w.astype(mx.bfloat16)) for name, w in flat(model).items())


@pytest.mark.parametrize(
    "shape", [{"convolution": False}, {"selector": False}, {"convolution": False, "selector": False}]
)
def test_what_has_no_convolution_or_selector_is_read_back(tmp_path: Path, target: Any, shape: dict[str, bool]) -> None:
    model = trained(target, **shape)
    folder = export(tmp_path / "drafter", model, model.config, facts=FACTS)
    loaded = load_drafter(folder)
    assert loaded.config == model.config
    assert all(mx.array_equal(w, flat(model)[name].astype(mx.bfloat16)) for name, w in flat(loaded.model).items())


def test_the_card_tells_how_it_was_made_and_nothing_of_the_disk(tmp_path: Path, target: Any) -> None:
    model = trained(target)
    folder = export(tmp_path / "my-drafter", model, model.config, facts=FACTS)
    card = (folder / "README.md").read_text()
    for part in (
        "library_name: mlx",
        "# my-drafter",
        "for `a-target`",
        "0123456789ab",
        "50 steps",
        "12,345 tokens",
        "--model a-target --draft OWNER/NAME\n",
        "| all | 2.250 |",
        "| code | 3.500 |",
        "| 2 | 0.500 |",
        "after step 40: 20 held-out prompts, up to 96 tokens",
    ):
        assert part in card
    recipe = (folder / "recipe.toml").read_text()
    assert "someone" not in card + recipe
    assert tomllib.loads(recipe)["data"] == "texts"
    one_kind = replace(FACTS, acceptance=replace(LINE, by_kind={"other": 2.25}))
    assert "| other |" not in (export(tmp_path / "one", model, model.config, facts=one_kind) / "README.md").read_text()
    unmeasured = export(tmp_path / "other", model, model.config, facts=replace(FACTS, acceptance=None))
    assert "Not measured." in (unmeasured / "README.md").read_text()


def test_names_that_are_shown(tmp_path: Path) -> None:
    commit = tmp_path / "models--owner--name" / "snapshots" / "0f0f"
    commit.mkdir(parents=True)
    assert [shown_name(n) for n in ("demo", "owner/name", str(commit), str(tmp_path))] == [
        "demo",
        "owner/name",
        "owner/name",
        tmp_path.name,
    ]


def test_an_export_is_replaced_when_asked_and_nothing_else_ever(tmp_path: Path, target: Any) -> None:
    model = trained(target)
    folder = export(tmp_path / "drafter", model, model.config, facts=FACTS)
    with pytest.raises(RequestError, match="a drafter already") as refused:
        export(folder, model, model.config, facts=FACTS)
    assert refused.value.param == "out"
    export(folder, model, model.config, facts=replace(FACTS, step=51), replace=True)
    assert "51 steps" in (folder / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]

    (folder / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    for place in (folder, tmp_path, tmp_path / "file"):
        with pytest.raises(RequestError, match="something else"):
            check_export(place, replace=True)
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("failing", ["save_safetensors", "rename"])
def test_a_full_disk_leaves_the_old_export(
    tmp_path: Path, target: Any, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    model = trained(target)
    folder = export(tmp_path / "drafter", model, model.config, facts=FACTS)

    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    if failing == "rename":
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda self, to: full() if "partial" in self.name else rename(self, to))
    else:
        monkeypatch.setattr(mx, failing, full)
    with pytest.raises(CheckpointError, match="no space left"):
        export(folder, model, model.config, facts=replace(FACTS, step=51), replace=True)
    monkeypatch.undo()
    assert "50 steps" in (folder / "README.md").read_text()
    assert load_drafter(folder).config == model.config
    assert [path.name for path in tmp_path.iterdir()] == ["drafter"]


def test_weights_that_are_not_finite_are_not_written(tmp_path: Path, target: Any) -> None:
    model = trained(target)
    model.fc.weight = model.fc.weight * float("nan")
    with pytest.raises(CheckpointError, match=r"fc\.weight is not finite"):
        export(tmp_path / "drafter", model, model.config, facts=FACTS)
    assert list(tmp_path.iterdir()) == []


def test_the_quantize_command_packs_it(tmp_path: Path, target: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = trained(target)
    folder = export(tmp_path / "drafter", model, model.config, facts=FACTS)
    parser = argparse.ArgumentParser()
    quantize_command.add_arguments(parser)
    packed = tmp_path / "packed"
    args = parser.parse_args([str(folder), "--out", str(packed), "--spec", "w8a16:gs32", "--progress-json"])
    assert quantize_command.run(args) == 0
    capsys.readouterr()
    loaded = load_drafter(packed)
    assert loaded.quantization == "w8a16:gs32"
    assert loaded.config == model.config
    restored = load_drafter(packed, dequantize=True).model
    np.testing.assert_allclose(
        flat(restored)["fc.weight"].astype(mx.float32), flat(model)["fc.weight"], rtol=0.05, atol=0.02
    )
