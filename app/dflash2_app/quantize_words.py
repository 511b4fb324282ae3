"""What a quantised copy of a drafter is asked for and how far it is, in words. No elements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dflash2_app.wording import Tone, percent, size
from dflash2_mlx import facts
from dflash2_mlx.drafter.quantization import QuantSpec
from dflash2_mlx.errors import CheckpointError
from dflash2_server.management import ModelView
from dflash2_server.work import QuantizeJob

BITS = {8: "8, nearly as good", 4: "4, as usual", 2: "2, the smallest"}
GROUPS = {32: "32, the finest", 64: "64, as usual", 128: "128"}
ACTIVATIONS = {16: "16 (bfloat16)", 32: "32 (float32)"}


def spec_of(bits: int, activation: int, group: int) -> QuantSpec:
    """As the command line takes it once it is a text: w4a16:gs64."""
    return QuantSpec(weight_bits=bits, activation_bits=activation, group_size=group)


def estimate_words(tensors: facts.Tensors | None, spec: QuantSpec) -> str:
    """How large the copy will be. `tensors` are those of the drafter as it is; None: they cannot be read."""
    if tensors is None:
        return "How large it will be is told once it is written; the original stays."
    now = sum(tensor.size for tensor in tensors.values())
    after = facts.drafter_bytes(tensors, spec, item=facts.drafter_item(spec, 0))
    if after < now:
        return f"About {size(after)} instead of {size(now)}; the original stays."
    return f"About {size(after)}, which is larger than now ({size(now)}): what is not packed takes more room so."


def tensors_of(view: ModelView) -> facts.Tensors | None:
    """What the drafter's files declare; None where they cannot be read."""
    try:
        return facts.tensors(Path(view.path))
    except CheckpointError:
        return None


def can_be_quantised(view: ModelView) -> bool:
    return view.kind == "drafter" and view.problem is None and view.quantization is None


def job_of(jobs: Sequence[QuantizeJob], view: ModelView) -> QuantizeJob | None:
    """The newest one of a drafter."""
    return next((job for job in jobs if job.drafter == view.id), None)


def job_words(job: QuantizeJob) -> tuple[str, Tone]:
    """How far it is, or what came of it."""
    if job.state == "running":
        stage = " ".join(word for word in (job.stage, "" if job.share is None else percent(job.share)) if word)
        return f"{job.spec} to {job.name}: {stage or 'starting'}", "busy"
    if job.state == "completed":
        what = job.summary or ("" if job.bytes is None else size(job.bytes))
        return f"{job.name} is written" + (f": {what}" if what else ""), "good"
    if job.state == "cancelled":
        return f"{job.spec} to {job.name} was cancelled; nothing of it is left.", "idle"
    return f"{job.spec} to {job.name} failed: {job.error or 'for no reason that it told'}", "bad"
