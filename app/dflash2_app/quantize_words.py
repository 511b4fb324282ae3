"""What a quantised copy of a drafter is asked for and how far it is, in words. No elements."""

from __future__ import annotations

from collections.abc import Sequence

from dflash2_app.wording import Tone, percent, size
from dflash2_server.management import ModelView
from dflash2_server.work import QuantizeJob

BITS = {8: "8, nearly as good", 4: "4, as usual", 2: "2, the smallest"}
GROUPS = {32: "32, the finest", 64: "64, as usual", 128: "128"}
ACTIVATIONS = {16: "16 (bfloat16)", 32: "32 (float32)"}
# A scale and a bias of 16 bits for each group.
_GROUP_BITS = 32
_UNQUANTISED_BITS = 16


def spec_of(bits: int, activation: int, group: int) -> str:
    """As the command line takes it: w4a16:gs64."""
    return f"w{bits}a{activation}:gs{group}"


def size_estimate(bytes_now: int, bits: int, group: int) -> int:
    """Bytes, of weights in 16 bits: their norms and convolutions, which stay as they are, are few."""
    return round(bytes_now * (bits + _GROUP_BITS / group) / _UNQUANTISED_BITS)


def estimate_words(view: ModelView, bits: int, group: int) -> str:
    return f"About {size(size_estimate(view.size, bits, group))} instead of {size(view.size)}; the original stays."


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
