"""The errors that only the admin API tells in its own way: loads that fail, downloads that are not there, the Hub."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from dflash2_mlx.errors import CheckpointError, EngineBusy, PairError, TargetError
from dflash2_server.downloads.faults import Failure
from dflash2_server.downloads.task import ErrorKind
from dflash2_server.errors import Refusal, refusal
from dflash2_server.work import BenchJob, WorkRuns

log = logging.getLogger(__name__)

# 401 would be about the key of this server, which is not what the Hub refuses.
_HUB: dict[ErrorKind, int] = {
    "missing": 404,
    "gated": 403,
    "token": 403,
    "rate limit": 429,
    "offline": 503,
    "disk full": 507,
    "damaged": 502,
    "other": 502,
}


@contextmanager
def load_refusals() -> Iterator[None]:
    """A model that cannot be loaded as it is on disk and set: 409, since the request itself was right."""
    try:
        yield
    except (CheckpointError, PairError, TargetError) as error:
        message = " ".join(str(error).split())
        raise Refusal(refusal(409, message, code="load_failed", param="model")) from error


@contextmanager
def hub_refusals() -> Iterator[None]:
    """What the Hub or the way to it refuses, by its kind."""
    try:
        yield
    except Failure as failure:
        kind = failure.error.kind
        told = refusal(_HUB[kind], str(failure), code=f"hub_{kind.replace(' ', '_')}")
        wait = None if failure.wait is None else max(1, math.ceil(failure.wait))
        raise Refusal(replace(told, retry_after=wait)) from failure


@contextmanager
def work_refusals(kind: str) -> Iterator[None]:
    """Work of which there is one at a time: 409 while another one runs, with the kind of that in its code."""
    try:
        yield
    except WorkRuns as error:
        raise Refusal(refusal(409, str(error), code=f"{error.kind}_runs")) from error
    except EngineBusy as error:
        raise Refusal(refusal(409, " ".join(str(error).split()), code=f"{kind}_runs")) from error


def no_bench(id: str) -> Refusal:
    """There is no such bench."""
    message = f"there is no bench {id!r:.100}: GET /admin/api/bench lists them"
    return Refusal(refusal(404, message, code="bench_not_found", param="id"))


def not_measured(job: BenchJob) -> Refusal:
    """A bench without a result, yet or for good."""
    if not job.ended:
        message = f"the bench {job.id} runs still: follow GET /admin/api/bench/{job.id}/stream, or cancel it"
        return Refusal(refusal(409, message, code="bench_runs", param="id"))
    why = f": {job.error}" if job.error else ""
    message = f"the bench {job.id} was {job.state} before its first sample{why}"
    return Refusal(refusal(409, message, code="bench_without_samples", param="id"))


@contextmanager
def unshown(job: BenchJob) -> Iterator[None]:
    """A bench whose result is not what it seemed when it was read from disk: 409, and the log has the rest."""
    try:
        yield
    except Exception as error:  # whatever a figure of a wrong kind leads to
        log.warning("the bench %s cannot be shown", job.id, exc_info=True)
        message = f"the result of the bench {job.id} is damaged: measure again"
        raise Refusal(refusal(409, message, code="bench_damaged", param="id")) from error


def no_quantize_job(id: str) -> Refusal:
    """There is no such quantise job."""
    message = f"there is no quantise job {id!r:.100}: GET /admin/api/quantize lists them"
    return Refusal(refusal(404, message, code="quantize_not_found", param="id"))


def no_download(id: str) -> Refusal:
    """There is no such task."""
    message = f"there is no download {id!r:.100}: GET /admin/api/hf/tasks lists them"
    return Refusal(refusal(404, message, code="download_not_found", param="task"))
