"""What the admin API and the pages ask of the model manager, and what it answers with. It knows no web."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dflash2_mlx.settings.model import ModelSettings

if TYPE_CHECKING:
    from dflash2_mlx.decode.exactness_report import ExactnessReport
    from dflash2_mlx.decode.width_figures import WidthFigures
    from dflash2_mlx.settings.server import ServerSettings, SettingInForce
    from dflash2_server.downloads.queue import Downloads
    from dflash2_server.events import EventBus
    from dflash2_server.inference import Service
    from dflash2_server.logs import LogBuffer
    from dflash2_server.work import BenchJobs, Quantizations

ModelState = Literal["unloaded", "waiting", "loading", "ready", "unloading", "failed"]
DraftState = Literal["active", "fallback", "off"]
Verdict = Literal["fits", "tight", "does not fit", "unknown"]


@dataclass(frozen=True, kw_only=True)
class DrafterFit:
    """A drafter on disk, seen from one target. `reasons` are empty where it fits."""

    id: str
    repo_id: str | None
    engine: str  # dflash or dflash2
    block_size: int
    reasons: tuple[str, ...] = ()
    quantized_from: str | None = None  # of a quantised copy: what it was made from

    @property
    def fits(self) -> bool:
        return not self.reasons


@dataclass(frozen=True, kw_only=True)
class PairFigures:
    """What a loaded pair has done since it was loaded; ended and running requests together. Seconds are sums.

    `draft_seconds`, `verify_seconds` and `commit_seconds` are estimates from cycles that were timed by part (None
    before the first).
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    cycles: int = 0
    tokens_per_cycle: float = 1.0
    draft_share: float = 0.0  # accepted drafts over output tokens
    acceptance_by_position: tuple[float, ...] = ()
    prompt_seconds: float = 0.0
    generation_seconds: float = 0.0
    draft_seconds: float | None = None
    verify_seconds: float | None = None
    commit_seconds: float | None = None
    cache_hits: int = 0
    cache_misses: int = 0
    cache_bytes: int = 0
    cache_entries: int = 0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A loaded pair: what runs, never what was asked for."""

    engine: str  # plain, dflash or dflash2
    state: DraftState  # off: no drafter was asked for, or speculation is turned off
    reason: str | None  # of the fallback
    drafter: str | None
    block_size: int  # in force for requests that name none
    verify_mode: str
    draft_quant: str
    context_length: int | None
    loaded_at: float  # seconds since the epoch
    last_used: float
    requests: int  # running and waiting
    memory_bytes: int  # weights, measured at load
    idle_seconds_left: float | None  # until the idle limit unloads it; None: never
    figures: PairFigures
    notes: tuple[str, ...] = ()  # settings that are kept but not in force, each with its reason
    widths: WidthFigures | None = None  # what the width controller knows and does; None without a drafter
    exactness: ExactnessReport | None = None  # whether a verify gives the single-row logits here


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes that a load would take, told before it. `available` is what is left now; `evicts` would go first."""

    target_bytes: int
    drafter_bytes: int
    cache_bytes: int  # of the context named in `context`
    context: int
    available: int | None
    verdict: Verdict
    evicts: tuple[str, ...] = ()

    @property
    def needed(self) -> int:
        return self.target_bytes + self.drafter_bytes + self.cache_bytes


@dataclass(frozen=True, kw_only=True)
class ModelView:
    """A model or drafter on disk, with everything that is known of it now."""

    id: str
    kind: Literal["model", "drafter"]
    path: str
    repo_id: str | None
    source: Literal["folder", "hub", "embedded"]
    size: int  # bytes on disk
    model_type: str
    quantization: str | None  # such as "4-bit, group 64"; None: not quantised
    context_length: int | None
    settings: ModelSettings
    state: ModelState = "unloaded"
    stage: str | None = None  # of a load: convert, target, drafter, …
    share: float | None = None  # of that stage, 0 to 1
    error: str | None = None  # of the last load
    running: Running | None = None
    requires_reload: tuple[str, ...] = ()  # saved settings that are in force only after a reload
    problem: str | None = None  # why it cannot be loaded at all
    dflash_compatible: bool = False
    dflash_reason: str | None = None  # why not
    drafters: tuple[DrafterFit, ...] = ()  # of a model: those on disk, fitting ones first
    automatic_drafter: str | None = None  # of a model: id of the one that it gets where its settings name none
    published_drafter: str | None = None  # of a model: Hub id of the drafter known for it
    targets: tuple[str, ...] = ()  # of a drafter: ids of the models on disk that it fits
    targets_reason: str | None = None  # of a drafter: why it fits none
    deletable: bool = False


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The outcome of saving a model's settings."""

    settings: ModelSettings
    changed: tuple[str, ...]
    requires_reload: tuple[str, ...]  # of the changed ones, those that wait for a reload
    reload: Literal["none", "done", "when idle"]  # of a loaded model


