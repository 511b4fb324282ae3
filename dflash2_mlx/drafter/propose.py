"""A loaded drafter at work: from an anchor token and a context to a block of drafts, all on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from .config import DrafterConfig
from .context import DraftContext, Ring, visibility
from .layer_kv import LayerKV
from .model import DraftModel
from .selector import top_candidates, walk


class TargetEnds(Protocol):
    """What a drafter borrows of its target."""

    @property
    def dtype(self) -> mx.Dtype: ...

    @property
    def embed_scale(self) -> float: ...

    def embed(self, ids: mx.array) -> mx.array: ...

    def head(self, hidden: mx.array) -> mx.array: ...


@dataclass(frozen=True)
class Proposal:
    """R drafts and the law that they were drawn from, on the device.

    `tokens` (R,); `candidates` (R, k) with `law` (R, k), the probability of each; None when the drafts are certain
    (one-hot). `finite` is a boolean scalar: false when a row held NaN or infinity and no draft may be accepted.
    """

    tokens: mx.array
    candidates: mx.array | None
    law: mx.array | None
    finite: mx.array


@dataclass(frozen=True)
class Lattice:
    """Candidates of every row, their logits and pair scores: (R, k), (R, k) and (R, k, k); hidden rows (R, H)."""

    hidden: mx.array
    candidates: mx.array
    unary: mx.array
    scores: mx.array


class Drafter:
    """A draft model with what it needs to run: proposals, contexts, and its logits and scores for analysis."""

    def __init__(self, model: DraftModel, *, quantization: str = "off", notes: tuple[str, ...] = ()) -> None:
        self.model = model
        self.notes = notes  # settings that are not in force, each with its reason
        self.config: DrafterConfig = model.config
        self.quantization = quantization
        self.dtype: mx.Dtype = model.norm.weight.dtype
        for layer in model.layers:
            layer.self_attn.fuse()
        self._project = LayerKV(model)

    @property
    def engine(self) -> str:
        return self.config.engine

    def new_context(self) -> DraftContext:
        return DraftContext(self.config, self._project, self.dtype)

    def hidden(self, target: TargetEnds, context: DraftContext, anchor: mx.array, width: int) -> mx.array:
        """Hidden rows (R, H) of the R = width - 1 drafted positions after `anchor` (1,)."""
        config = self.config
        mask_ids = mx.full((width - 1,), config.mask_token_id, dtype=mx.int32)
        rows = target.embed(mx.concatenate([anchor, mask_ids])[None])[0].astype(self.dtype)
        scale = target.embed_scale * config.input_embedding_scale
        if scale != 1.0:
            rows = rows * scale
        end = context.end
        rings = {kind: ring.used(end) for kind, ring in context.rings.items()}
        masks = {
            kind: visibility(
                end,
                max(context.start(kind), context.sunk) if config.sinks(kind) else context.start(kind),
                ring.capacity,
                width,
                window=config.window(kind),
                causal=config.causal(kind),
            )
            for kind, ring in rings.items()
        }
        for kind, sinks in context.sinks.items():
            rings[kind], masks[kind] = _with_sinks(sinks, context.sunk, rings[kind], masks[kind])
        return self.model(rows, _by_layer(config, rings), masks, end)[1:]

    def logits(self, target: TargetEnds, hidden: mx.array) -> mx.array:
        """The drafter's logits (R, V) in float32 for hidden rows (R, H)."""
        # In the head's own dtype: another one would convert the whole matrix in every cycle.
        return self.model.scale_logits(target.head(hidden.astype(target.dtype)[None])[0])

    def lattice(self, target: TargetEnds, context: DraftContext, anchor: mx.array, width: int) -> Lattice:
        """Candidates and pair scores of a block (DFlash 2)."""
        hidden = self.hidden(target, context, anchor, width)
        selector = self.model.candidate_selector
        candidates, unary = top_candidates(self.logits(target, hidden), selector.top_k)
        return Lattice(hidden, candidates, unary, selector.scores(hidden, candidates, unary, anchor))

    def propose(
        self,
        target: TargetEnds,
        context: DraftContext,
        anchor: mx.array,
        width: int,
        *,
        temperature: float = 0.0,
        key: mx.array | None = None,
    ) -> Proposal:
        """Draft width - 1 tokens after `anchor` (1,), which follows the context's last row.

        At a temperature above zero the walk draws from softmax(scores / temperature) with `key`; a drafter without a
        selector proposes its argmax with certainty.
        """
        if not self.config.has_selector:
            logits = self.logits(target, self.hidden(target, context, anchor, width))
            return Proposal(mx.argmax(logits, axis=-1), None, None, mx.isfinite(logits.max()))
        lattice = self.lattice(target, context, anchor, width)
        scores = lattice.scores
        finite = mx.isfinite(scores.sum())
        if temperature > 0:
            scores = scores / temperature
            # One draw a row serves every predecessor: only one of them is walked.
            noise = mx.random.gumbel((scores.shape[0], 1, scores.shape[2]), key=key)
            path = walk(mx.argmax(scores + noise, axis=-1))
        else:
            path = walk(mx.argmax(scores, axis=-1))
        tokens = mx.take_along_axis(lattice.candidates, path[:, None], axis=1)[:, 0]
        if temperature <= 0:
            return Proposal(tokens, None, None, finite)
        previous = mx.concatenate([mx.zeros((1,), path.dtype), path[:-1]])
        walked = mx.take_along_axis(scores, previous[:, None, None], axis=1)[:, 0]
        return Proposal(tokens, lattice.candidates, mx.softmax(walked, axis=-1), finite)


def _with_sinks(sinks: Ring, known: int, ring: Ring, mask: mx.array) -> tuple[Ring, mx.array]:
    """The first `known` positions before a ring's rows, whose mask leaves those positions out."""
    sinks = sinks.used(known)
    keys = mx.concatenate([sinks.keys, ring.keys], axis=2)
    values = mx.concatenate([sinks.values, ring.values], axis=2)
    seen = mx.broadcast_to(mx.arange(sinks.capacity) < known, (mask.shape[0], sinks.capacity))
    return Ring(keys, values), mx.concatenate([seen, mask], axis=1)


def _by_layer(config: DrafterConfig, rings: dict[str, Ring]) -> list[tuple[mx.array, mx.array]]:
    seen: dict[str, int] = {}
    out = []
    for kind in config.layer_types:
        i = seen.get(kind, 0)
        seen[kind] = i + 1
        ring = rings[kind]
        out.append((ring.keys[i : i + 1], ring.values[i : i + 1]))
    return out
