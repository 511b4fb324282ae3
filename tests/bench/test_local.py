"""A real tiny pair as a backend: what it is given, what it tells, and a bench of it with itself. Nothing is timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from dflash2_mlx.bench import local as local_module
from dflash2_mlx.bench.cells import cells
from dflash2_mlx.bench.local import LocalPair, parameters
from dflash2_mlx.bench.model import Arm, BenchPrompt
from dflash2_mlx.bench.notes import notes
from dflash2_mlx.bench.run import run
from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from dflash2_server.library.packing import describe
from tests import tiny
from tests.bench.benching import BLOCK, PLAIN, plan, prompts
from tests.chat_doubles import make_tokenizer
from tests.tiny_drafters import tiny_drafter_config, write_drafter
from tests.tiny_families import llama
from tests.tiny_tokenizer import tokenizer_wrapper

AUTOMATIC = Arm(name="automatic block")
ADAPTIVE = Arm(name="adaptive", verify_mode="adaptive")
PROMPT = prompts(1)[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target of 300 tokens in float32 with a drafter of block size 6, and a tokenizer without chat template."""
    config = {**llama(64), "vocab_size": 300}
    model = tiny.build_config(config)
    folder = write_drafter(tmp_path_factory.mktemp("drafter"), tiny_drafter_config(model))
    drafter = load_drafter(folder, dtype="float32")
    return Pair(
        Target(model),
        drafter,
        tokenizer_wrapper(),
        drafter_name="tiny-drafter",
        config={**config, "max_position_embeddings": 900},
    )


@pytest.fixture
def local(pair: Pair) -> LocalPair:
    return LocalPair(pair)


def take(local: LocalPair, arm: Arm, prompt: BenchPrompt = PROMPT, **options: Any) -> Any:
    return local.sample(arm, prompt, **{"max_tokens": 24, "seed": 3, **options})


def test_a_sample_tells_what_was_in_force(local: LocalPair) -> None:
    plain, block = take(local, PLAIN), take(local, BLOCK)
    assert (plain.engine, plain.block_size, plain.tokens_per_cycle) == ("plain", 1, 1.0)
    assert (block.engine, block.block_size, len(block.acceptance_by_position)) == ("dflash2", 5, 4)
    assert len(block.proposed_by_position) == 4
    assert block.proposed_by_position[0] == sum(block.cycles_by_width[1:])
    shares = [a / p for a, p in zip(block.accepted_by_position, block.proposed_by_position, strict=True)]
    assert shares == list(block.acceptance_by_position)
    assert block.tokens_per_cycle is not None
    assert block.tokens_per_cycle >= 1
    for sample in (plain, block):
        assert (sample.prompt, sample.kind, sample.depth) == ("p0", "code", 0)
        assert sample.generation_tokens == 24
        assert sample.finish_reason == "length"
        assert sample.prompt_tokens == len(local.prompt_ids(PROMPT))
        assert sample.prompt_seconds > 0
        assert sample.generation_seconds > 0
    assert plain.digest == block.digest
    assert plain.digest != take(local, PLAIN, prompts(2)[1]).digest


