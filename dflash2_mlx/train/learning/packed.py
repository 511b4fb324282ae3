"""The drafter's forward over many blocks of one conversation at once: they share the context's keys and values.

It runs the modules of `DraftModel` and gives what that gives block by block (a test compares them). Block rows see the
context rows before their own anchor and their own block, never anything after the anchor or of another block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx import nn

from ...drafter.config import DrafterConfig
from ...drafter.conv import GroupedDynamicCausalConv
from ...drafter.model import KV, Attention, DecoderLayer, DraftModel, Rope
from .quick import softmax, swiglu

_HIDDEN = -1e30  # a score that no softmax sees; finite, so that no gradient is NaN


def packed_hidden(
    model: DraftModel, rows: mx.array, taps: mx.array, anchors: mx.array, *, checkpointing: bool = False
) -> mx.array:
    """Hidden rows (S, A, B, H), normed, of S conversations with A blocks each.

    `rows` (S, A, B, H) are the embedded rows, `taps` (S, L, T*H) the target's tapped rows at positions 0…L-1, and
    `anchors` (S, A) the positions of the anchors, each 1 or more. With `checkpointing`, activations of a layer are
    computed again in the backward pass.
    """
    config = model.config
    features = model.hidden_norm(model.fc(taps))
    masks = {kind: _visible(config, kind, anchors, taps.shape[1]) for kind in dict.fromkeys(config.layer_types)}
    h = rows
    for layer in model.layers:
        forward = partial(_layer, layer, model.rope)
        if checkpointing:
            forward = nn.utils.checkpoint(layer, forward)
        h = forward(h, features, masks[layer.layer_type], anchors)
    out: mx.array = model.norm(h)
    return out


def _visible(config: DrafterConfig, kind: str, anchors: mx.array, length: int) -> mx.array:
    """Which context rows and own rows each block row sees: (S, 1, A, 1, B, L + B)."""
    rows = mx.arange(config.block_size)
    position = anchors[:, :, None, None] + rows[:, None]  # (S, A, B, 1)
    context = mx.arange(length)
    seen = mx.broadcast_to(context < anchors[:, :, None, None], (*position.shape[:3], length))
    window = config.window(kind)
    if window is not None:
        seen = seen & (position - context < window)
    own = rows <= rows[:, None] if config.causal(kind) else mx.ones((len(rows), len(rows)), mx.bool_)
    whole = mx.concatenate([seen, mx.broadcast_to(own, (*position.shape[:3], len(rows)))], axis=-1)
    return whole[:, None, :, None]


def _layer(
    layer: DecoderLayer, rope: Rope, h: mx.array, features: mx.array, visible: mx.array, anchors: mx.array
) -> mx.array:
    x = layer.input_layernorm(h)
    if not layer.has_conv:
        h = h + _attend(layer.self_attn, rope, x, features, visible, anchors)
        return h + _mlp(layer, layer.post_attention_layernorm(h))
    delta = _delta(layer.attention_conv, x)
    x = _filter(layer.attention_conv, x, delta, 0)
    x = _attend(layer.self_attn, rope, x, features, visible, anchors)
    h = h + _filter(layer.attention_conv, x, delta, 1)
    x = layer.post_attention_layernorm(h)
    delta = _delta(layer.mlp_conv, x)
    x = _mlp(layer, _filter(layer.mlp_conv, x, delta, 0))
    return h + _filter(layer.mlp_conv, x, delta, 1)


def _mlp(layer: DecoderLayer, x: mx.array) -> mx.array:
    mlp = layer.mlp
    out: mx.array = mlp.down_proj(swiglu(mlp.gate_proj(x), mlp.up_proj(x)))
    return out


def _delta(conv: GroupedDynamicCausalConv, x: mx.array) -> mx.array:
    """The dynamic part of both sides' kernels: (S, A, B, 2, K, G, 1) from the sublayer's input."""
    groups = x.shape[-1] // conv.group_size
    delta: mx.array = conv.kernel_projection(x).reshape(*x.shape[:-1], 2, conv.kernel_size, groups, 1)
    return delta


def _filter(conv: GroupedDynamicCausalConv, x: mx.array, delta: mx.array, side: int) -> mx.array:
    """`GroupedDynamicCausalConv._filter` by shifted copies, whose gradient is cheap; a strided view's is a scatter."""
    groups = delta.shape[-2]
    split = x.reshape(*x.shape[:-1], groups, conv.group_size)
    base = conv.base_kernel.reshape(2, conv.kernel_size, groups, conv.group_size)
    out = (delta[..., side, 0, :, :] + base[side, 0]) * split
    for tap in range(1, conv.kernel_size):
        out = out + (delta[..., side, tap, :, :] + base[side, tap]) * _shifted(split, tap)
    return out.reshape(x.shape)


