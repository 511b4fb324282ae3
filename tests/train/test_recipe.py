"""Recipes: the TOML file, the flags over it, and what is refused, by name."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.train.recipe.fields import FIELDS
from dflash2_mlx.train.recipe.file import check, read_recipe, write_recipe
from dflash2_mlx.train.recipe.flags import add_recipe_arguments, recipe_from, recipe_path
from dflash2_mlx.train.recipe.values import Loop, Loss, Recipe, Shape

UNUSUAL = Recipe(
    target="../my target",
    data='folder "with" quotes\\',
    start="random",
    rows_gb=0.5,
    held_out="prompts.jsonl",
    shape=Shape(
        layers=3,
        block_size=6,
        window=None,
        full_layers=1,
        taps=(1, 5),
        intermediate_size=96,
        convolution=False,
        conv_group_size=8,
        selector=False,
        selector_rank=32,
        selector_top_k=8,
        mask_token=7,
        causal=True,
    ),
    loss=Loss(anchors=5, decay=2.5, distill=0.0, selector=0.25, frequent=0, sampled=0, full_steps=2),
    loop=Loop(
        steps=20,
        batch=6,
        micro_batch=2,
        max_tokens=64,
        learning_rate=3e-4,
        warmup=2,
        final_share=0.5,
        weight_decay=0.05,
        clip=0.5,
        precision="float32",
        checkpointing=True,
        evaluate_every=7,
        save_every=9,
        patience=3,
        seed=11,
    ),
)


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe")
    add_recipe_arguments(parser)
    return parser.parse_args(words)


def test_every_field_is_in_the_table() -> None:
    parts = {"": Recipe, "shape": Shape, "loss": Loss, "loop": Loop}
    expected = {(part, f.name) for part, kind in parts.items() for f in fields(kind)}
    expected -= {("", "shape"), ("", "loss"), ("", "loop")}
    assert {(field.part, field.name) for field in FIELDS} == expected
    assert len({field.key for field in FIELDS}) == len(FIELDS), "two flags of one name"


@pytest.mark.parametrize("recipe", [Recipe(), UNUSUAL])
def test_what_is_written_is_read_back(recipe: Recipe, tmp_path: Path) -> None:
    write_recipe(tmp_path / "recipe.toml", recipe)
    assert read_recipe(tmp_path / "recipe.toml") == recipe


def test_every_field_of_the_unusual_one_is_unusual() -> None:
    assert [field.key for field in FIELDS if field.of(UNUSUAL) == field.of(Recipe())] == []


def test_what_a_file_leaves_out_is_at_its_default(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text('target = "x/y"\n[loop]\nlearning_rate = 1\nsteps = 100\n')
    assert read_recipe(tmp_path / "r.toml") == Recipe(target="x/y", loop=Loop(learning_rate=1.0, steps=100))


@pytest.mark.parametrize(
    ("text", "param", "message"),
    [
        ("steps = [", "recipe", "is no TOML file"),
        ("[shape]\nlayrs = 3", "layrs", r"no 'layrs' in \[shape\]: layers, block_size"),
        ("[model]\nlayers = 3", "layers", r"no 'layers' in \[model\]: no such table"),
        ("layers = 3", "layers", "there is no 'layers': target, data"),
        ("[shape]\nlayers = 3.5", "layers", "layers is 3.5: it must be a whole number"),
        ("[shape]\nlayers = true", "layers", "layers is True: it must be a whole number"),
        ("[shape]\ntaps = [1, 2.5]", "taps", "list of distinct whole numbers, or 'auto'"),
        ("[shape]\ntaps = [1, 1]", "taps", "distinct"),
        ("[shape]\nconvolution = 1", "convolution", "true or false"),
        ('[shape]\nlayers = "auto"', "layers", "a whole number"),
        ('target = ""', "model", "printable"),
        ("[loss]\ndistill = 1.5", "distill", "from 0 to 1"),
        ("[loss]\nselector = -1", "selector_weight", "from 0 to 1000"),
        ("[loop]\nlearning_rate = nan", "learning_rate", "from 1e-09 to 1"),
        ('[loop]\nprecision = "float16"', "precision", "use one of auto, float32, bfloat16"),
        ("[loop]\nsteps = 20", "warmup", "the run has 20 steps: give fewer, such as 2"),
        ("[loop]\nmicro_batch = 32", "micro_batch", "a step has 16 conversations"),
        ("[loss]\nfull_steps = 2000", "full_steps", "the run has 1,000 steps"),
        ("[loss]\nfrequent = 8", "frequent", "a row has 16 candidates"),
        ("[shape]\nfull_layers = 6", "full_layers", "the drafter has 5 layers"),
        ("[shape]\nblock_size = 32\n[loop]\nmax_tokens = 16", "max_tokens", "a block has 32 rows"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, param: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(RequestError, match=message) as caught:
        read_recipe(path)
    assert caught.value.param == param
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"gone\.toml cannot be read \(No such file"):
        read_recipe(tmp_path / "gone.toml")


def test_flags_come_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    write_recipe(tmp_path / "r.toml", UNUSUAL)
    recipe = recipe_from(parsed("--recipe", str(tmp_path / "r.toml"), "--layers", "2", "--window", "32", "--seed", "0"))
    assert recipe == replace(
        UNUSUAL, shape=replace(UNUSUAL.shape, layers=2, window=32), loop=replace(UNUSUAL.loop, seed=0)
    )


def test_a_flag_for_each_field_gives_that_field() -> None:
    words: list[str] = []
    for field in FIELDS:
        value, flag = field.of(UNUSUAL), f"--{field.key.replace('_', '-')}"
        if field.type == "switch":
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            text = field.empty if value is None else value
            words += [flag, ",".join(map(str, text)) if isinstance(text, tuple) else str(text)]
    assert recipe_from(parsed(*words)) == UNUSUAL


def test_a_given_base_stands_for_the_defaults() -> None:
    assert recipe_from(parsed("--layers", "1"), UNUSUAL).shape == replace(UNUSUAL.shape, layers=1)


@pytest.mark.parametrize(
    ("words", "param"),
    [(["--taps", "1,x"], "taps"), (["--window", "2,3"], "window"), (["--mask-token", "-1"], "mask_token")],
)
def test_a_flag_that_does_not_parse_is_refused_by_name(words: list[str], param: str) -> None:
    with pytest.raises(RequestError, match=param) as caught:
        recipe_from(parsed(*words))
    assert caught.value.param == param


def test_the_embedded_recipe_is_the_embedded_drafters() -> None:
    recipe = read_recipe(recipe_path("demo"))
    check(recipe)
    shape = recipe.shape
    assert (shape.layers, shape.block_size, shape.taps, shape.mask_token) == (4, 8, (1, 8, 15, 22, 28), 16)