@dataclass(frozen=True, kw_only=True)
class Unloaded:
    """Bytes that MLX held before and after; `freed` is measured."""

    before: int
    after: int

    @property
    def freed(self) -> int:
        return self.before - self.after


@dataclass(frozen=True, kw_only=True)
class ActiveRequest:
    """A request on the engine. `phase`: waiting, prefill (with `prompt_done`) or decode."""

    number: int
    model: str
    phase: Literal["waiting", "prefill", "decode"]
    seconds: float  # since it came
    prompt_tokens: int
    prompt_done: int
    cached_tokens: int
    generation_tokens: int
    tokens_per_second: float
    tokens_per_cycle: float
    engine: str


@dataclass(frozen=True, kw_only=True)
class LiveFigures:
    """One sample of the whole process, for plots. Bytes and tokens per second over the last second or so."""

    time: float  # seconds since the epoch
    prompt_tps: float
    generation_tps: float
    tokens_per_cycle: float  # over the recent cycles; 1 in plain decoding
    running: int
    waiting: int
    weights_bytes: int
    prefix_cache_bytes: int
    request_bytes: int  # active memory that is neither: caches of running requests and temporaries
    free_cache_bytes: int  # buffers that MLX keeps for reuse
    memory_limit: int
    by_model: Mapping[str, PairFigures] = field(default_factory=dict)


class Management(Protocol):
    """The model manager. Everything is called on the event loop; what is slow is awaited. Raises DFlashError.

    `events` tells of every change: kinds model (data: a view's id and state), load (id, stage, share), download (a
    task), settings (id and changed names), figures (a `LiveFigures`, each second while something happens), library
    (the folders were looked at again), removed, bench and quantize (see `work`).
    """

    @property
    def service(self) -> Service: ...

    @property
    def settings(self) -> ServerSettings: ...

    @property
    def downloads(self) -> Downloads: ...

    @property
    def benches(self) -> BenchJobs: ...

    @property
    def quantizations(self) -> Quantizations: ...

    @property
    def events(self) -> EventBus: ...

    @property
    def logs(self) -> LogBuffer: ...

    def models(self) -> list[ModelView]:
        """Everything on disk that is complete: models first, favourites before the rest, then drafters."""
        ...

    def model(self, name: str) -> ModelView:
        """By id, repository id or alias. Raises ModelNotFound."""
        ...

    async def refresh(self) -> None:
        """Look at the folders again."""
        ...

    def estimate(self, name: str, changes: Mapping[str, Any] | None = None) -> Estimate:
        """What a load would take with the saved settings, and `changes` over them."""
        ...

    async def load(self, name: str, *, force: bool = False) -> ModelView:
        """Load, or join a load under way; returns when it is ready. `force` loads what the estimate says is too big.

        Raises ModelNotFound, RequestError, EngineBusy where it does not fit beside what is pinned or busy, and what
        loading raises: then the view's state is failed and its error says why.
        """
        ...

    async def unload(self, name: str) -> Unloaded:
        """Wait for its requests to end, then unload. Raises ModelNotFound, RequestError where it is not loaded."""
        ...

    async def save_settings(self, name: str, changes: Mapping[str, Any]) -> Saved:
        """Any subset of fields; None clears one. Nothing is saved where one value is wrong (RequestError, param).

        What needs a reload is in force after one, which happens at once where the model is idle, else when it is.
        """
        ...

    async def delete(self, name: str) -> int:
        """Delete from disk; bytes freed. Raises RequestError for what is loaded, embedded or outside the folders."""
        ...

    def activity(self) -> Sequence[ActiveRequest]:
        """Running requests and those that wait, in order."""
        ...

    def figures(self) -> LiveFigures:
        """The latest sample."""
        ...

    def history(self) -> Sequence[LiveFigures]:
        """Samples of the last five minutes, the oldest first."""
        ...

    def global_settings(self) -> list[SettingInForce]:
        """The server's settings with where each comes from."""
        ...

    async def save_global_settings(self, changes: Mapping[str, Any]) -> list[SettingInForce]:
        """Write to server.json what is given; None clears. Those that can come into force at once do."""
        ...
