"""What a model's row says, from its view alone. It knows no elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from dflash2_app.width_view import in_force_words
from dflash2_app.wording import Tone, count, percent, size
from dflash2_server.management import Estimate, ModelView, Unloaded

Choice = Literal["all", "loaded", "dflash", "favorite"]
CHOICES: dict[Choice, str] = {
    "all": "All models", "loaded": "Loaded", "dflash": "With DFlash on", "favorite": "Favorites",
}  # fmt: skip
MOVING = ("waiting", "loading", "unloading")


class Said(NamedTuple):
    """A text with its tone."""

    text: str
    tone: Tone


def name_of(view: ModelView) -> str:
    return view.settings.display_name or view.id


def facts(view: ModelView) -> tuple[str, ...]:
    """Size, type, quantisation, context and where it is from."""
    said = [size(view.size), view.model_type, view.quantization or "not quantised"]
    if view.context_length:
        said.append(f"context {count(view.context_length)}")
    if view.source == "embedded":
        said.append("part of this program")
    else:
        said.append(view.repo_id or view.path)
    return tuple(said)


def marks(view: ModelView) -> tuple[Said, ...]:
    """What was set for it that shows in the list."""
    settings = view.settings
    said = [
        Said(word, "info")
        for word, there in (
            ("default", settings.is_default), ("pinned", settings.is_pinned), ("hidden", settings.is_hidden),
        )
        if there
    ]  # fmt: skip
    if settings.model_alias:
        said.append(Said(f"alias {settings.model_alias}", "info"))
    if view.requires_reload:
        said.append(Said("reload waits until it is idle", "warn"))
    return tuple(said)


def dflash(view: ModelView) -> Said:
    """Whether DFlash is set and with what, or why it cannot be."""
    if not view.dflash_compatible:
        return Said(view.dflash_reason or "DFlash cannot be used with this model", "idle")
    fitting = [fit for fit in view.drafters if fit.fits]
    if view.settings.dflash_enabled:
        chosen = view.settings.dflash_draft_model
        if chosen:
            known = next((fit for fit in view.drafters if chosen in (fit.id, fit.repo_id)), None)
            words = f" ({known.engine}, block size {known.block_size})" if known else ""
            return Said(f"DFlash on, with {chosen}{words}", "good")
        if view.automatic_drafter:
            return Said(f"DFlash on, with {view.automatic_drafter} (chosen by itself)", "good")
        if fitting:
            return Said("DFlash is on, but several drafters fit: choose one in the settings", "warn")
        return Said("DFlash is on, but no drafter that fits is on disk", "warn")
    if fitting:
        return Said("DFlash off; drafters on disk that fit: " + ", ".join(fit.id for fit in fitting), "idle")
    if view.published_drafter:
        return Said(f"DFlash off; its drafter is published as {view.published_drafter}", "idle")
    return Said("DFlash off; no drafter on disk fits, and none is known for it", "idle")


def missing_drafter(view: ModelView) -> str | None:
    """The Hub id of the published drafter, where it is not on disk."""
    published = view.published_drafter
    there = {fit.repo_id for fit in view.drafters} | {fit.id for fit in view.drafters}
    if published is None or not view.dflash_compatible or published in there or published.split("/")[-1] in there:
        return None
    return published


def running_facts(view: ModelView) -> tuple[tuple[str, str], ...]:
    """Label and value of what a loaded pair does now; none where it is not loaded."""
    running = view.running
    if running is None:
        return ()
    figures = running.figures
    told = [
        ("Engine", running.engine),
        ("Block size", in_force_words(view)),
        ("Verify mode", running.verify_mode),
        ("Tokens per cycle", f"{figures.tokens_per_cycle:.2f}" if figures.cycles else "–"),
        ("Acceptance", acceptance(figures.acceptance_by_position)),
        ("Draft share", percent(figures.draft_share) if figures.cycles else "–"),
        ("Memory", size(running.memory_bytes)),
        ("Requests", f"{running.requests} now, {count(figures.requests)} in all"),
    ]
    if running.drafter:
        quantised = "" if running.draft_quant == "off" else f", {running.draft_quant}"
        told.insert(1, ("Drafter", f"{running.drafter}{quantised}"))
    return tuple(told)


def acceptance(positions: Sequence[float]) -> str:
    """By position: 86 71 58 %."""
    return " ".join(f"{100 * share:.0f}" for share in positions) + " %" if positions else "–"


def estimate_line(estimate: Estimate) -> Said:
    """One line before a load."""
    tones: dict[str, Tone] = {"fits": "idle", "tight": "warn", "does not fit": "bad", "unknown": "idle"}
    left = "" if estimate.available is None else f" of {size(estimate.available)} free"
    first = f"; unloads {', '.join(estimate.evicts)} first" if estimate.evicts else ""
    verdict = "" if estimate.verdict == "unknown" else f": {estimate.verdict}"
    return Said(f"needs about {size(estimate.needed)}{left}{verdict}{first}", tones[estimate.verdict])


def unloaded_words(name: str, outcome: Unloaded) -> str:
    return f"{name} is unloaded: {size(max(0, outcome.freed))} freed, {size(outcome.after)} still held"


def matches(view: ModelView, text: str, choice: Choice) -> bool:
    """Whether a row is shown for a search text (all its words) and a choice."""
    wanted = {
        "all": True,
        "loaded": view.state != "unloaded",
        "dflash": view.settings.dflash_enabled,
        "favorite": view.settings.is_favorite,
    }[choice]
    seen = " ".join(
        (view.id, name_of(view), view.repo_id or "", view.model_type, view.quantization or "",
         view.settings.model_alias or "", view.settings.description or "")
    ).casefold()  # fmt: skip
    return wanted and all(word in seen for word in text.casefold().split())
