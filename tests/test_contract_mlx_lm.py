"""What the runtime relies on in mlx and mlx-lm, said where a new release would break it.

Every failure begins with "mlx-lm no longer …" (or "mlx no longer …"): the promise that changed, not our code.
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm import sample_utils, tokenizer_utils, utils
from mlx_lm.models import rope_utils
from mlx_lm.models.activations import swiglu
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)
from mlx_lm.models.llama import Model, ModelArgs
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

HEADS, HEAD_DIM = 2, 64
WINDOW = 8


def rows(count: int, start: int = 0) -> mx.array:
    """Keys that carry their position in every element: (1, HEADS, count, HEAD_DIM)."""
    positions = mx.arange(start, start + count, dtype=mx.float32)
    return mx.broadcast_to(positions[None, None, :, None], (1, HEADS, count, HEAD_DIM))


def positions_of(keys: mx.array) -> list[int]:
    return [int(position) for position in keys[0, 0, :, 0].tolist()]


# Caches


def test_kv_cache_state_is_keys_values_offset() -> None:
    cache = KVCache()
    cache.update_and_fetch(rows(3), rows(3))
    message = "mlx-lm no longer keeps KVCache.state as (keys, values, offset)"
    assert isinstance(cache.state, tuple), message
    keys, values, offset = cache.state
    assert positions_of(keys)[:3] == [0, 1, 2], message
    assert keys.shape == values.shape, message
    assert offset == cache.offset == 3, message


def test_kv_cache_trims_from_the_end_and_overwrites() -> None:
    cache = KVCache()
    cache.update_and_fetch(rows(5), rows(5))
    message = "mlx-lm no longer lets KVCache.trim(n) drop the last n rows and return n"
    assert cache.is_trimmable(), message
    assert cache.trim(2) == 2, message
    keys, _ = cache.update_and_fetch(rows(1, start=9), rows(1, start=9))
    assert positions_of(keys) == [0, 1, 2, 9], message


def test_quantized_kv_cache_state_is_keys_values_offset_group_bits() -> None:
    cache = QuantizedKVCache(group_size=64, bits=8)
    cache.update_and_fetch(rows(3), rows(3))
    message = "mlx-lm no longer keeps QuantizedKVCache.state as (keys, values, offset, group_size, bits)"
    assert isinstance(cache.state, tuple), message
    keys, values, *rest = cache.state
    assert rest == [3, 64, 8], message
    assert len(keys) == len(values) == 3, f"{message}, keys being (packed, scales, biases)"
    assert cache.is_trimmable(), "mlx-lm no longer trims QuantizedKVCache"
    assert cache.trim(1) == 1, "mlx-lm no longer trims QuantizedKVCache"
    assert cache.offset == 2, "mlx-lm no longer trims QuantizedKVCache"


def test_rotating_cache_state_is_keys_values_offset_keep_size_index() -> None:
    cache = RotatingKVCache(max_size=WINDOW)
    cache.update_and_fetch(rows(3), rows(3))
    message = "mlx-lm no longer keeps RotatingKVCache.state as (keys, values, offset, keep, max_size, index)"
    assert isinstance(cache.state, tuple), message
    keys, values, *rest = cache.state
    assert positions_of(keys) == [0, 1, 2], message
    assert keys.shape == values.shape, message
    assert rest == [3, 0, WINDOW, 3], message


def test_rotating_cache_keeps_the_window_before_each_row_of_a_block() -> None:
    cache = RotatingKVCache(max_size=WINDOW)
    cache.update_and_fetch(rows(10), rows(10))
    keys, _ = cache.update_and_fetch(rows(3, start=10), rows(3, start=10))
    expected = list(range(3, 13))
    assert positions_of(keys) == expected, (
        "mlx-lm no longer returns, for a block, the window - 1 rows before it in temporal order"
    )


def test_rotating_cache_writes_single_rows_in_place() -> None:
    cache = RotatingKVCache(max_size=WINDOW)
    for position in range(WINDOW + 2):
        keys, _ = cache.update_and_fetch(rows(1, start=position), rows(1, start=position))
    assert positions_of(keys) == [8, 9, 2, 3, 4, 5, 6, 7], (
        "mlx-lm no longer writes a single row of a full RotatingKVCache over its oldest one"
    )
    assert not cache.is_trimmable(), "mlx-lm now trims a RotatingKVCache that has wrapped: rollback may use it"


def test_arrays_cache_state_begins_with_its_list() -> None:
    cache = ArraysCache(2)
    cache[0], cache[1] = mx.zeros((1, 3)), mx.ones((1, 4))
    message = "mlx-lm no longer keeps ArraysCache.state as (list of arrays, left_padding, lengths)"
    arrays, left_padding, lengths = cache.state
    assert [array.shape for array in arrays] == [(1, 3), (1, 4)], message
    assert left_padding is lengths is None, message
    assert cache.cache is arrays, message
    assert not cache.is_trimmable(), "mlx-lm now trims ArraysCache: rollback may use it"


def test_cache_list_state_is_a_state_and_a_class_name_for_each_part() -> None:
    cache = CacheList(KVCache(), RotatingKVCache(max_size=WINDOW))
    for part in cache.caches:
        part.update_and_fetch(rows(2), rows(2))
    message = "mlx-lm no longer keeps CacheList.state as [(state, class name) of each of its caches]"
    assert [name for _, name in cache.state] == ["KVCache", "RotatingKVCache"], message
    assert [state[2] for state, _ in cache.state] == [2, 2], message
    assert cache[1] is cache.caches[1], message


@pytest.mark.parametrize(
    "make",
    [
        KVCache,
        lambda: RotatingKVCache(max_size=WINDOW),
        lambda: QuantizedKVCache(group_size=64, bits=8),
    ],
    ids=["KVCache", "RotatingKVCache", "QuantizedKVCache"],
)
def test_a_cache_set_to_a_state_goes_on_from_it(make: Callable[[], Any]) -> None:
    cache = make()
    cache.update_and_fetch(rows(3), rows(3))
    copy = type(cache).from_state(cache.state)
    expected, found = (each.update_and_fetch(rows(2, start=3), rows(2, start=3)) for each in (cache, copy))
    pairs = zip(tree_flatten(expected), tree_flatten(found), strict=True)
    assert all(mx.array_equal(a, b) for (_, a), (_, b) in pairs), (
        f"mlx-lm no longer rebuilds a {type(cache).__name__} from its state"
    )
    assert copy.offset == cache.offset == 5


def test_slice_assignment_leaves_other_references_alone() -> None:
    kept = array = mx.zeros((4,))
    array = kept[:]
    array[1:3] = 7
    assert kept.tolist() == [0, 0, 0, 0], "mlx no longer gives x[:] a value of its own: snapshots would change"


# Models


def tiny_llama() -> Model:
    return Model(
        ModelArgs(
            model_type="llama",
            hidden_size=16,
            num_hidden_layers=2,
            intermediate_size=32,
            num_attention_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=11,
        )
    )


def test_make_prompt_cache_gives_one_cache_for_each_layer() -> None:
    model = tiny_llama()
    message = "mlx-lm's make_prompt_cache no longer gives one fresh KVCache for each layer of a plain model"
    assert [type(cache) for cache in make_prompt_cache(model)] == [KVCache, KVCache], message
    assert len(model.layers) == 2, "mlx-lm's models no longer have .layers"


def test_a_models_own_make_cache_wins() -> None:
    model = tiny_llama()
    caches = [RotatingKVCache(max_size=WINDOW), KVCache()]
    object.__setattr__(model, "make_cache", lambda: caches)
    assert make_prompt_cache(model) is caches, "mlx-lm's make_prompt_cache no longer asks the model's make_cache"


def test_a_model_is_called_with_ids_and_its_caches() -> None:
    model = tiny_llama()
    caches = make_prompt_cache(model)
    logits = model(mx.array([[1, 2, 3]]), cache=caches)
    assert logits.shape == (1, 3, 11), "mlx-lm's models no longer map ids (B, L) to logits (B, L, V)"
    assert [cache.offset for cache in caches] == [3, 3], "mlx-lm's models no longer fill the caches given"


def test_rope_is_built_from_a_config_and_takes_an_offset() -> None:
    promise = ["dims", "base", "traditional", "scaling_config", "max_position_embeddings"]
    assert list(inspect.signature(rope_utils.initialize_rope).parameters)[:5] == promise, (
        f"mlx-lm's initialize_rope no longer takes {promise} in this order"
    )
    rope = rope_utils.initialize_rope(HEAD_DIM, 10000.0, False, {"rope_type": "default"}, 4096)
    x = rows(3, start=1)
    shifted = rope(x, offset=5)
    expected = mx.fast.rope(x, HEAD_DIM, traditional=False, base=10000.0, scale=1.0, offset=5)
    assert mx.array_equal(shifted, expected), "mlx-lm's default RoPE is no longer mx.fast.rope at the offset"


# Sampling


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (sample_utils.apply_top_p, ["logprobs", "top_p"]),
        (sample_utils.apply_min_p, ["logprobs", "min_p", "min_tokens_to_keep"]),
        (sample_utils.apply_top_k, ["logprobs", "top_k"]),
        (sample_utils.make_sampler, ["temp", "top_p", "min_p", "top_k"]),
        (
            sample_utils.make_logits_processors,
            [
                "logit_bias",
                "repetition_penalty",
                "repetition_context_size",
                "presence_penalty",
                "presence_context_size",
                "frequency_penalty",
                "frequency_context_size",
            ],
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_sampling_functions_keep_their_parameters(function: Callable[..., Any], parameters: list[str]) -> None:
    found = list(inspect.signature(function).parameters)
    missing = [name for name in parameters if name not in found]
    assert not missing, f"mlx-lm's {function.__name__} no longer takes {missing}, but {found}"


def kept_by(filtered: mx.array) -> list[list[int]]:
    """The ids that a filter left, for each row."""
    return [[i for i, value in enumerate(row) if value > -float("inf")] for row in filtered.tolist()]


def test_filters_work_on_every_row_of_log_probabilities() -> None:
    probabilities = mx.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]])
    logprobs = mx.log(probabilities)
    message = "mlx-lm's {} no longer masks with -inf, row by row"
    top_p = kept_by(sample_utils.apply_top_p(logprobs, 0.7))
    assert top_p == [[0, 1], [2, 3]], message.format("apply_top_p")
    min_p = kept_by(sample_utils.apply_min_p(logprobs, 0.25))
    assert min_p == [[0, 1, 2], [1, 2, 3]], message.format("apply_min_p")
    top_k = kept_by(sample_utils.apply_top_k(logprobs, 1))
    assert top_k == [[0], [3]], message.format("apply_top_k")


def test_penalties_are_applied_in_order_to_the_ids_given() -> None:
    processors = sample_utils.make_logits_processors(
        logit_bias={3: 1.0},
        repetition_penalty=2.0,
        presence_penalty=0.5,
        frequency_penalty=0.25,
    )
    tokens, logits = mx.array([1, 1, 2]), mx.array([[4.0, 4.0, -4.0, 4.0]])
    for processor in processors:
        logits = processor(tokens, logits)
    # bias; then / 2 for positive and * 2 for negative logits; - 0.5 once; - 0.25 for each occurrence
    assert logits.tolist() == [[4.0, 2.0 - 0.5 - 0.5, -8.0 - 0.5 - 0.25, 5.0]], (
        "mlx-lm's logits processors no longer are: bias, repetition, presence, frequency, as (tokens, logits)"
    )


# Tokenizers and loading


@pytest.fixture
def word_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<end>": 1, "hello": 2, "world": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<end>",
        unk_token="<unk>",
        chat_template="{% for m in messages %}{{ m.content }} {% endfor %}",
    )


def test_the_tokenizer_wrapper_keeps_its_attributes(word_tokenizer: PreTrainedTokenizerFast) -> None:
    wrapper = tokenizer_utils.TokenizerWrapper(word_tokenizer, eos_token_ids=[3])
    message = "mlx-lm's TokenizerWrapper no longer {}"
    assert wrapper.eos_token_ids == {1, 3}, message.format("gathers eos_token_ids as a set of ids")
    assert wrapper.encode("hello world") == [2, 3], message.format("forwards encode")
    assert wrapper.decode([2, 3]) == "hello world", message.format("forwards decode")
    assert wrapper.has_chat_template, message.format("has has_chat_template")
    assert not wrapper.has_thinking, message.format("has has_thinking")
    for name in ("think_start", "think_end", "think_start_id", "think_end_id", "has_tool_calling"):
        assert hasattr(wrapper, name), message.format(f"has {name}")
    messages = [{"role": "user", "content": "hello"}]
    text = wrapper.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "hello ", message.format("renders the chat template to text")


def test_detokenizers_are_fresh_and_stream_segments(word_tokenizer: PreTrainedTokenizerFast) -> None:
    wrapper = tokenizer_utils.TokenizerWrapper(word_tokenizer)
    first, second = wrapper.detokenizer, wrapper.detokenizer
    message = "mlx-lm's streaming detokenizer no longer {}"
    for token in (2, 3):
        first.add_token(token)
    first.finalize()
    assert first.text == "hello world", message.format("has add_token, finalize and text")
    assert first.last_segment == "hello world", message.format("gives what is new in last_segment")
    assert second.text == "", message.format("is a fresh one at each access")


def test_loading_functions_keep_their_parameters() -> None:
    import mlx_lm

    promises: dict[Callable[..., Any], list[str]] = {
        mlx_lm.load: ["path_or_hf_repo", "tokenizer_config", "model_config", "lazy", "trust_remote_code"],
        utils.load_model: ["model_path", "lazy", "strict", "model_config", "get_model_classes"],
        utils.load_tokenizer: ["model_path", "tokenizer_config_extra", "eos_token_ids"],
        utils.load_config: ["model_path"],
        utils.infer_quant_config: ["path", "module", "weights"],
    }
    for function, parameters in promises.items():
        found = list(inspect.signature(function).parameters)
        missing = [name for name in parameters if name not in found]
        assert not missing, f"mlx-lm's {function.__name__} no longer takes {missing}, but {found}"


def test_load_model_and_tokenizer_read_a_folder(tmp_path: Path, word_tokenizer: PreTrainedTokenizerFast) -> None:
    model = tiny_llama()
    mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    config = {key: value for key, value in vars(model.args).items() if value is not None}
    config["eos_token_id"] = [1, 3]
    (tmp_path / "config.json").write_text(json.dumps(config))
    word_tokenizer.save_pretrained(tmp_path)

    loaded, read = utils.load_model(tmp_path)
    assert isinstance(loaded, nn.Module), "mlx-lm's load_model no longer returns (model, config)"
    assert read["model_type"] == "llama", "mlx-lm's load_model no longer returns (model, config)"
    ids = mx.array([[1, 2]])
    assert mx.array_equal(loaded(ids), model(ids)), "mlx-lm's load_model no longer reads model.safetensors"
    tokenizer = utils.load_tokenizer(tmp_path, eos_token_ids=read["eos_token_id"])
    assert isinstance(tokenizer, tokenizer_utils.TokenizerWrapper), "mlx-lm's load_tokenizer no longer wraps"
    assert tokenizer.eos_token_ids == {1, 3}, "mlx-lm's load_tokenizer no longer takes eos_token_ids"


@pytest.mark.skipif(sys.platform != "linux", reason="only there is a compiler called")
def test_compiled_functions_run_without_a_compiler(tmp_path: Path) -> None:
    code = (
        "import mlx.core as mx; from mlx_lm.models.activations import swiglu; "
        "print(swiglu(mx.ones((2, 3)), mx.ones((2, 3))).sum().item())"
    )
    bare = {**os.environ, "PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=bare)
    assert done.returncode == 0, f"mlx no longer runs mx.compile functions without g++: {done.stderr}"
    assert float(done.stdout) == pytest.approx(swiglu(mx.ones((2, 3)), mx.ones((2, 3))).sum().item())
    assert not list(tmp_path.rglob("*.so")), "the compiler was found: the test does not test what it says"
