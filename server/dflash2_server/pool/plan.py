"""From saved settings to what `load` is told: decided before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from dflash2_mlx.engine.prefix_limits import CacheLimits
from dflash2_mlx.errors import DFlashError, RequestError
from dflash2_mlx.pairs import AUTO, Pair, load
from dflash2_mlx.settings import ServerSettings
from dflash2_mlx.settings.model import ModelSettings
from dflash2_server.library.library import Library
from dflash2_server.library.models import DEMO, DEMO_DRAFTER, LocalModel


@dataclass(frozen=True, kw_only=True)
class LoadPlan:
    """The arguments of `dflash2_mlx.load`. `missing` is why there is no drafter, where a fallback is allowed."""

    model: str
    drafter: str | None
    quantize: str | None = None
    dtype: str | None = None
    draft_window: int | None = None
    draft_sink: int = 0
    allow_fallback: bool = False
    missing: str | None = None

    def run(self, progress: Callable[[str, float], None]) -> Pair:
        """Load; on the thread that owns MLX."""
        arguments = asdict(self)
        missing = arguments.pop("missing")
        pair = load(**arguments, progress=progress)
        return pair if missing is None else replace(pair, fallback_reason=missing)


def plan_of(local: LocalModel, settings: ModelSettings, server: ServerSettings, library: Library) -> LoadPlan:
    """How a model is loaded with its saved settings. Raises RequestError or ModelNotFound where no drafter is there."""
    if local.kind == "drafter":
        raise RequestError(f"{local.id} is a drafter, no chat model: set it as the Draft model of its target")
    if local.problem is not None:
        raise RequestError(f"{local.id} cannot be loaded: {local.problem}", param="model")
    drafter, missing = None, None
    try:
        drafter = drafter_name(local, settings, library)
    except DFlashError as error:
        if not server.allow_fallback:
            raise
        missing = str(error)
    return LoadPlan(
        model=local.load_name,
        drafter=drafter,
        quantize=settings.draft_quant if drafter is not None else None,
        dtype=server.dtype,
        draft_window=settings.dflash_draft_window_size,
        draft_sink=settings.dflash_draft_sink_size,
        allow_fallback=server.allow_fallback,
        missing=missing,
    )


def started_with(plan: LoadPlan, server: ServerSettings, *, saved: bool) -> LoadPlan:
    """The plan of the model that `serve --model` names: its flags win, and without saved settings it is paired."""
    changes: dict[str, str | None] = {}
    if server.draft is not None:
        changes |= {"drafter": server.drafter, "missing": None}
    elif not saved:
        changes["drafter"] = AUTO
    if server.draft_quant is not None:
        changes["quantize"] = server.quantize
    return LoadPlan(**(asdict(plan) | changes))


def drafter_name(local: LocalModel, settings: ModelSettings, library: Library) -> str | None:
    """The drafter as `load` takes it; one that nobody has named is the published one, else the only one that fits.

    Raises RequestError or ModelNotFound where there is none on this machine.
    """
    if not settings.dflash_enabled:
        return None
    folder = library.resolve_drafter(settings.dflash_draft_model or automatic(local, library))
    embedded = [model for model in library.models() if model.source == "embedded" and model.path == folder]
    return DEMO if embedded else str(folder)


def automatic(local: LocalModel, library: Library) -> str:
    """The id of the drafter for a model whose settings name none. Raises RequestError where that is not clear.

    A quantised copy is one only where nothing else fits, so that making one changes nothing by itself.
    """
    if local.source == "embedded":
        return DEMO_DRAFTER
    fitting = [fit for fit in library.fits(local) if fit.fits]
    published = library.published(local)
    for fit in fitting:
        if published is not None and published in (fit.repo_id, fit.id):
            return fit.id
    fitting = [fit for fit in fitting if fit.quantized_from is None] or fitting
    if len(fitting) == 1:
        return fitting[0].id
    if fitting:
        names = ", ".join(fit.id for fit in fitting)
        raise RequestError(f"several drafters fit {local.id}: choose one of {names}", param="dflash_draft_model")
    hint = f"download {published}" if published else "none is published for it that is known here: train one"
    raise RequestError(
        f"no drafter on this machine fits {local.id}: {hint}, or turn DFlash off", param="dflash_draft_model"
    )


def cache_limits(settings: ModelSettings) -> CacheLimits:
    """What a pair may keep of its prefixes."""
    return CacheLimits(
        enabled=settings.dflash_in_memory_cache,
        max_entries=settings.dflash_in_memory_cache_max_entries,
        max_bytes=settings.dflash_in_memory_cache_max_bytes,
        ssd_bytes=settings.dflash_ssd_cache_max_bytes if settings.dflash_ssd_cache else 0,
    )
