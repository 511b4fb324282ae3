"""What the disk tells of a model and its drafter is refused before it is saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dflash2_mlx.drafter.config import DrafterConfig, narrowed
from dflash2_mlx.errors import RequestError
from dflash2_mlx.settings.model import ModelSettings
from dflash2_server.catalog import Catalog
from dflash2_server.library.models import LocalModel
from dflash2_server.served import check_block_size


def check_pairing(local: LocalModel, wanted: ModelSettings, changes: Mapping[str, Any], catalog: Catalog) -> None:
    """Raises RequestError by the field for changes of a model's settings that its drafter cannot follow."""
    if wanted.dflash_enabled and changes.get("dflash_enabled") and not local.dflash_compatible:
        raise RequestError(f"DFlash for {local.id}: {local.dflash_reason}", param="dflash_enabled")
    if not wanted.dflash_enabled:
        return
    name = wanted.dflash_draft_model or catalog.automatic_drafter(local)
    if name is None:
        return
    fit = next((fit for fit in catalog.library.fits(local) if name in (fit.id, fit.repo_id)), None)
    if fit is None:
        return  # not on disk yet, or a folder elsewhere: the load tells
    if not fit.fits and "dflash_draft_model" in changes:
        reasons = "; ".join(fit.reasons)
        raise RequestError(f"{name} does not fit {local.id}: {reasons}", param="dflash_draft_model")
    if {"dflash_block_size", "dflash_draft_model"} & set(changes):
        check_block_size(wanted, fit.block_size)
    config = catalog.library.get(fit.id).drafter
    if config is not None and {"dflash_draft_window_size", "dflash_draft_model"} & set(changes):
        _check_window(config, wanted.dflash_draft_window_size)


def _check_window(config: DrafterConfig, window: int | None) -> None:
    try:
        narrowed(config, window, 0)
    except RequestError as error:
        raise RequestError(str(error), param="dflash_draft_window_size") from None
