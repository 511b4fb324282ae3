"""The weights that training starts from: random ones, the target's own layers, or another drafter's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import dequantize_model

from ... import hub
from ...demo.paths import drafter_path
from ...drafter.config import DrafterConfig, parse_config, read_config
from ...drafter.load import checked_model
from ...drafter.model import DraftModel
from ...errors import RequestError
from ...pairs import DEMO
from ...target.adapter import Target
from .codebook import leading_directions, open_gate
from .design import differences, spread
from .target_parts import attention_of, attention_scale, norm_scale, parts_of

WARM, RANDOM = "warm", "random"
# What rows see and how many there are: a drafter that is gone on from learns that anew, its weights stay what they are.
_SEEN = ("is_causal", "sliding_window", "block_size")
_SAMPLE = 64  # tokens on which the sizes of the target's rows are measured

Weights = dict[str, mx.array]


def new_model(
    config: DrafterConfig, target: Target, start: str, seed: int, *, source_layers: Sequence[int] | None = None
) -> tuple[DraftModel, tuple[str, ...]]:
    """A model to be trained, in float32 and evaluated, and notes on what could not start as asked.

    `start`: "random", "warm", or a drafter (folder, Hub id or `demo`) to go on from. A warm one takes over
    `source_layers` of the target, one for each of its own layers (None: see `default_sources`). Raises RequestError
    for other layers than the target has (param source_layers) and for a drafter of another config (param start),
    besides what finding and reading one raises.
    """
    if start not in (WARM, RANDOM):
        return _from_drafter(config, start)
    model = DraftModel(config)
    weights = _random_weights(model, mx.random.key(seed))
    final = None if target.final_norm is None else norm_scale(target.final_norm, config.hidden_size)
    notes: list[str] = []
    if final is None:
        notes.append("the target's final norm was not found: the drafter's starts at one")
    else:  # it belongs to the head, which is the target's
        weights["norm.weight"] = final
    if start == WARM:
        sources = default_sources(config, target) if source_layers is None else _checked(source_layers, config, target)
        notes += _warm(weights, model, target, sources, mx.random.key(seed + 1))
    model.update(tree_unflatten(list(weights.items())))
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model, tuple(notes)


def default_sources(config: DrafterConfig, target: Target) -> list[int]:
    """Target layers to start from, one for each drafter layer: the last ones, which write for the head.

    Only layers whose attention fits are taken, where there are such. On the demo target, 55 steps of 4 conversations
    from its last four came to a cross-entropy of 6.35, from four spread over its depth to 6.94 (2026-11-30).
    """
    shapes = _layer_shapes(DraftModel(config))
    layers = [i for i, layer in enumerate(target.layers) if attention_of(layer) is not None]
    # The shapes alone: nothing is computed.
    names = [name for name in shapes if "self_attn" in name and name.endswith("_proj.weight")]
    fitting = [i for i in layers if set(names) <= set(parts_of(target.layers[i], shapes))]
    places = fitting or layers or list(range(target.num_layers))
    count = config.num_hidden_layers
    return places[-count:] if count <= len(places) else [places[i] for i in spread(0, len(places) - 1, count)]


def _checked(sources: Sequence[int], config: DrafterConfig, target: Target) -> list[int]:
    if len(sources) != config.num_hidden_layers or any(not 0 <= i < target.num_layers for i in sources):
        raise RequestError(
            f"source layers {','.join(map(str, sources))}: name {config.num_hidden_layers} of the target's layers, "
            f"each 0 to {target.num_layers - 1}",
            param="source_layers",
        )
    return list(sources)


def _random_weights(model: DraftModel, key: mx.array) -> Weights:
    """Every matrix keeps the size of what it reads; sublayers add little at first, convolutions, selector nothing."""
    shapes = _shapes(model)
    branches = (2 * len(model.layers)) ** 0.5
    weights = {}
    for (name, shape), own_key in zip(shapes.items(), mx.random.split(key, len(shapes)), strict=True):
        if name.endswith("base_kernel"):
            weights[name] = mx.broadcast_to((mx.arange(shape[1]) == 0)[:, None], shape).astype(mx.float32)
        elif name.endswith(("kernel_projection.weight", "successor_codebook.weight")):
            weights[name] = mx.zeros(shape)
        elif len(shape) == 1:
            weights[name] = mx.ones(shape)
        else:
            fan_in = 1 if "codebook" in name else shape[-1]
            shrink = branches if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            weights[name] = mx.random.normal(shape, key=own_key) / (fan_in**0.5 * shrink)
    return weights


@dataclass(frozen=True)
class _Sample:
    """What the target makes of a few tokens: the mean (n, H) of its taps at one size, the rows (n, H) of its head."""

    factors: list[float]  # of each tap in the mean
    mean: mx.array
    hidden: mx.array


def _warm(weights: Weights, model: DraftModel, target: Target, sources: Sequence[int], key: mx.array) -> list[str]:
    """Put the target's weights in place of random ones; gives the notes."""
    config = model.config
    shapes = _layer_shapes(model)
    found = [parts_of(target.layers[i], shapes) for i in sources]
    sample = _sample(config, target, weights["norm.weight"], key)
    weights["fc.weight"] = mx.concatenate([a * mx.eye(config.hidden_size) for a in sample.factors], axis=1)
    shared = _share_input_norm(found)
    if shared is not None:
        weights["hidden_norm.weight"] = shared
    rows = _normed(sample.mean) * weights["hidden_norm.weight"]
    for parts, i in zip(found, sources, strict=True):
        _size_heads(parts, rows, config.head_dim, attention_scale(target.layers[i], config.head_dim))
    for number, parts in enumerate(found):
        weights |= {f"layers.{number}.{name}": value for name, value in parts.items()}
    if config.has_selector:
        weights |= _selector(config, target, sample.hidden, key)
    return _notes(sources, found, shapes)


