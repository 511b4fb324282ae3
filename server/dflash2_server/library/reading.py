"""One folder, read: a model or drafter with everything that its config and headers tell, or why it is not listed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash2_mlx import facts
from dflash2_mlx.drafter.config import DrafterConfig, is_drafter, parse_config
from dflash2_mlx.errors import CheckpointError, DFlashError
from dflash2_mlx.facts import Tensors

from . import families
from .listing import Listing, bytes_on_disk
from .models import LocalModel
from .packing import describe, describe_drafter
from .places import Place

_WEIGHTS = ".safetensors"
QUANTIZED_FROM = "dflash2_quantized_from"  # as `dflash2-mlx quantize` writes it into config.json


@dataclass(frozen=True)
class Reading:
    """`hidden` says why a model is not listed; neither: the folder holds no model."""

    model: LocalModel | None = None
    hidden: str | None = None


def read(place: Place, listing: Listing) -> Reading:
    """Never raises: what is wrong is the model's problem, or why it is hidden."""
    names = listing.names
    weighs = any(name.endswith(_WEIGHTS) for name in (*names, *listing.missing)) or facts.INDEX in names
    if not weighs or "config.json" in listing.missing:
        return Reading()
    hidden = _unfinished(listing)
    if hidden:
        return Reading(hidden=hidden)
    try:
        config = _config(place.folder)
    except (OSError, ValueError) as error:
        problem = f"config.json cannot be read ({error}): download the model again"
        return Reading(_model(place, listing, {}, problem=problem))
    drafts = _is_drafter(config)
    if not drafts and not families.is_chat_model(config, names):
        return Reading()
    try:
        weights = facts.tensors(place.folder)
    except CheckpointError as error:
        return Reading(hidden=str(error))
    return Reading(_drafter(place, listing, config, weights) if drafts else _target(place, listing, config, weights))


def _unfinished(listing: Listing) -> str | None:
    if listing.partial:
        return f"its download is not finished ({', '.join(listing.partial[:3])}): go on with it, or delete the folder"
    if listing.missing:
        return f"{', '.join(listing.missing[:3])} leads to no file: download the model again"
    return None


def _config(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise ValueError(f"it holds {type(config).__name__}, not an object")
    return config


def _is_drafter(config: Mapping[str, Any]) -> bool:
    try:
        return is_drafter(config)
    except TypeError:  # architectures that are no list
        return False


def _drafter(place: Place, listing: Listing, config: dict[str, Any], weights: Tensors) -> LocalModel:
    parsed: DrafterConfig | None = None
    problem = None
    try:
        parsed = parse_config(config)
    except DFlashError as error:
        problem = str(error)
    except (TypeError, ValueError, AttributeError, KeyError) as error:  # a value of an unforeseen kind
        problem = f"its config cannot be read as a drafter's: {error}"
    source = config.get(QUANTIZED_FROM)
    return _model(
        place,
        listing,
        config,
        kind="drafter",
        drafter=parsed,
        problem=problem,
        quantization=describe(config) or describe_drafter(weights, parsed),
        quantized_from=source if isinstance(source, str) and source else None,
    )


def _target(place: Place, listing: Listing, config: dict[str, Any], weights: Tensors) -> LocalModel:
    from dflash2_mlx.pairs import target_facts  # imports mlx

    problem = families.unsupported(config) or _lacking(place.folder, listing.names)
    known = None
    try:
        known = target_facts(config, facts.embedding_rows(weights))
        reason = problem or families.incompatible(config)
    except CheckpointError as error:
        reason = problem or str(error)
    except (TypeError, ValueError, AttributeError) as error:
        problem = problem or f"its config cannot be read: {error}"
        reason = problem
    return _model(
        place,
        listing,
        config,
        facts=known,
        problem=problem,
        dflash_compatible=reason is None,
        dflash_reason=reason,
        quantization=describe(config),
        context_length=facts.context_length(config),
    )


def _lacking(folder: Path, names: frozenset[str]) -> str | None:
    """What mlx-lm needs beside a config and weights."""
    if not any(name.startswith("model") and name.endswith(_WEIGHTS) for name in names):
        return f"mlx-lm reads weights from model*.safetensors, and {folder.name} has none of that name"
    words = ("tokenizer", "vocab", "tekken", ".tiktoken", ".model")
    if not any(word in name for name in names for word in words):
        return "it has no tokenizer (tokenizer.json or tokenizer.model): download the model again"
    return None


def _model(place: Place, listing: Listing, config: dict[str, Any], **known: Any) -> LocalModel:
    family = config.get("model_type")
    given: dict[str, Any] = {"kind": "model", "dflash_reason": known.get("problem")} | known
    return LocalModel(
        id="",
        path=place.folder,
        source=place.source,
        repo_id=place.repo_id,
        size=bytes_on_disk(place.folder),
        model_type=family if isinstance(family, str) else "unknown",
        config=config,
        stamp=hash(listing),
        **given,
    )
