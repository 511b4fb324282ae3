"""model_settings.json: the settings of all models in one file, shared by every process that has it open.

The file is `{"version": 1, "models": {id: {field: value}}}`, with oMLX's names. What it holds and this program does not
understand is kept in every write.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import RequestError
from . import files, server
from .content import VERSION, Content, empty, parse
from .importing import ImportReport, merge
from .model import ModelSettings, changed, shown

__all__ = ["ImportReport", "ModelSettingsStore", "default_path"]


def default_path() -> Path:
    """Where they are kept: beside server.json."""
    return server.default_file().with_name("model_settings.json")


class ModelSettingsStore:
    """The settings of the models, by id. Every call sees what the file holds at that moment; any thread may call.

    Raises DFlashError where the file cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path
        self._lock = threading.RLock()
        self._content: Content = empty()
        self._mark: files.Mark | None = None
        self._set_aside: list[str] = []

    @property
    def problems(self) -> list[str]:
        """What is wrong with the file, a line each: files that were set aside, and values that are not in force."""
        with self._lock:
            return [*self._set_aside, *self._now().problems]

    def get(self, model_id: str) -> ModelSettings:
        """The settings in force for a model; defaults where the file says nothing of it."""
        with self._lock:
            return self._now().settings.get(model_id, ModelSettings())

    def all(self) -> dict[str, ModelSettings]:
        """The settings of every model that the file names."""
        with self._lock:
            return dict(self._now().settings)

    def put(self, model_id: str, changes: Mapping[str, Any]) -> ModelSettings:
        """Change some fields of a model (None clears one) and save; nothing is saved where one value is wrong.

        A model that becomes the default is the only one. Raises RequestError with `param`.
        """
        if not model_id.strip():
            raise RequestError(f"the model's id is {shown(model_id)}: name a model", param="model")
        with self._lock, files.locked(self.path):
            content = self._writable()
            after = changed(content.settings.get(model_id, ModelSettings()), changes)
            if "model_alias" in changes:
                _check_alias(content, model_id, after)
            document = copy.deepcopy(content.document)
            _apply(document["models"], model_id, changes, after)
            self._save(document)
            # What was kept and not in force may be now: the SSD cache, where the in-memory cache was turned on.
            return self._read_or_set_aside().settings.get(model_id, ModelSettings())

    def remove(self, model_id: str) -> None:
        """Forget a model's settings, unknown keys included."""
        with self._lock, files.locked(self.path):
            content = self._writable()
            models = {name: entry for name, entry in content.document["models"].items() if name != model_id}
            self._save(content.document | {"models": models})

    def import_file(self, path: Path) -> ImportReport:
        """Take over an oMLX model_settings.json: what it says wins over what is here, the rest stays.

        Raises RequestError (param `file`) for a file that is damaged or of a newer version: then nothing has changed.
        """
        with self._lock, files.locked(self.path):
            content = self._writable()
            document, report = merge(content, path)
            self._save(document)
            return report

    def _now(self) -> Content:
        """What the file holds; a damaged one is set aside."""
        found = self._read()
        if found.damage is not None:
            with files.locked(self.path):
                found = self._read_or_set_aside()
        return found

    def _read(self) -> Content:
        try:
            if files.mark(self.path) == self._mark and self._content.damage is None:
                return self._content
            found = files.read(self.path)
        except OSError as error:
            raise RequestError(f"{self.path} cannot be read: {error.strerror}", param="file") from None
        self._content, self._mark = (empty(), None) if found is None else (parse(found[0], self.path), found[1])
        return self._content

    def _read_or_set_aside(self) -> Content:
        """As `_read`, with the lock held: the content that is damaged now is not another process's new one."""
        found = self._read()
        if found.damage is None:
            return found
        try:
            aside = files.set_aside(self.path)
        except OSError as error:
            raise RequestError(
                f"{self.path} is damaged ({found.damage}) and cannot be renamed: {error.strerror}", param="file"
            ) from None
        self._set_aside.append(f"{self.path} was damaged ({found.damage}): it is kept as {aside}, and a new one begun")
        self._content, self._mark = empty(), None
        return self._content

    def _writable(self) -> Content:
        content = self._read_or_set_aside()
        if content.version > VERSION:
            raise RequestError(
                f"{self.path} is of version {content.version}, written by a newer program; this one knows version "
                f"{VERSION} and leaves it alone: update this program, or move the file away",
                param="file",
            )
        return content

    def _save(self, document: dict[str, Any]) -> None:
        if document != self._content.document:
            files.write(self.path, document)


def _apply(models: dict[str, Any], model_id: str, changes: Mapping[str, Any], after: ModelSettings) -> None:
    """Write the changed fields, and no others, into the models of a document."""
    entry = models.get(model_id)
    entry = entry if isinstance(entry, dict) else {}
    for name in changes:
        entry.pop(name, None)
    fields = ModelSettings.model_fields
    values = after.model_dump(include=set(changes))
    entry |= {k: v for k, v in values.items() if k not in fields or v != fields[k].default}
    if after.is_default and "is_default" in changes:
        for other in models.values():
            if isinstance(other, dict):
                other.pop("is_default", None)
        entry["is_default"] = True
    models[model_id] = entry
    if not entry:
        del models[model_id]


def _check_alias(content: Content, model_id: str, after: ModelSettings) -> None:
    """An alias names one model. Raises RequestError."""
    for other, settings in content.settings.items():
        if after.model_alias and other != model_id and after.model_alias in (other, settings.model_alias):
            raise RequestError(
                f"model_alias is {after.model_alias!r}: {other!r} has that name, choose another", param="model_alias"
            )