def _sample(config: DrafterConfig, target: Target, norm: mx.array, key: mx.array) -> _Sample:
    last = target.num_layers - 1
    tapped = target.tapped(tuple(dict.fromkeys((*config.target_layer_ids, last))))
    ids = mx.random.randint(0, target.vocab_size, (1, _SAMPLE), key=key)
    rows = [row[0].astype(mx.float32) for row in tapped.with_taps(ids, tapped.new_cache())[1]]
    taps = rows[: len(config.target_layer_ids)]
    end = rows[config.target_layer_ids.index(last)] if last in config.target_layer_ids else rows[-1]
    # The middle one: the first tokens' rows are larger by far in many models.
    sizes = [float(mx.sort(mx.sqrt((tap * tap).mean(axis=-1)))[_SAMPLE // 2].item()) or 1.0 for tap in taps]  # type: ignore[arg-type]
    # As large as the taps are: then a learning rate means to `fc` what it means to a random one.
    factors = [sum(sizes) / len(sizes) / size / len(sizes) for size in sizes]
    mean = sum((a * tap for a, tap in zip(factors, taps, strict=True)), mx.zeros_like(end))
    return _Sample(factors, mean, _normed(end) * norm)


def _share_input_norm(found: Sequence[Weights]) -> mx.array | None:
    """One input norm (H,) for all layers, with what each layer's own has besides in its projections.

    A context row goes through `hidden_norm` alone, a block's row through the layer's own norm: with one norm for both
    a layer makes of a context row just the keys and values that the target's layer makes of such a row.
    """
    name = "input_layernorm.weight"
    own = [parts[name] for parts in found if name in parts]
    if not own:
        return None
    shared = mx.maximum(mx.sqrt(sum((w * w for w in own), mx.zeros_like(own[0])) / len(own)), 1e-6)
    for parts in found:
        ratio = parts.get(name, shared) / shared
        for side in ("q", "k", "v"):
            matrix = f"self_attn.{side}_proj.weight"
            if matrix in parts:
                parts[matrix] = parts[matrix] * ratio
        parts[name] = shared
    return shared


def _size_heads(parts: Weights, rows: mx.array, head_dim: int, scale: float) -> None:
    """The norms of queries and keys: the target's, or of the size that the target's queries and keys have without."""
    for side, factor in (("q", scale), ("k", 1.0)):
        matrix, norm = f"self_attn.{side}_proj.weight", f"self_attn.{side}_norm.weight"
        if norm in parts:
            parts[norm] = parts[norm] * factor
        elif matrix in parts:
            turned = rows @ parts[matrix].T
            parts[norm] = mx.full((head_dim,), factor * mx.sqrt((turned * turned).mean()))


def _selector(config: DrafterConfig, target: Target, hidden: mx.array, key: mx.array) -> Weights:
    """Predecessors by the leading directions of the target's embedding, successors zero; a gate that is about one.

    So the scores of pairs start at zero, and their gradient is that of a bigram model.
    """
    codes, noise = mx.random.split(key)
    name = "candidate_selector"
    return {
        f"{name}.predecessor_codebook.weight": leading_directions(target, config.selector_rank, codes),
        f"{name}.hidden_projection.weight": open_gate(hidden, config.selector_rank, noise),
    }


def check_start(config: DrafterConfig, start: str) -> None:
    """Raises what `new_model` would for a drafter to go on from, by its config alone."""
    if start not in (WARM, RANDOM):
        _drafter_of(config, start)


def _drafter_of(config: DrafterConfig, start: str) -> tuple[Path, dict[str, Any]]:
    """The folder and the config.json of the drafter to go on from."""
    folder = drafter_path() if start == DEMO else hub.resolve(start)
    raw = read_config(folder)
    fields = [one for one in differences(config, parse_config(raw)) if not one.startswith(_SEEN)]
    if fields:
        raise RequestError(
            f"{start} cannot be gone on from, its config is another (this run's and its own): {'; '.join(fields)}. "
            "Give its shape to this run, or start warm",
            param="start",
        )
    return folder, raw


def _from_drafter(config: DrafterConfig, start: str) -> tuple[DraftModel, tuple[str, ...]]:
    folder, raw = _drafter_of(config, start)
    changed = [f"{one} in {start}" for one in differences(config, parse_config(raw))]
    model, _ = checked_model(folder, raw, config)
    dequantize_model(model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model, tuple(f"goes on with another {one}" for one in changed)


def _notes(sources: Sequence[int], found: Sequence[Weights], shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """What stays random, layers that lack the same together."""
    lacking: dict[str, list[str]] = {}
    for number, (source, parts) in enumerate(zip(sources, found, strict=True)):
        names = [name.removesuffix(".weight") for name in shapes if name.endswith("_proj.weight") and name not in parts]
        if names:
            lacking.setdefault(", ".join(names), []).append(f"{number} (target's {source})")
    return [f"layer {', '.join(layers)}: nothing there fits {names}: random" for names, layers in lacking.items()]


def _normed(rows: mx.array) -> mx.array:
    return mx.fast.rms_norm(rows, None, 1e-6)


def _shapes(model: DraftModel) -> dict[str, tuple[int, ...]]:
    parameters: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return {name: value.shape for name, value in parameters}


def _layer_shapes(model: DraftModel) -> dict[str, tuple[int, ...]]:
    """Of one layer, by the names within it, but for its convolutions."""
    first = "layers.0."
    own = {name.removeprefix(first): shape for name, shape in _shapes(model).items() if name.startswith(first)}
    return {name: shape for name, shape in own.items() if "_conv." not in name}
