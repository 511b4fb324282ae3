"""Taking over another model_settings.json, oMLX's as it is."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import RequestError
from . import files
from .content import VERSION, Content, interpret, parse
from .model import ModelSettings, from_stored, not_in_force, shown


@dataclass(frozen=True, kw_only=True)
class ImportReport:
    """What became of an imported file, by model."""

    imported: dict[str, tuple[str, ...]] = field(default_factory=dict)  # fields that were taken over
    ignored: dict[str, tuple[str, ...]] = field(default_factory=dict)  # kept, and unknown to this program
    not_in_force: dict[str, dict[str, str]] = field(default_factory=dict)  # field: why
    notes: list[str] = field(default_factory=list)  # what is ignored or not in force, in words, a line each


def merge(own: Content, path: Path) -> tuple[dict[str, Any], ImportReport]:
    """The own document with the file's entries over it, and what became of each. Raises RequestError (param `file`)."""
    other = _read(path)
    document = copy.deepcopy(own.document)
    models = document["models"]
    report = ImportReport()
    taken = {model_id: _take(models, model_id, entry, report) for model_id, entry in other.document["models"].items()}
    _only_default(models, [model_id for model_id, fields in taken.items() if "is_default" in fields])
    after = interpret(document, VERSION, path)
    for model_id, fields in taken.items():
        _report(report, model_id, fields, after)
    return document, report


def _read(path: Path) -> Content:
    try:
        found = files.read(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}", param="file") from None
    if found is None:
        raise RequestError(f"there is no file {path}", param="file")
    content = parse(found[0], path)
    if content.damage is not None:
        raise RequestError(f"{path} is damaged, nothing was imported: {content.damage}", param="file")
    if content.version > VERSION:
        raise RequestError(
            f"{path} is of version {content.version}, this program knows version {VERSION}: nothing was imported",
            param="file",
        )
    return content


def _take(models: dict[str, Any], model_id: str, entry: Any, report: ImportReport) -> dict[str, Any]:
    """Put a model's entry over the own one; what was taken. A wrong value never replaces one that is right."""
    if not isinstance(entry, dict):
        report.notes.append(f"{model_id}: its entry is {shown(entry)}, not a JSON object: it was left out")
        return {}
    own = models.get(model_id)
    own = own if isinstance(own, dict) else {}
    own_faults, faults = from_stored(own)[1], from_stored(entry)[1]
    known = ModelSettings.model_fields
    taken = {
        name: value
        for name, value in entry.items()
        if (value is not None or name not in known)
        and (name not in faults or name == "dflash_ssd_cache" or name not in own or name in own_faults)
    }
    for name in entry.keys() - taken.keys():
        if name in faults:
            reason = f"{faults[name]}; {shown(own[name])} stays"
            report.not_in_force.setdefault(model_id, {})[name] = reason
            report.notes.append(f"{model_id}: {reason}")
    if taken:
        models[model_id] = own | taken
    return taken


def _only_default(models: dict[str, Any], imported: list[str]) -> None:
    """A default model that is imported is the one from now on."""
    wanted = [model_id for model_id in imported if models[model_id]["is_default"] is True]
    for model_id, entry in models.items():
        if wanted and model_id not in wanted and isinstance(entry, dict):
            entry.pop("is_default", None)


def _report(report: ImportReport, model_id: str, taken: dict[str, Any], after: Content) -> None:
    settings = after.settings.get(model_id, ModelSettings())
    faults = after.faults.get(model_id, {})
    unknown = tuple(name for name in taken if name not in ModelSettings.model_fields)
    kept = not_in_force(settings)
    without = {name: kept[name] for name in taken if name in kept and name not in unknown} | faults
    imported = tuple(name for name in taken if name not in unknown and name not in faults)
    if taken:
        report.imported[model_id] = imported
    if unknown:
        report.ignored[model_id] = unknown
        report.notes.append(f"{model_id}: unknown to this program, kept and ignored: {', '.join(map(shown, unknown))}")
    if without:
        report.not_in_force[model_id] = report.not_in_force.get(model_id, {}) | without
        report.notes.extend(f"{model_id}: not in force: {reason}" for reason in without.values())