def test_every_sample_is_cold(local: LocalPair, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = []
    original = local_module.stream_generate

    def spy(*args: Any, **options: Any) -> Iterator[Any]:
        assert "state" not in options
        for step in original(*args, **options):
            cached.append(step.stats.cached_tokens)
            yield step

    monkeypatch.setattr(local_module, "stream_generate", spy)
    for _ in range(2):
        take(local, BLOCK)
    assert set(cached) == {0}


def test_the_seed_decides_what_is_drawn(local: LocalPair) -> None:
    warm = replace(PLAIN, temperature=1.0)
    assert take(local, warm, seed=1).digest == take(local, warm, seed=1).digest
    assert take(local, warm, seed=1).digest != take(local, warm, seed=2).digest


def test_a_seed_does_not_hold_a_width_that_is_to_be_chosen() -> None:
    hot = [replace(arm, temperature=1.0) for arm in (PLAIN, BLOCK, AUTOMATIC, ADAPTIVE)]
    assert [parameters(arm, 8, seed=5)["seed"] for arm in hot] == [5, 5, None, None]
    assert [parameters(arm, 8, seed=5)["seed"] for arm in (PLAIN, BLOCK, AUTOMATIC, ADAPTIVE)] == [5] * 4


def test_prompts_go_through_the_chat_template_or_as_they_are(pair: Pair) -> None:
    tokenizer = make_tokenizer()
    templated = LocalPair(Pair(pair.target, tokenizer=tokenizer))
    assert tokenizer.decode(templated.prompt_ids(PROMPT)).startswith("<|im_start|>user\nquestion 0<|im_end|>")
    assert pair.tokenizer is not None
    assert pair.tokenizer.decode(LocalPair(pair).prompt_ids(PROMPT)) == "question 0"
    assert "used" in templated.facts["chat template"]
    assert "as they are" in LocalPair(pair).facts["chat template"]


def test_a_depth_is_reached_by_text_before_the_question(local: LocalPair, pair: Pair) -> None:
    deep = replace(PROMPT, depth=400)
    ids = local.prompt_ids(deep)
    assert 380 <= len(ids) <= 404
    assert pair.tokenizer is not None
    assert pair.tokenizer.decode(ids).endswith("\n\nquestion 0")
    assert local.prompt_ids(deep) is ids
    assert take(local, PLAIN, deep).note == ""
    shallow = replace(PROMPT, depth=3)
    assert local.prompt_ids(shallow) == local.prompt_ids(PROMPT)
    assert take(local, PLAIN, shallow).note == "longer by itself than depth 3"


def test_what_the_pair_cannot_do_is_refused_by_the_arms_name(local: LocalPair, pair: Pair) -> None:
    for arm in (PLAIN, BLOCK, AUTOMATIC, ADAPTIVE):
        local.check(arm, PROMPT, 24)
    with pytest.raises(RequestError, match="arm 'wide': block_size is 9"):
        local.check(Arm(name="wide", block_size=9), PROMPT, 24)
    with pytest.raises(RequestError, match="depth 880 and max_tokens 24 make 904 tokens"):
        local.check(PLAIN, replace(PROMPT, depth=880), 24)
    with pytest.raises(RequestError, match="there is no drafter"):
        LocalPair(Pair(pair.target, tokenizer=pair.tokenizer)).check(BLOCK, PROMPT, 24)
    with pytest.raises(RequestError, match="no tokenizer"):
        LocalPair(Pair(pair.target))


def test_a_pair_without_drafter_says_that_it_ran_plain(pair: Pair) -> None:
    bare = LocalPair(Pair(pair.target, tokenizer=pair.tokenizer, fallback_reason="the drafter x failed"))
    result = run(plan(PLAIN, AUTOMATIC, rounds=1, max_tokens=4), {"pair": bare})
    assert "automatic block asked for speculation and ran plain in 4 of 4 samples." in notes(result)
    assert "4 samples: no drafter: the drafter x failed." in notes(result)
    assert bare.facts["drafter"] == "none (the drafter x failed)"


def test_it_is_cancelled_within_an_answer(pair: Pair) -> None:
    asked = iter([False, False, True, True])
    broken = take(LocalPair(pair, cancelled=lambda: next(asked, True)), BLOCK, max_tokens=200)
    assert broken.finish_reason == "cancelled"
    assert broken.generation_tokens < 30


@pytest.mark.parametrize(
    ("packing", "told"),
    [
        (None, "off"),
        ({"bits": 4, "group_size": 64}, "4-bit, group 64"),
        ({"bits": 4, "group_size": 32, "lm_head": {"bits": 8, "group_size": 32}}, "mixed 4/8-bit, group 32"),
        ({"bits": 4, "group_size": 32, "mode": "mxfp4", "embed": False}, "4-bit mxfp4, group 32"),
    ],
)
def test_a_targets_quantisation_is_told_as_the_library_does(pair: Pair, packing: Any, told: str) -> None:
    config = {**pair.config, "quantization": packing} if packing else pair.config
    packed = Pair(pair.target, tokenizer=pair.tokenizer, config=config)
    assert LocalPair(packed).facts["target quantisation"] == told
    assert (describe(config) or "off") == told


def test_a_result_says_what_the_pair_is(local: LocalPair) -> None:
    assert local.facts == {
        "target": "target",
        "target quantisation": "off",
        "target compute type": "float32",
        "drafter": "tiny-drafter",
        "chat template": "none: prompts are given as they are",
        "drafter quantisation": "off",
        "drafter's block size": "6",
        "engine": "dflash2",
    }


def test_a_whole_run_in_float32_gives_one_text_in_all_arms(local: LocalPair) -> None:
    again = replace(PLAIN, name="plain again")
    arms = (PLAIN, again, replace(BLOCK, name="block 3", block_size=3), AUTOMATIC, ADAPTIVE)
    result = run(plan(*arms, rounds=1, max_tokens=12, prompts=tuple(prompts(2))), {"pair": local})
    assert len(result.samples) == 10
    for cell in cells(result, "all")[1:]:
        assert (cell.same_texts, cell.compared_texts) == (2, 2), cell.arm
    chosen = [sample.cycles_by_width for sample in result.samples if sample.arm == "adaptive"]
    assert all(sum(widths) > 0 for widths in chosen)
    assert not any("another greedy text" in note for note in notes(result))


def test_a_tiny_pair_compared_with_itself_shows_no_difference(local: LocalPair) -> None:
    """With a clock that counts the passes of the target: the work is the same, so the ratio is one."""
    again = replace(BLOCK, name="block 5 again")
    result = run(plan(PLAIN, BLOCK, again, rounds=1, max_tokens=10, prompts=tuple(prompts(3))), {"pair": local})
    counted = [
        replace(s, generation_seconds=(s.generation_tokens - 1) / (s.tokens_per_cycle or 1.0)) for s in result.samples
    ]
    by_name = {cell.arm: cell for cell in cells(replace(result, samples=counted), "all")}
    assert by_name["block 5"].ratio == by_name["block 5 again"].ratio
    assert by_name["block 5"].acceptance == by_name["block 5 again"].acceptance
