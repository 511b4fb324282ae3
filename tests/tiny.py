"""Tiny random mlx-lm targets (float32, seeded) and the plain decoding that every stream is compared with."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache

from tests.tiny_families import NAMED, OTHERS, VOCAB, Config

# scale norms around 0 instead of 1: out = norm(x) * (1 + weight)
_ZERO_CENTRED = {"muse_glimmer": ("layernorm.weight",), "gemma3_text": ("norm.weight",)}


def build(name: str, window: int = 16, seed: int = 0) -> nn.Module:
    """A random float32 target of a family; its greedy text is varied (see `test_tiny`)."""
    config = {**NAMED, **OTHERS}[name](window)
    return build_config(config, seed=seed)


def build_config(config: Config, *, seed: int = 0) -> nn.Module:
    """A random float32 mlx-lm model for any config dict that names its `model_type`."""
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(config))
    randomise(model, seed, zero_centred=_ZERO_CENTRED.get(config["model_type"], ()))
    return model.eval()


FAMILIES: dict[str, Callable[..., nn.Module]] = {name: partial(build, name) for name in {**NAMED, **OTHERS}}
NAMED_FAMILIES: tuple[str, ...] = tuple(NAMED)
OTHER_FAMILIES: tuple[str, ...] = tuple(OTHERS)


def randomise(model: nn.Module, seed: int, *, zero_centred: tuple[str, ...] = ()) -> None:
    """Draws every parameter anew, by its own key, so that one more parameter changes no other."""
    drawn = []
    for path, value in tree_flatten(model.parameters()):
        key = mx.random.key(seed * 1_000_003 + zlib.crc32(path.encode()) % 1_000_003)
        drawn.append((path, _draw(path, value, key, bool(zero_centred) and path.endswith(zero_centred))))
    model.update(tree_unflatten(drawn))
    mx.eval(model.parameters())


def _draw(path: str, value: mx.array, key: mx.array, zero_centred: bool) -> mx.array:
    noise = mx.random.normal(value.shape, key=key)
    leaf = path.rsplit(".", 1)[-1]
    if leaf == "A_log":  # decays between exp(-0.02) and exp(-1) a step: states that remember
        return mx.random.uniform(-4.0, 0.0, value.shape, key=key)
    if leaf == "layer_scalar":
        return 0.9 + 0.05 * noise
    if leaf in ("D", "scale", "per_expert_scale"):
        return 1.0 + 0.3 * noise
    if value.ndim == 1:
        one = 1.0 if leaf == "weight" and not zero_centred else 0.0
        return one + 0.3 * noise
    if "embed" in path:
        return 0.1 * noise
    fan_in = value.shape[-1] * (value.shape[-2] if "conv" in path else 1)
    gain = 2.5 if ".layers." in f".{path}" else 1.0
    return noise * (gain / fan_in**0.5)


class UnknownCache(KVCache):  # type: ignore[misc]
    """A cache kind the runtime has never heard of, although it behaves as one it knows."""


def with_unknown_cache(name: str = "llama", seed: int = 0) -> nn.Module:
    """A target whose caches nobody knows how to roll back: to be refused, with the name of the class."""
    model = build(name, seed=seed)

    class Stranger(type(model)):  # type: ignore[misc]
        def make_cache(self) -> list[Any]:
            return [UnknownCache() for _ in self.layers]

    model.__class__ = Stranger
    return model


def text_model(model: nn.Module) -> nn.Module:
    """The module that holds `embed_tokens` and `layers`, at whatever depth."""
    for _, module in model.named_modules():
        if "layers" in module and any(key.startswith("embed") for key in module):
            return module
    raise LookupError(f"{type(model).__name__} has no layers beside an embedding")


def target_sizes(model: nn.Module) -> tuple[int, int, int]:
    """Hidden size, number of layers, vocabulary size."""
    text = text_model(model)
    table = text["embed_tokens"] if "embed_tokens" in text else text["embeddings"]
    vocab, hidden = table.weight.shape
    return hidden, len(text["layers"]), vocab


def random_prompt(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    ids: list[int] = mx.random.randint(0, vocab, (length,), key=mx.random.key(7919 + seed)).tolist()
    return ids


def plain_greedy(model: nn.Module, prompt: Sequence[int], n: int, *, prefill_step_size: int = 64) -> list[int]:
    """What mlx-lm itself decodes: the oracle of every greedy stream."""
    steps = generate_step(mx.array(prompt), model, max_tokens=n, prefill_step_size=prefill_step_size)
    return [int(token) for token, _ in steps]


def single_row_cache(model: nn.Module, tokens: Sequence[int]) -> list[Any]:
    """Caches after `tokens` were fed one row at a time: the state every commit has to arrive at."""
    cache = make_prompt_cache(model)
    for token in tokens:
        mx.eval(model(mx.array([[token]]), cache=cache), [c.state for c in cache])
    return cache


def single_row_logits(model: nn.Module, tokens: Sequence[int], cache: list[Any] | None = None) -> mx.array:
    """Logits of every row, fed one at a time: [len(tokens), V]."""
    cache = make_prompt_cache(model) if cache is None else cache
    rows = []
    for token in tokens:
        rows.append(model(mx.array([[token]]), cache=cache)[0, -1])
        mx.eval(rows[-1], [c.state for c in cache])
    return mx.stack(rows)
