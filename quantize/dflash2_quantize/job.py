"""One quantisation from beginning to end: check, load, search, measure, write, measure again, tell, upload."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from dflash2_mlx.drafter.quantization import QuantSpec
from dflash2_mlx.errors import RequestError
from dflash2_mlx.hub import shown_name
from dflash2_mlx.pairs import DEMO

from .card import Measured, write_card
from .checkpoint import Written, stored_bytes, write_checkpoint
from .folder import check_output, check_space
from .measure import Acceptance, record
from .packing import Plan, plan_for
from .search import Found, Limit, packings, search
from .source import Source, open_source
from .target import MeasuredTarget, Measuring, load_measured
from .trials import Trials
from .upload import check_upload, upload

Stages = Callable[[str, float], None]


class Report(Protocol):
    """Who is told: `stages` gives the callback for progress, the others are called once."""

    def stages(self) -> AbstractContextManager[Stages]: ...

    def found(self, found: Found) -> None: ...

    def done(self, written: Written, summary: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Job:
    """What was asked for. With a `limit` the bits of `spec` are not used: the search chooses them."""

    drafter: str
    out: Path
    spec: QuantSpec
    target: str | None = None
    limit: Limit | None = None
    measuring: Measuring = field(default_factory=Measuring)
    repository: str | None = None
    private: bool = False
    force: bool = False


def run_job(job: Job, report: Report) -> Written:
    """Do it all. Raises a DFlashError; until the checkpoint is whole there is nothing in `job.out`."""
    if job.limit and job.target is None:
        raise RequestError("--search measures what packing costs: give the target with --target", param="target")
    if job.repository:
        check_upload(job.repository)
    with report.stages() as stages:
        source = open_source(job.drafter)
        job.measuring.check(source.config)
        check_output(job.out, source.folder, force=job.force)
        plan = _first_plan(job, source)
        target = load_measured(job.target, source.config, job.measuring, stages) if job.target else None
        found = _search(job, job.limit, source, target, stages) if job.limit and target else None
    if found:
        plan = found.plan
        report.found(found)
    with report.stages() as stages:
        before = target.acceptance(source.folder, partial(stages, "measuring before")) if target else None
        written = write_checkpoint(source, job.out, plan, job.spec.dtype, progress=partial(stages, "writing"))
        write_card(source, written, _shown_spec(job), _command(job), None)
        after = target.acceptance(job.out, partial(stages, "measuring after")) if target else None
        measured = _measured(job, source, target, before, after)
        if measured:
            write_card(source, written, _shown_spec(job), _command(job), measured)
        if job.repository:
            stages("uploading", 0.0)
            upload(job.out, job.repository, private=job.private)
            stages("uploading", 1.0)
    report.done(written, _summary(job, source, written, measured))
    return written


def _first_plan(job: Job, source: Source) -> Plan:
    """Checks that need no weights; the plan of the spec, which a search replaces."""
    model = source.model(job.spec.dtype)
    if job.limit:
        packings(model, job.spec.group_size)
        return {}
    plan = plan_for(model, job.spec)
    check_space(job.out, stored_bytes(source, plan, job.spec.dtype))
    return plan


def _search(job: Job, limit: Limit, source: Source, target: MeasuredTarget, stages: Stages) -> Found:
    recordings = record(
        target.pair.target,
        source.config.target_layer_ids,
        target.prompts,
        tokens=job.measuring.tokens,
        beyond=source.config.block_size,
        eos_token_ids=target.eos,
        progress=partial(stages, "recording a text"),
    )
    model = source.model(target.pair.target.drafter_dtype)
    trials = Trials(
        target.pair.target.tapped(source.config.target_layer_ids),
        model,
        recordings,
        dtype=job.spec.dtype,
        block_size=job.measuring.block_size,
    )
    return search(model, job.spec.group_size, job.spec.dtype, trials, limit, partial(stages, "searching"))


def _measured(
    job: Job, source: Source, target: MeasuredTarget | None, before: Acceptance | None, after: Acceptance | None
) -> Measured | None:
    if target is None or before is None or after is None:
        return None
    return Measured(
        shown_name(target.pair.model_name),
        len(target.prompts),
        target.digest,
        job.measuring.tokens,
        job.measuring.block_size or source.config.block_size,
        before,
        after,
    )


def _shown_spec(job: Job) -> str:
    spec = job.spec
    return f"by module, a{spec.activation_bits}:gs{spec.group_size}" if job.limit else str(spec)


def _command(job: Job) -> list[str]:
    """The command line that does it again, without paths of this machine."""
    command = ["dflash2-mlx", "quantize", _named(job.drafter), "--spec", str(job.spec), "--out", job.out.name]
    measuring, limit = job.measuring, job.limit
    if job.target:
        command += ["--target", _named(job.target)]
        command += ["--prompts", str(measuring.prompts), "--tokens", str(measuring.tokens)]
        command += ["--block-size", str(measuring.block_size)] if measuring.block_size else []
    if limit:
        bound = ["--max-size", str(limit.max_bytes)] if limit.max_bytes else ["--min-acceptance", str(limit.min_share)]
        command += ["--search", *bound]
    return command


def _named(name: str) -> str:
    """As a command takes it: a Hub id or `demo`; of a folder a place to fill in and its name."""
    shown = shown_name(name)
    return shown if name == DEMO or "/" in shown else f"PATH/TO/{shown}"


def _summary(job: Job, source: Source, written: Written, measured: Measured | None) -> str:
    """One line."""
    parts = [f"{source.bytes / 1e6:,.1f} MB to {written.bytes / 1e6:,.1f} MB"]
    if written.errors:
        worst = max(written.errors, key=lambda path: written.errors[path])
        parts.append(f"largest error {written.errors[worst]:.3f} ({worst})")
    if measured:
        before, after = measured.before.tokens_per_cycle, measured.after.tokens_per_cycle
        parts.append(f"tokens per cycle {before:.3f} to {after:.3f}")
        share = job.limit.min_share if job.limit else None
        if share is not None and after < share * before:
            parts.append(
                f"WARNING: decoding keeps {after / before:.4f} of them, less than the {share:g} asked for, which the "
                "choice had along the recorded text"
            )
    if job.repository:
        parts.append(f"uploaded to {job.repository}")
    return "; ".join(parts)
