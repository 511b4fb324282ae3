"""A target of any mlx-lm family: embedding, head, layers, caches, taps and rollback, without a patch of its classes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import ArraysCache, make_prompt_cache

from ..errors import TargetError
from ..facts import EMBEDDINGS
from .recurrent import Recorder, equip_recurrent
from .rollback import Transaction, flatten, unknown_kinds
from .taps import TapSink, tap

# Names that families give to these parts; those of the embedding are EMBEDDINGS.
_LAYERS = ("layers", "h", "blocks")
_HEADS = ("lm_head", "embed_out")
_FINAL_NORMS = ("norm", "norm_f", "final_layernorm", "final_norm", "ln_f", "embedding_norm")


@dataclass(frozen=True)
class _Instruments:
    """What the equipped layers of one model report to; shared by all Targets of that model."""

    sink: TapSink = field(default_factory=TapSink)
    recorder: Recorder = field(default_factory=Recorder)


class Target:
    """Wraps a loaded mlx-lm model. The model stays usable on its own; its layers may be tapped in place.

    Several Targets of one model, each with its own taps, do not disturb each other.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._owner, self._inner = _find_text_model(model)
        self.layers: list[nn.Module] = _part(self._inner, _LAYERS)
        self.model_type: str = str(getattr(model, "model_type", type(model).__module__.rsplit(".", 1)[-1]))
        self.num_layers = len(self.layers)
        self._table: nn.Module = _part(self._inner, EMBEDDINGS)
        self.vocab_size = int(self._table["weight"].shape[0])
        self.embed_scale = float(getattr(self._inner, "embed_scale", 1.0))
        example = self.embed(mx.zeros((1, 1), dtype=mx.int32))
        self.hidden_size = int(example.shape[-1])
        self.dtype: mx.Dtype = example.dtype
        self._tapped: tuple[int, ...] = ()
        if not hasattr(self._inner, "_dflash_instruments"):
            object.__setattr__(self._inner, "_dflash_instruments", _Instruments())
        instruments: _Instruments = self._inner._dflash_instruments
        self._sink, self._recorder = instruments.sink, instruments.recorder

    @property
    def drafter_dtype(self) -> mx.Dtype:
        """The dtype for a drafter that is not quantised: the target's, but never float16."""
        return mx.bfloat16 if self.dtype == mx.float16 else self.dtype

    def embed(self, ids: mx.array) -> mx.array:
        """Rows of the raw embedding table, (1, n) to (1, n, H), without what the family does to them inside."""
        rows: mx.array = self._table(ids)
        return rows

    @property
    def head_module(self) -> nn.Module:
        """The module whose matrix is the output head: the embedding's where the two are tied."""
        head: nn.Module | None = _part(self._owner, _HEADS)
        return self._table if head is None else head

    def head(self, hidden: mx.array) -> mx.array:
        """The raw output head, (1, n, H) to (1, n, V), without the family's own scaling and softcap."""
        head = _part(self._owner, _HEADS)
        if head is not None:
            logits: mx.array = head(hidden)
            return logits
        tied: mx.array = self._table.as_linear(hidden)
        return tied

    @property
    def tapped_layers(self) -> tuple[int, ...]:
        """The layers that `prepare` was given."""
        return self._tapped

    @property
    def final_norm(self) -> nn.Module | None:
        """The norm before the head; None where the family calls it something else."""
        norm: nn.Module | None = _part(self._inner, _FINAL_NORMS)
        return norm

    def new_cache(self) -> list[Any]:
        """Empty caches of one conversation."""
        caches: list[Any] = make_prompt_cache(self.model)
        return caches

    def __call__(self, tokens: mx.array, caches: list[Any]) -> mx.array:
        """Logits (1, n, V) of `tokens` (1, n), whose rows `caches` take in."""
        logits: mx.array = self.model(tokens, cache=caches)
        return logits

    def with_taps(self, tokens: mx.array, caches: list[Any]) -> tuple[mx.array, list[mx.array]]:
        """As a call; also the tapped rows, each (1, n, H), in the order given to `prepare`."""
        with self._sink.collecting() as rows:
            logits = self(tokens, caches)
        return logits, [rows[layer] for layer in self._tapped]

    def begin(self, caches: Sequence[Any], rows: int) -> Transaction:
        """Open a transaction for a block of `rows` rows, two or more."""
        return Transaction(caches, self._recorder, rows)

    def tapped(self, layer_ids: Sequence[int]) -> Target:
        """Another Target of the same model, prepared for those layers."""
        twin = copy(self)
        twin.prepare(layer_ids)
        return twin

    def prepare(self, layer_ids: Sequence[int]) -> None:
        """Tap the layers `layer_ids` and make recurrent layers recordable; then probe that both work.

        Raises TargetError with the name of a cache kind that cannot be rolled back, or of the layer at fault.
        """
        caches = self.new_cache()
        unknown = unknown_kinds(caches)
        if unknown:
            raise TargetError(
                f"{self.model_type} keeps its state in {', '.join(unknown)}, which cannot be rolled back: "
                "use it without a drafter (--draft none)"
            )
        tokens = mx.array([[1, 2, 3]]) % self.vocab_size
        plain = self(tokens, caches)
        tap(self.layers, layer_ids, self._sink)
        self._tapped = tuple(layer_ids)
        if any(type(cache) is ArraysCache for cache in flatten(caches)):
            # All of them: a family may have fewer caches than layers, so that their numbers say nothing.
            for layer in self.layers:
                equip_recurrent(layer, self._recorder)
        self._probe(tokens, plain)

    def _probe(self, tokens: mx.array, plain: mx.array) -> None:
        """A tapped and recorded forward gives the plain logits and every tap; a rejected block leaves no trace."""
        caches = self.new_cache()
        rows = tokens.shape[1]
        transaction = self.begin(caches, rows)
        try:
            with transaction:
                logits, taps = self.with_taps(tokens, caches)
        except KeyError as layer:
            raise TargetError(
                f"layer {layer} of {self.model_type} is not called in a forward: it cannot be tapped"
            ) from None
        transaction.commit(1)
        again = self(tokens[:, 1:], caches)
        shape = (1, rows, self.hidden_size)
        if any(rows_of.shape != shape for rows_of in taps):
            raise TargetError(f"taps of {self.model_type} have shapes {[t.shape for t in taps]}, expected {shape}")
        if not _close(logits, plain) or not _close(again, plain[:, 1:]):
            raise TargetError(f"{self.model_type}: a tapped or rolled-back forward differs from the plain one")


def _close(a: mx.array, b: mx.array) -> bool:
    # Loose: one and several rows round differently in bfloat16; a wrong state is wrong by far more.
    scale = mx.maximum(mx.abs(b.astype(mx.float32)).max(), 1e-6)
    gap = mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max() / scale
    return float(gap.item()) < 0.1  # type: ignore[arg-type]


def _part(module: nn.Module, names: tuple[str, ...]) -> Any:
    """The first of a module's children that has one of those names."""
    return next((module[name] for name in names if name in module), None)


def _find_text_model(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """(the module with the head, the module with embedding and layers), however the family wraps them."""
    queue: list[tuple[nn.Module, nn.Module]] = [(model, model)]
    for owner, module in queue:
        if _part(module, EMBEDDINGS) is not None and isinstance(_part(module, _LAYERS), list):
            return (owner if _part(module, _HEADS) is None else module), module
        if len(queue) < 32:
            queue.extend((module, child) for child in module.children().values() if isinstance(child, nn.Module))
    raise TargetError(
        f"{type(model).__module__}: found no module with an embedding and `layers`; use it without a drafter"
    )
