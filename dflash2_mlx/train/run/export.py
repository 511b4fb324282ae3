"""Writes a trained drafter as a checkpoint in the published layout: whole, or not at all."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ...drafter.config import DrafterConfig, is_drafter, read_config
from ...drafter.model import DraftModel
from ...errors import CheckpointError, RequestError
from ..recipe.file import write_recipe
from ..reporting.card import RECIPE_FILE, CardFacts, card, public_recipe
from ..start.design import published_config

WEIGHTS = "model.safetensors"
_FILES = {"config.json", WEIGHTS, "README.md", RECIPE_FILE}


def check_export(folder: Path, *, replace: bool = False) -> None:
    """Raises RequestError (param out) unless a drafter may be written to `folder`.

    It may where nothing is, and with `replace` in place of an export, never of anything else.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not folder.is_dir() or not _is_export(folder):
        raise _refusal(f"{folder} holds something else than a trained drafter: give another folder, or empty it")
    if not replace:
        raise _refusal(f"{folder} holds a drafter already: give another folder, or remove it")


def export(folder: Path, model: DraftModel, config: DrafterConfig, *, facts: CardFacts, replace: bool = False) -> Path:
    """Write `config.json`, the weights in bfloat16, the card and the recipe to `folder`; gives it back.

    When it breaks off, what was there is as it was. Raises RequestError as `check_export` does, and CheckpointError
    for weights that are not finite and where it cannot be written.
    """
    check_export(folder, replace=replace)
    weights = published_weights(model)
    folder = folder.absolute()
    scratch = folder.with_name(f".{folder.name}.partial-{uuid.uuid4().hex}")
    try:
        scratch.mkdir(parents=True)
        mx.save_safetensors(str(scratch / WEIGHTS), weights, metadata={"format": "mlx"})
        write_recipe(scratch / RECIPE_FILE, public_recipe(facts.recipe))
        size = (scratch / WEIGHTS).stat().st_size
        (scratch / "README.md").write_text(card(folder.name, config, facts, size), encoding="utf-8")
        raw = json.dumps(published_config(config), indent=2)
        (scratch / "config.json").write_text(raw + "\n", encoding="utf-8")
        _put(scratch, folder)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{folder} cannot be written ({error}): make room, or give another folder") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def clean(folder: Path) -> None:
    """Take away what a kill within `export` to this folder has left; no other process may export there now.

    A drafter that was moved away, and whose successor did not come, is put back. Raises CheckpointError.
    """
    try:
        former = sorted(folder.parent.glob(f".{folder.name}.former-*"), key=lambda path: path.stat().st_mtime)
        if former and not folder.exists():
            former.pop().rename(folder)
        for path in [*former, *folder.parent.glob(f".{folder.name}.partial-*")]:
            shutil.rmtree(path)
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder} cannot be cleaned up ({error.strerror or error})") from None


def published_weights(model: DraftModel) -> dict[str, mx.array]:
    """The weights in bfloat16 by the published names. Raises CheckpointError where one is not finite."""
    parameters: Any = tree_flatten(model.parameters())
    weights = {_published(name): value.astype(mx.bfloat16) for name, value in parameters}
    finite = {name: mx.isfinite(value).all() for name, value in weights.items()}
    mx.eval(finite)
    bad = [name for name, fine in finite.items() if not fine.item()]
    if bad:
        raise CheckpointError(f"{bad[0]} is not finite: the training has diverged, use a lower --learning-rate")
    return weights


def _published(name: str) -> str:
    """The codebooks are bare tensors there."""
    return name.removesuffix(".weight") if name.endswith("_codebook.weight") else name


def _put(scratch: Path, folder: Path) -> None:
    if not folder.exists():
        scratch.rename(folder)
        return
    former = folder.with_name(f".{folder.name}.former-{uuid.uuid4().hex}")
    folder.rename(former)
    try:
        scratch.rename(folder)
    except OSError:
        former.rename(folder)
        raise
    shutil.rmtree(former, ignore_errors=True)


def _is_export(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    try:
        return names <= _FILES and is_drafter(read_config(folder))
    except CheckpointError:
        return False


def _refusal(message: str) -> RequestError:
    return RequestError(message, param="out")
