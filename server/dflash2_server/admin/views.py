"""The JSON shapes of the admin API. Sizes in bytes, times in seconds since the epoch, durations in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import Any

from dflash2_mlx.decode.width_figures import WidthFigures
from dflash2_mlx.settings.model import ModelSettings, field_facts, not_in_force, stored
from dflash2_mlx.settings.server import SettingInForce
from dflash2_server.management import Estimate, ModelView, Running, Saved, Unloaded


def model_json(view: ModelView) -> dict[str, Any]:
    """A `ModelView` with its own names; `loaded` is beside them, and `settings` are those that are stored."""
    body = {field.name: getattr(view, field.name) for field in fields(view)}
    return body | {
        "loaded": view.running is not None,
        "settings": stored(view.settings),
        "running": None if view.running is None else running_json(view.running),
        "drafters": [asdict(fit) | {"fits": fit.fits} for fit in view.drafters],
    }


def running_json(running: Running) -> dict[str, Any]:
    """A loaded pair as it runs, with its figures and those of its width controller."""
    return asdict(replace(running, widths=None, exactness=None)) | {
        "widths": None if running.widths is None else widths_json(running.widths),
        "exactness": None if running.exactness is None else running.exactness.as_dict(),
    }


def widths_json(widths: WidthFigures) -> dict[str, Any]:
    """By width from 1 on, which is plain decoding; the depths of `costs` are texts, as JSON has them."""
    return {field.name: getattr(widths, field.name) for field in fields(widths)} | {
        "costs": {str(depth): seconds for depth, seconds in widths.costs.items()},
        "acceptance": dict(widths.acceptance),
    }


def pair_json(view: ModelView) -> dict[str, Any]:
    """What is reported of a loaded pair. The view must have one."""
    assert view.running is not None
    return {"id": view.id, **running_json(view.running)}


def settings_json(view: ModelView) -> dict[str, Any]:
    """A model's settings: as stored, what each field comes to, what of it does nothing, and how a form shows it."""
    return {
        "id": view.id,
        "settings": stored(view.settings),
        "effective": effective(view.settings),
        "requires_reload": view.requires_reload,
        "ignored": list(view.settings.model_extra or {}),
        "not_in_force": not_in_force(view.settings),
        "schema": [asdict(facts) for facts in field_facts()],
    }


def saved_json(saved: Saved) -> dict[str, Any]:
    """`requires_reload` are the settings that wait for a reload, `reload` what became of it: none, done, when idle."""
    return {
        "settings": stored(saved.settings),
        "effective": effective(saved.settings),
        "changed": saved.changed,
        "requires_reload": saved.requires_reload,
        "reload": saved.reload,
    }


def effective(settings: ModelSettings) -> dict[str, Any]:
    """By name what each field comes to: null what it stands for, a value that this version cannot run the default."""
    idle = not_in_force(settings)
    found = {}
    for facts in field_facts():
        value = facts.default if facts.name in idle else getattr(settings, facts.name)
        found[facts.name] = facts.null_means if value is None else value
    return found


def estimate_json(view: ModelView, estimate: Estimate) -> dict[str, Any]:
    """An `Estimate`, with the sum that its verdict is about."""
    return {"id": view.id, **asdict(estimate), "needed": estimate.needed}


def unloaded_json(view: ModelView, unloaded: Unloaded) -> dict[str, Any]:
    """`freed` is what MLX held before less what it holds after."""
    return {"id": view.id, **asdict(unloaded), "freed": unloaded.freed}


def globals_json(settings: Iterable[SettingInForce]) -> dict[str, Any]:
    """The server's settings by name. A secret's value is only whether it is set."""
    found = {setting.name: asdict(setting) for setting in settings}
    return {"settings": {name: {k: v for k, v in facts.items() if k != "name"} for name, facts in found.items()}}
