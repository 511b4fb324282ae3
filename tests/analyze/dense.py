"""A drafter's block written down in numpy from the formulas, with its attention: what the analysis is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Weights = dict[str, np.ndarray]


@dataclass
class DenseBlock:
    """Hidden rows (R, H) of the drafted positions, and each layer's attention (heads, B, C + B)."""

    hidden: np.ndarray
    attention: list[np.ndarray]


@dataclass
class Dense:
    """A DFlash 2 drafter of a tiny config; `dynamic` and `base` switch the parts of its convolutions."""

    config: dict[str, Any]
    weights: Weights
    dynamic: bool = True
    base: bool = True

    def __post_init__(self) -> None:
        self.dflash = self.config["dflash_config"]
        self.dim = self.config["head_dim"]

    def block(self, taps: list[np.ndarray], embedded: np.ndarray) -> DenseBlock:
        """`taps` (C, H) each, of positions 0…; `embedded` (B, H) raw rows of the anchor and the masks."""
        h = embedded * self.dflash["input_embedding_scale"]
        context = self.norm(np.concatenate(taps, axis=-1) @ self.weights["fc.weight"].T, "hidden_norm.weight")
        attention = []
        for layer, kind in enumerate(self.config["layer_types"]):
            name = f"layers.{layer}"
            x, after = self.convolution(f"{name}.attention_conv", self.norm(h, f"{name}.input_layernorm.weight"))
            out, weights = self.attend(f"{name}.self_attn", x, context, sliding=kind == "sliding_attention")
            h = h + after(out)
            x, after = self.convolution(f"{name}.mlp_conv", self.norm(h, f"{name}.post_attention_layernorm.weight"))
            h = h + after(self.mlp(f"{name}.mlp", x))
            attention.append(weights)
        return DenseBlock(self.norm(h, "norm.weight")[1:], attention)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.weights[name]

    def convolution(self, name: str, x: np.ndarray) -> Any:
        taps, group = self.dflash["conv_kernel_size"], self.dflash["conv_group_size"]
        rows, width = x.shape
        base = self.weights[f"{name}.base_kernel"]
        if not self.base:
            base = np.zeros_like(base)
            base[:, 0] = 1
        delta = np.zeros((rows, 2, taps, width // group))
        if self.dynamic:
            delta = (x @ self.weights[f"{name}.kernel_projection.weight"].T).reshape(delta.shape)

        def filtered(side: int, source: np.ndarray) -> np.ndarray:
            out = np.zeros_like(source)
            for i in range(rows):
                for t in range(min(taps, i + 1)):
                    for c in range(width):
                        out[i, c] += (base[side, t, c] + delta[i, side, t, c // group]) * source[i - t, c]
            return out

        return filtered(0, x), lambda source: filtered(1, source)

    def attend(self, name: str, x: np.ndarray, context: np.ndarray, *, sliding: bool) -> tuple[np.ndarray, np.ndarray]:
        seen, rows = len(context), len(x)
        heads, kv_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        both = np.concatenate([context, x])
        out = np.zeros((rows, heads * self.dim))
        weights = np.zeros((heads, rows, seen + rows))
        for head in range(heads):
            kv = head // (heads // kv_heads)
            query = self.rotated(self.head(f"{name}.q", x, head), seen)
            key = self.rotated(self.head(f"{name}.k", both, kv), 0)
            value = both @ self.part(f"{name}.v_proj.weight", kv).T
            for i in range(rows):
                logits = key @ query[i] / self.dim**0.5
                for position in range(seen):
                    if sliding and seen + i - position >= self.config["sliding_window"]:
                        logits[position] = -np.inf
                row = np.exp(logits - logits.max())
                weights[head, i] = row / row.sum()
                out[i, head * self.dim : (head + 1) * self.dim] = weights[head, i] @ value
        return out @ self.weights[f"{name}.o_proj.weight"].T, weights

    def part(self, name: str, head: int) -> np.ndarray:
        return self.weights[name][head * self.dim : (head + 1) * self.dim]

    def head(self, name: str, x: np.ndarray, head: int) -> np.ndarray:
        return self.norm(x @ self.part(f"{name}_proj.weight", head).T, f"{name}_norm.weight")

    def rotated(self, x: np.ndarray, offset: int) -> np.ndarray:
        half = self.dim // 2
        theta = self.config["rope_parameters"]["rope_theta"]
        angle = (offset + np.arange(len(x)))[:, None] / theta ** (np.arange(half) / half)
        a, b = x[:, :half], x[:, half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)

    def mlp(self, name: str, x: np.ndarray) -> np.ndarray:
        gate = x @ self.weights[f"{name}.gate_proj.weight"].T
        up = x @ self.weights[f"{name}.up_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{name}.down_proj.weight"].T
