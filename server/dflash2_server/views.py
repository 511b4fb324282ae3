"""What the model manager shows of a model: disk, settings and pool in one view."""

from __future__ import annotations

from dflash2_mlx.settings.model import ModelSettings, needs_reload, not_in_force
from dflash2_server.catalog import Catalog
from dflash2_server.library.models import LocalModel
from dflash2_server.management import DraftState, ModelView, Running
from dflash2_server.pool.entry import Entry
from dflash2_server.pool.figures import pair_figures
from dflash2_server.served import ServedPair


def view_of(local: LocalModel, catalog: Catalog) -> ModelView:
    """Everything that is known of a model or drafter now."""
    mine = catalog.store.get(local.id)
    entry = catalog.pool.entry(local.id)
    is_model = local.kind == "model"
    targets, reason = catalog.library.targets(local) if not is_model else ((), None)
    return ModelView(
        id=local.id,
        kind=local.kind,
        path=str(local.path),
        repo_id=local.repo_id,
        source=local.source,
        size=local.size,
        model_type=local.model_type,
        quantization=local.quantization,
        context_length=local.context_length,
        settings=mine,
        state=entry.state,
        stage=entry.stage,
        share=entry.share,
        error=entry.error,
        running=running_of(entry, entry.served, catalog) if entry.served is not None else None,
        requires_reload=pending(entry, mine),
        problem=local.problem,
        dflash_compatible=local.dflash_compatible,
        dflash_reason=local.dflash_reason,
        drafters=tuple(catalog.library.fits(local)) if is_model else (),
        automatic_drafter=catalog.automatic_drafter(local) if is_model else None,
        published_drafter=catalog.library.published(local) if is_model else None,
        targets=targets,
        targets_reason=reason,
        deletable=local.deletable,
    )


def pending(entry: Entry, mine: ModelSettings) -> tuple[str, ...]:
    """Saved settings that the loaded pair does not run with."""
    return needs_reload(entry.loaded_with, mine) if entry.loaded_with is not None and entry.served is not None else ()


def running_of(entry: Entry, served: ServedPair, catalog: Catalog) -> Running:
    """A loaded pair as it runs."""
    pair = served.pair
    cache_error = catalog.pool.engine.cache.figures_of(pair).ssd_error
    notes = [*pair.notes, *not_in_force(served.model_settings).values()]
    if cache_error:
        notes.append(f"the SSD cache is off: {cache_error}")
    if served.model_settings.dflash_block_size and pair.drafter is None:
        notes.append("dflash_block_size has no effect: there is no drafter")
    limit = idle_limit(entry, catalog)
    requests = catalog.pool.requests(entry)
    return Running(
        engine=served.engine,
        state=_draft_state(served),
        reason=pair.fallback_reason,
        drafter=served.info.drafter,
        block_size=served.block_size,
        verify_mode=served.verify_mode,
        draft_quant=pair.drafter.quantization if pair.drafter else "off",
        context_length=served.context_length,
        loaded_at=entry.loaded_at,
        last_used=entry.last_used,
        requests=requests,
        memory_bytes=entry.memory_bytes,
        idle_seconds_left=None if limit is None or requests else max(0.0, limit - entry.idle_seconds),
        figures=pair_figures(catalog.pool.engine, pair),
        notes=tuple(notes),
        widths=pair.widths.figures() if pair.widths is not None else None,
        exactness=pair.exactness,
    )


def idle_limit(entry: Entry, catalog: Catalog) -> float | None:
    """Seconds without a request after which it is unloaded; None: never."""
    mine = catalog.store.get(entry.id)
    return None if mine.is_pinned else mine.ttl_seconds or catalog.server.idle_seconds


def _draft_state(served: ServedPair) -> DraftState:
    if served.pair.fallback_reason is not None:
        return "fallback"
    return "off" if served.engine == "plain" else "active"
