"""A drafter's config for a target of any family, and the published layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from dflash2_mlx.drafter.config import FULL, SLIDING, DrafterConfig, parse_config
from dflash2_mlx.drafter.model import DraftModel
from dflash2_mlx.errors import RequestError
from dflash2_mlx.pairs import TargetFacts, misfits
from dflash2_mlx.target.adapter import Target
from dflash2_mlx.train.recipe.values import Shape
from dflash2_mlx.train.start.design import default_taps, design, differences, published_config
from dflash2_mlx.train.start.mask_token import choose_mask_token
from tests import tiny
from tests.tiny_families import HIDDEN, NAMED, OTHERS, VOCAB, gemma3_text, llama
from tests.tiny_tokenizer import tokenizer, tokenizer_wrapper

FAMILIES = {**NAMED, **OTHERS}
FACTS = TargetFacts(HIDDEN, 4, VOCAB)
SMALL = Shape(layers=3, window=16, selector_rank=8, mask_token=3)
# As SmolLM2-135M-Instruct says, the target of the embedded pair.
SMOL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_theta": 100000.0,
    "rope_scaling": None,
    "vocab_size": 49152,
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gets_a_drafter_that_fits_and_scales_logits_as_the_target_does(name: str) -> None:
    model = tiny.build(name)
    target = Target(model).tapped([len(Target(model).layers) - 1])
    facts = TargetFacts(target.hidden_size, target.num_layers, target.vocab_size)
    config = design(SMALL, FAMILIES[name](16), facts)
    assert misfits(config, facts) == []
    assert parse_config(published_config(config)) == config
    logits, (last,) = target.with_taps(mx.array([tiny.random_prompt(7)]), target.new_cache())
    assert target.final_norm is not None
    ours = DraftModel(config).scale_logits(target.head(target.final_norm(last)))
    np.testing.assert_allclose(np.array(ours), np.array(logits), rtol=2e-4, atol=2e-4)


def test_the_embedded_pairs_drafter() -> None:
    shape = Shape(layers=4, window=128, full_layers=1, taps=(1, 8, 15, 22, 28), selector_rank=64, mask_token=16)
    assert design(shape, SMOL, TargetFacts(576, 30, 49152)) == DrafterConfig(
        hidden_size=576,
        num_hidden_layers=4,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        intermediate_size=1536,
        vocab_size=49152,
        rms_norm_eps=1e-05,
        rope_theta=100000.0,
        rope_scaling=None,
        max_position_embeddings=None,
        block_size=8,
        target_layer_ids=(1, 8, 15, 22, 28),
        num_target_layers=30,
        mask_token_id=16,
        layer_types=(SLIDING, SLIDING, SLIDING, FULL),
        sliding_window=128,
        is_causal=False,
        output_multiplier=1.0,
        final_logit_softcapping=None,
        input_embedding_scale=1.0,
        conv_kernel_size=2,
        conv_group_size=16,
        selector_rank=64,
        selector_top_k=16,
    )


@pytest.mark.parametrize(
    ("layers", "taps"),
    [(64, (5, 19, 33, 47, 61)), (12, (1, 3, 5, 7, 9)), (4, (1, 2, 3)), (2, (1,)), (1, (0,))],
)
def test_default_taps_are_spread_as_published(layers: int, taps: tuple[int, ...]) -> None:
    assert default_taps(layers) == taps


@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("selector", [False, True])
@pytest.mark.parametrize(("window", "full_layers"), [(None, 0), (16, 3), (16, 1)])
def test_every_shape_is_read_back_as_it_was_written(
    convolution: bool, selector: bool, window: int | None, full_layers: int
) -> None:
    shape = replace(SMALL, convolution=convolution, selector=selector, window=window, full_layers=full_layers)
    config = design(shape, llama(16), FACTS)
    raw = published_config(config, mx.bfloat16)
    assert parse_config(raw) == config
    assert raw["torch_dtype"] == "bfloat16"
    assert raw["architectures"] == ["DFlash2DraftModel" if convolution or selector else "DFlashDraftModel"]
    assert (config.has_conv, config.has_selector) == (convolution, selector)
    sliding = 0 if window is None else 3 - full_layers
    assert config.layer_types == (SLIDING,) * sliding + (FULL,) * (3 - sliding)


def test_a_scaled_rope_stays_scaled_and_without_what_the_drafter_does_not_do() -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling = {**rope, "original_max_position_embeddings": 8192, "partial_rotary_factor": 0.5, "rope_theta": 7.0}
    config = design(SMALL, {**llama(16), "rope_scaling": scaling}, FACTS)
    assert config.rope_scaling == {**rope, "original_max_position_embeddings": 8192}
    assert (config.rope_theta, config.max_position_embeddings) == (5000.0, 4096)
    unknown = {**llama(16), "rope_scaling": {"rope_type": "mrope", "mrope_section": [1, 2, 3]}}
    assert design(SMALL, unknown, FACTS).rope_scaling is None


def test_an_embedding_that_is_scaled_inside_the_family() -> None:
    assert design(SMALL, gemma3_text(16), FACTS).input_embedding_scale == pytest.approx(HIDDEN**0.5)
    granite = {**llama(16), "model_type": "granite", "embedding_multiplier": 12.0, "logits_scaling": 8.0}
    config = design(SMALL, granite, FACTS)
    assert (config.input_embedding_scale, config.output_multiplier) == (12.0, 0.125)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layers", 0),
        ("block_size", 1),
        ("window", 1),
        ("full_layers", 4),
        ("taps", ()),
        ("taps", (1, 4)),
        ("taps", (2, 2)),
        ("intermediate_size", 0),
        ("conv_group_size", 5),
        ("selector_rank", 0),
        ("selector_top_k", VOCAB + 1),
        ("mask_token", VOCAB),
    ],
)
def test_a_shape_that_cannot_be_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError) as refused:
        design(replace(SMALL, **{field: value}), llama(16), FACTS)
    assert refused.value.param == field


def test_differences_name_the_fields() -> None:
    config = design(SMALL, llama(16), FACTS)
    assert differences(config, config) == []
    assert differences(config, replace(config, block_size=5)) == ["block_size: 8 and 5"]


class _Names:
    """A tokenizer of some added tokens, from id 100 on."""

    chat_template = "{{ '<|im_start|>' }}<mask_of_the_template>"
    eos_token_id = 100

    def __init__(self, *names: str) -> None:
        self.added_tokens_decoder = {100 + i: name for i, name in enumerate(names)}

    def get_vocab(self) -> dict[str, int]:
        return {name: i for i, name in self.added_tokens_decoder.items()}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (("<|end|>", "<|im_start|>", "<mask_of_the_template>", "<|fim_pad|>", "<|reserved_3|>"), 104),
        (("<|mask_as_eos|>", "<|fim_prefix|>", "<|fim_pad|>"), 102),
        (("<|end|>", "<jupyter_start>", "<empty_output>"), 102),
        (("<|end|>", "<|user|>"), 102),  # past the tokenizer's own
    ],
)
def test_the_mask_token_is_one_that_no_text_holds(names: tuple[str, ...], chosen: int) -> None:
    assert choose_mask_token(_Names(*names), 103 if len(names) == 2 else 200) == chosen


def test_without_a_free_token_one_has_to_be_named() -> None:
    full = max(tokenizer().get_vocab().values()) + 1
    assert choose_mask_token(tokenizer_wrapper(), full + 1) == full
    for given in (tokenizer_wrapper(), None):
        with pytest.raises(RequestError, match="--mask-token") as refused:
            choose_mask_token(given, full)
        assert refused.value.param == "mask_token"
