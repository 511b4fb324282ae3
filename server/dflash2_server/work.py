"""Long work of the model manager that pages and clients follow: benches and quantise jobs, and who runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dflash2_mlx.errors import EngineBusy

if TYPE_CHECKING:
    from dflash2_mlx.bench.model import Plan, Result, Sample

WorkState = Literal["running", "completed", "cancelled", "failed"]


class WorkRuns(EngineBusy):
    """Work of the kind `kind` runs, and what was asked for may not run beside it: they would share the machine."""

    def __init__(self, message: str, *, kind: Literal["bench", "quantize"]) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class BenchJob:
    """A bench as it is now. `done` of `total` samples are there; `samples` grow as they come.

    `result` is there once it has ended with any samples, also where it was cancelled or failed. `stage` is load,
    warm-up, sample, or cancelling: what runs has to come to its end.
    """

    id: str
    model: str
    state: WorkState
    created: float  # seconds since the epoch
    request: Mapping[str, Any] = field(default_factory=dict)  # as it was asked for, the model left out
    stage: str = "sample"
    done: int = 0
    total: int = 0
    seconds_left: float | None = None  # an estimate, once its first samples are there
    error: str | None = None
    samples: tuple[Sample, ...] = ()
    plan: Plan | None = None  # once it is made: pages tell by it what runs, and figures of the samples so far
    result: Result | None = None

    @property
    def ended(self) -> bool:
        return self.state != "running"

    def summary(self) -> dict[str, Any]:
        """As JSON, without samples and result: for lists and events."""
        names = ("id", "model", "state", "created", "stage", "done", "total", "seconds_left", "error")
        return {name: getattr(self, name) for name in names} | {"request": dict(self.request)}

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the samples so far; the result has a form of its own (bench.results)."""
        return self.summary() | {"samples": [sample_json(sample) for sample in self.samples]}


@dataclass(frozen=True, kw_only=True)
class QuantizeJob:
    """A drafter on its way to a quantised copy on disk. `name` is the copy's folder, its id in the library then."""

    id: str
    drafter: str
    spec: str  # such as w4a16:gs64
    name: str
    state: WorkState
    created: float  # seconds since the epoch
    stage: str | None = None
    share: float | None = None  # of that stage, 0 to 1
    error: str | None = None
    path: str | None = None  # of the copy, once it is there
    bytes: int | None = None  # of its files
    summary: str | None = None  # what came of it, in a sentence

    @property
    def ended(self) -> bool:
        return self.state != "running"

    def as_dict(self) -> dict[str, Any]:
        """As JSON: for events and the API."""
        return asdict(self)


class BenchJobs(Protocol):
    """Benches, one at a time. Called on the event loop; nothing waits. Changes are events of the kind bench.

    The data of an event is `BenchJob.summary()`, and `sample` is the sample that has just come (as JSON), or None.
    """

    def start(self, model: str, request: Mapping[str, Any]) -> BenchJob:
        """Begin one on a model, which is loaded first where it is not.

        `request` takes block_sizes, verify_modes, kinds, prompts_per_kind, max_tokens, rounds, temperatures and
        depths, each with a default. Raises ModelNotFound, RequestError by the field (also where its settings or its
        drafter leave nothing to compare), WorkRuns where a bench or a quantise job runs.
        """
        ...

    def get(self, id: str) -> BenchJob:
        """Raises RequestError (param bench) for an unknown one, as `cancel` does."""
        ...

    def cancel(self, id: str) -> BenchJob:
        """End it soon; the samples that are there are kept. Raises RequestError where it has ended."""
        ...

    def list(self) -> Sequence[BenchJob]:
        """The newest first, those of earlier runs of the server too."""
        ...


class Quantizations(Protocol):
    """Quantise jobs, one at a time. Called on the event loop; nothing waits. Changes are events of the kind quantize.

    The data of an event is `QuantizeJob.as_dict()`.
    """

    def start(self, drafter: str, spec: str, name: str | None = None) -> QuantizeJob:
        """Write a quantised copy of a drafter; `name` None is the drafter's with the spec.

        Raises ModelNotFound, RequestError by the field (a name that exists, a drafter that is quantised already),
        WorkRuns where a quantise job or a bench runs.
        """
        ...

    def get(self, id: str) -> QuantizeJob:
        """Raises RequestError (param job) for an unknown one, as `cancel` does."""
        ...

    def cancel(self, id: str) -> QuantizeJob:
        """End it at once; nothing of it stays on disk. Raises RequestError where it has ended."""
        ...

    def list(self) -> Sequence[QuantizeJob]:
        """Those since the server's start, the newest first."""
        ...


def sample_json(sample: Sample) -> dict[str, Any]:
    """A sample with its rate."""
    return asdict(sample) | {"tokens_per_second": sample.tokens_per_second}
