"""The drafter as an mlx-lm style model file: modules named as the checkpoint's tensors.

It sees the block's rows and keys and values of committed positions; embedding and output head are the target's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.activations import swiglu
from mlx_lm.models.rope_utils import initialize_rope

from ..errors import CheckpointError
from .config import DrafterConfig
from .conv import GroupedDynamicCausalConv
from .fused import Product, join
from .selector import CandidateSelector

KV = tuple[mx.array, mx.array]
Rope = Callable[..., mx.array]


class Attention(nn.Module):
    """Queries from the block's rows; keys and values from the context, then from the block's rows."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.n_heads, self.n_kv_heads, self.head_dim = heads, kv_heads, dim
        self.scale = dim**-0.5
        self.q_proj = nn.Linear(config.hidden_size, heads * dim, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(heads * dim, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(dim, eps=config.rms_norm_eps)
        self._qkv: Product | None = None
        self._qk_weights: mx.array | None = None

    def fuse(self) -> None:
        """Join what each call would join anew; once, after the weights are final."""
        self._qkv = join([self.q_proj, self.k_proj, self.v_proj], share=True)
        self._qk_weights = self._norm_weights()
        mx.eval(self._qk_weights)

    def __call__(self, x: mx.array, context: KV, mask: mx.array, rope: Rope, offset: mx.array | int) -> mx.array:
        """`x` (…, B, H) at positions offset…; `context` keys and values (N, h, C, D); `mask` (B, C+B) or broadcast.

        Queries and keys are normed and rotated together: N counts the leading dimensions of `x`.
        """
        rows, heads = x.shape[-2], self.n_heads + self.n_kv_heads
        if self._qkv is not None:
            qkv = self._qkv(x)
        else:
            qkv = mx.concatenate([self.q_proj(x), self.k_proj(x), self.v_proj(x)], axis=-1)
        qkv = qkv.reshape(-1, rows, heads + self.n_kv_heads, self.head_dim).swapaxes(1, 2)  # (N, heads, B, D)
        weights = self._norm_weights() if self._qk_weights is None else self._qk_weights
        turned = mx.fast.rms_norm(qkv[:, :heads], None, self.q_norm.eps) * weights
        turned = rope(turned, offset=offset)
        keys = mx.concatenate([context[0], turned[:, self.n_heads :]], axis=2)
        values = mx.concatenate([context[1], qkv[:, heads:]], axis=2)
        out = mx.fast.scaled_dot_product_attention(turned[:, : self.n_heads], keys, values, scale=self.scale, mask=mask)
        projected: mx.array = self.o_proj(out.swapaxes(1, 2).reshape(*x.shape[:-1], -1))
        return projected

    def _norm_weights(self) -> mx.array:
        """The norms' weights by head, queries then keys: (heads, 1, D)."""
        sides = ((self.q_norm.weight, self.n_heads), (self.k_norm.weight, self.n_kv_heads))
        return mx.concatenate([mx.broadcast_to(w, (count, 1, self.head_dim)) for w, count in sides])


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
        return out


class DecoderLayer(nn.Module):
    """One layer; with convolutions around both sublayers in DFlash 2."""

    def __init__(self, config: DrafterConfig, layer_type: str) -> None:
        super().__init__()
        self.layer_type = layer_type
        self.has_conv = config.has_conv
        self.self_attn = Attention(config)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.has_conv:
            conv = (config.hidden_size, config.conv_kernel_size, config.conv_group_size)
            self.attention_conv = GroupedDynamicCausalConv(*conv)
            self.mlp_conv = GroupedDynamicCausalConv(*conv)

    def __call__(self, h: mx.array, context: KV, mask: mx.array, rope: Rope, offset: mx.array | int) -> mx.array:
        x = self.input_layernorm(h)
        if not self.has_conv:
            h = h + self.self_attn(x, context, mask, rope, offset)
            return h + self.mlp(self.post_attention_layernorm(h))
        x, kernel = self.attention_conv.prepare(x)
        h = h + self.attention_conv.finish(self.self_attn(x, context, mask, rope, offset), kernel)
        x, kernel = self.mlp_conv.prepare(self.post_attention_layernorm(h))
        return h + self.mlp_conv.finish(self.mlp(x), kernel)


class DraftModel(nn.Module):
    """DFlash 2 or DFlash (by the config); call it for the hidden rows of a block."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(len(config.target_layer_ids) * config.hidden_size, config.hidden_size, bias=False)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = [DecoderLayer(config, layer_type) for layer_type in config.layer_types]
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if config.has_selector:
            self.candidate_selector = CandidateSelector(
                config.hidden_size, config.vocab_size, config.selector_rank, config.selector_top_k
            )
        self._rope = _build_rope(config)

    @property
    def rope(self) -> Rope:
        rope: Rope = self._rope
        return rope

    def context_features(self, taps: Sequence[mx.array]) -> mx.array:
        """Context rows (…, n, H) from the target's tapped residual rows, each (…, n, H), in the order of the ids."""
        features: mx.array = self.hidden_norm(self.fc(mx.concatenate(list(taps), axis=-1)))
        return features

    def __call__(
        self, h: mx.array, context: Sequence[KV], masks: dict[str, mx.array], offset: mx.array | int
    ) -> mx.array:
        """Hidden rows (…, B, H), normed, of embedded block rows `h` (…, B, H) whose anchor sits at `offset`.

        `context` holds keys and values for each layer, `masks` the visibility (B, C+B) for each layer type.
        """
        for layer, kv in zip(self.layers, context, strict=True):
            h = layer(h, kv, masks[layer.layer_type], self._rope, offset)
        out: mx.array = self.norm(h)
        return out

    def scale_logits(self, logits: mx.array) -> mx.array:
        """The target head's output with this drafter's multiplier and softcap, in float32."""
        logits = logits.astype(mx.float32)
        if self.config.output_multiplier != 1.0:
            logits = logits * self.config.output_multiplier
        cap = self.config.final_logit_softcapping
        return logits if cap is None else mx.tanh(logits / cap) * cap

    @staticmethod
    def sanitize(weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Checkpoint names to module names: the codebooks are bare tensors in the published layout."""
        bare = [f"candidate_selector.{side}_codebook" for side in ("predecessor", "successor")]
        for name in bare:
            if name in weights and f"{name}.weight" in weights:
                raise CheckpointError(f"{name} is there twice, bare and as .weight: fetch the checkpoint again")
        return {f"{name}.weight" if name in bare else name: value for name, value in weights.items()}


def _build_rope(config: DrafterConfig) -> Any:
    try:
        return initialize_rope(
            config.head_dim,
            base=config.rope_theta,
            traditional=False,
            scaling_config=config.rope_scaling,
            max_position_embeddings=config.max_position_embeddings,
        )
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"rope_scaling {config.rope_scaling} cannot be used: {error}") from None
