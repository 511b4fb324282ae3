"""What a model_settings.json holds: the document as it is, and the settings of each model that it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .files import parse_object
from .model import ModelSettings, from_stored, shown

VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Content:
    """One state of the file. `faults` are by model and by field, in words; the fields are kept in the document."""

    document: dict[str, Any]
    version: int = VERSION
    settings: dict[str, ModelSettings] = field(default_factory=dict)
    faults: dict[str, dict[str, str]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    damage: str | None = None  # why it is no such file at all


def empty() -> Content:
    return Content(document={"version": VERSION, "models": {}})


def parse(content: bytes, path: Path) -> Content:
    """The file's content; what is wrong in one model's entry leaves the others alone."""
    try:
        document = parse_object(content)
        version = _version(document)
        models = _models(document, version)
    except ValueError as error:
        return Content(document={}, damage=str(error))
    return interpret({"version": VERSION} | document | {"models": models}, version, path)


def interpret(document: dict[str, Any], version: int, path: Path) -> Content:
    """What a document with `models` means; `path` is for the messages."""
    settings: dict[str, ModelSettings] = {}
    faults: dict[str, dict[str, str]] = {}
    for model_id, entry in document["models"].items():
        settings[model_id], found = from_stored(entry)
        faults[model_id] = found
    _one_of_each(settings, faults)
    newer = [f"{path} is of version {version}, of a newer program: it is read, and not written"]
    problems = [
        f"{path}, model {shown(model_id)}: {fault}; the default is in force"
        for model_id, found in faults.items()
        for fault in found.values()
    ]
    return Content(
        document=document,
        version=version,
        settings=settings,
        faults={model_id: found for model_id, found in faults.items() if found},
        problems=(*(newer if version > VERSION else []), *problems),
    )


def _one_of_each(settings: dict[str, ModelSettings], faults: dict[str, dict[str, str]]) -> None:
    """One default model, and one model for an alias: the first has it."""
    default: str | None = None
    names: dict[str, str] = {}
    for model_id, found in settings.items():
        if found.is_default and default is not None:
            faults[model_id]["is_default"] = f"is_default is set for {default!r} too"
            settings[model_id] = found.model_copy(update={"is_default": False})
        default = model_id if found.is_default and default is None else default
        alias = found.model_alias
        if alias and alias in names:
            faults[model_id]["model_alias"] = f"model_alias {alias!r} belongs to {names[alias]!r}"
            settings[model_id] = settings[model_id].model_copy(update={"model_alias": None})
        elif alias:
            names[alias] = model_id


def _version(document: dict[str, Any]) -> int:
    version = document.get("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int | float) or version != version // 1 or version < 1:
        raise ValueError(f"its version is {shown(version)}")
    return int(version)


def _models(document: dict[str, Any], version: int) -> dict[str, Any]:
    models = document.get("models", {})
    if version > VERSION and not isinstance(models, dict):
        return {}  # of a shape that only the newer program knows, which is no damage
    if not isinstance(models, dict):
        raise ValueError(f"its models are {shown(models)}, not a JSON object")
    return models
