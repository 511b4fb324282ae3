"""Figures and states in words. Sizes are decimal (1 GB is 10^9 bytes), as disks and the Hub count."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

from dflash2_server.management import ModelView

Tone = Literal["good", "busy", "warn", "bad", "idle", "info"]

_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def size(count: float | None) -> str:
    """Bytes: 2.28 GB, 512 MB, 12 B; a dash where unknown."""
    if count is None:
        return "–"
    for unit, name in _SIZES:
        if abs(count) >= unit:
            return f"{three_digits(count / unit)} {name}"
    return f"{count:.0f} B"


def rate(bytes_per_second: float | None) -> str:
    return "–" if not bytes_per_second else f"{size(bytes_per_second)}/s"


def three_digits(number: float) -> str:
    """2.28, 22.8, 228: never longer than it is exact."""
    decimals = 2 if abs(number) < 9.995 else 1 if abs(number) < 99.95 else 0
    return f"{number:.{decimals}f}"


def seconds(count: float | None) -> str:
    """A time left: 45 s, 3 min, 1 h 20 min, 2 d 3 h; a dash where unknown."""
    if count is None:
        return "–"
    whole = max(0, round(count))
    if whole < 60:
        return f"{whole} s"
    minutes = round(whole / 60)
    hours, minutes = divmod(minutes, 60)
    if not hours:
        return f"{minutes} min"
    days, hours = divmod(hours, 24)
    if not days:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{days} d {hours} h" if hours else f"{days} d"


def count(number: int | None) -> str:
    """With thin spaces, as 262 144; a dash where unknown."""
    return "–" if number is None else f"{number:,}".replace(",", "\u202f")


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def clock(elapsed: float) -> str:
    """Since a start: 0:04:10."""
    return str(timedelta(seconds=int(elapsed)))


def state_chip(view: ModelView) -> tuple[str, Tone]:
    """The state of a model in a word or two, with its tone."""
    if view.problem:
        return "cannot be loaded", "bad"
    if view.state == "ready" and view.running is not None and view.running.state == "fallback":
        return "ready, without its drafter", "warn"
    if view.state == "loading":
        return progress_words(view), "busy"
    words: dict[str, tuple[str, Tone]] = {
        "unloaded": ("not loaded", "idle"),
        "waiting": ("waiting to load", "busy"),
        "ready": ("ready", "good"),
        "unloading": ("unloading", "busy"),
        "failed": ("failed", "bad"),
    }
    return words[view.state]


def progress_words(view: ModelView) -> str:
    """Of a load: loading target 45 %."""
    words = ["loading"]
    if view.stage:
        words.append(view.stage)
    if view.share is not None:
        words.append(percent(view.share))
    return " ".join(words)


def reason(view: ModelView) -> str | None:
    """Why a model is not as it was asked for."""
    if view.problem:
        return view.problem
    if view.state == "failed":
        return view.error
    if view.running is not None and view.running.state == "fallback":
        return view.running.reason
    return None
