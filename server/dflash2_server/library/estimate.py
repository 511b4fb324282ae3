"""What a load will take in memory, told before it from configs and file headers alone."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from dflash2_mlx import facts
from dflash2_mlx.errors import CheckpointError
from dflash2_mlx.facts import Tensors
from dflash2_server.management import Estimate

from . import embedded
from .models import LocalModel


def estimate(
    model: LocalModel,
    drafter: LocalModel | None,
    *,
    spec: str | None = None,
    context: int | None = None,
    cache_limit: int = 0,
    available: int | None = None,
    dtype: str | None = None,
) -> Estimate:
    """Bytes of both halves' weights, and of the caches of one conversation of `context` tokens.

    `spec` packs the drafter (such as w4a16:gs64), `dtype` is the target's compute dtype where it is forced. Kept
    prefixes count with what one such conversation takes, at most `cache_limit`. `context` None: the model's own
    length, at most `facts.CONTEXT`. Raises CheckpointError where the files are not readable any more, RequestError for
    a spec that is none.
    """
    tokens = context or min(facts.CONTEXT, model.context_length or facts.CONTEXT)
    weights = _weights(model)
    # The embedded target is float32, also before it is converted.
    item = facts.compute_bytes(weights or {}, dtype or (None if weights else "float32"))
    caches = facts.cache_bytes(model.config, tokens, item)
    drafter_bytes = 0
    if drafter is not None:
        drafter_bytes, rows = _drafter(drafter, spec, item, tokens)
        caches += rows
    caches += min(cache_limit, caches)
    target_bytes = _target(model, weights, dtype)
    return Estimate(
        target_bytes=target_bytes,
        drafter_bytes=drafter_bytes,
        cache_bytes=caches,
        context=tokens,
        available=available,
        verdict=facts.verdict(target_bytes + drafter_bytes + caches, available),
    )


def _target(model: LocalModel, weights: Tensors | None, dtype: str | None) -> int:
    unpacked = _is_unpacked(model)
    if weights is None:
        return embedded.unconverted_bytes(unpacked=unpacked)
    return facts.target_bytes(weights, model.config, dtype=dtype, unpacked=unpacked)


def _drafter(drafter: LocalModel, spec: str | None, target_item: int, tokens: int) -> tuple[int, int]:
    """Bytes of a drafter's weights and of its context."""
    from dflash2_mlx.drafter.quantization import parse_spec  # imports mlx

    wanted = parse_spec(spec)
    item = facts.drafter_item(wanted, target_item)
    weights = _weights(drafter) or {}
    if wanted is None and _is_unpacked(drafter):
        computing = "float32" if item == 4 else "bfloat16"
        size = facts.target_bytes(weights, drafter.config, dtype=computing, unpacked=True)
    else:
        size = facts.drafter_bytes(weights, wanted, item=item)
    return size, facts.context_bytes(drafter.drafter, tokens, item) if drafter.drafter else 0


def _is_unpacked(model: LocalModel) -> bool:
    """Whether loading makes packed matrices plain, as it does with the embedded pair on a CPU."""
    from dflash2_mlx.pairs import packed_is_slow  # imports mlx

    return model.source == "embedded" and packed_is_slow()


def _weights(model: LocalModel) -> Tensors | None:
    """The headers; None for the embedded target before it is converted."""
    if model.source != "embedded":
        return _read(model.path, model.stamp)
    try:
        return facts.tensors(model.path)
    except CheckpointError:
        return None


@lru_cache(maxsize=256)  # as many as a large library has: the page of models asks for all of them
def _read(folder: Path, stamp: int) -> Tensors:
    """`stamp` changes with the files."""
    return facts.tensors(folder)