def _shifted(x: mx.array, rows: int) -> mx.array:
    """`x` (S, A, B, G, g) moved down by some rows; zeros come in."""
    return mx.concatenate([mx.zeros_like(x[:, :, :rows]), x[:, :, : x.shape[2] - rows]], axis=2)


def _attend(
    attention: Attention, rope: Rope, x: mx.array, features: mx.array, visible: mx.array, anchors: mx.array
) -> mx.array:
    S, A, B, _ = x.shape
    kv_heads, dim = attention.n_kv_heads, attention.head_dim
    group = attention.n_heads // kv_heads
    offset = anchors.reshape(-1)
    queries = _heads(attention.q_proj(x), dim, attention.q_norm, rope, offset).reshape(S, A, kv_heads, group * B, dim)
    keys = _heads(attention.k_proj(x), dim, attention.k_norm, rope, offset).reshape(S, A, kv_heads, B, dim)
    values = attention.v_proj(x).reshape(S, A, B, kv_heads, dim).swapaxes(2, 3)
    context_keys, context_values = _context(attention, rope, features)

    scale = attention.scale
    turned = queries.swapaxes(1, 2).reshape(S, kv_heads, A * group * B, dim)
    to_context = (turned * scale) @ context_keys.swapaxes(-1, -2)
    to_own = (queries * scale) @ keys.swapaxes(-1, -2)
    length = context_keys.shape[2]
    scores = mx.concatenate(
        [
            to_context.reshape(S, kv_heads, A, group, B, length),
            to_own.reshape(S, A, kv_heads, group, B, B).swapaxes(1, 2),
        ],
        axis=-1,
    )
    weights = softmax(mx.where(visible, scores, mx.array(_HIDDEN, scores.dtype)))
    from_context = weights[..., :length].reshape(S, kv_heads, A * group * B, length) @ context_values
    from_own = weights[..., length:].swapaxes(1, 2).reshape(S, A, kv_heads, group * B, B) @ values
    out = from_context.reshape(S, kv_heads, A, group * B, dim).swapaxes(1, 2) + from_own
    out = out.reshape(S, A, kv_heads * group, B, dim).swapaxes(2, 3)
    projected: mx.array = attention.o_proj(out.reshape(S, A, B, -1))
    return projected


def _context(attention: Attention, rope: Rope, features: mx.array) -> KV:
    """Keys and values (S, h, L, D) of the context rows (S, L, H) at positions 0…L-1."""
    S, L, _ = features.shape
    keys = _heads(attention.k_proj(features)[:, None], attention.head_dim, attention.k_norm, rope, 0)
    values = attention.v_proj(features).reshape(S, L, attention.n_kv_heads, attention.head_dim).swapaxes(1, 2)
    return keys, values


def _heads(x: mx.array, dim: int, norm: Any, rope: Rope, offset: mx.array | int) -> mx.array:
    """Rows (S, A, B, heads*D), normed by head and rotated from `offset` on: (S*A, heads, B, D)."""
    rows = x.shape[-2]
    heads = norm(x.reshape(-1, rows, x.shape[-1] // dim, dim)).swapaxes(1, 2)
    return rope(heads, offset=offset)


def embedded_rows(target: Any, config: DrafterConfig, anchors: mx.array, dtype: mx.Dtype) -> mx.array:
    """The rows (S, A, B, H) of blocks whose anchors are the tokens `anchors` (S, A): its embedding, then the mask's."""
    S, A = anchors.shape
    # One lookup: the mask's row once, repeated.
    both = target.embed(mx.concatenate([anchors.reshape(1, -1), mx.array([[config.mask_token_id]])], axis=1))[0]
    both = both.astype(dtype) * (target.embed_scale * config.input_embedding_scale)
    first = both[:-1].reshape(S, A, 1, -1)
    masked = mx.broadcast_to(both[-1], (S, A, config.block_size - 1, both.shape[-1]))
    return mx.stop_gradient(mx.concatenate([first, masked], axis=2))


def padded_taps(taps: Sequence[mx.array], length: int, dtype: mx.Dtype) -> mx.array:
    """Tapped rows (n, T*H) of some conversations as (S, length, T*H); the padding is seen by no block."""
    return mx.stack([mx.pad(one, [(0, length - one.shape[0]), (0, 0)]) for one in taps]).astype(dtype)
