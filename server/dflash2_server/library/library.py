"""Everything on disk that can be loaded: scanned in one go, looked up by name, deleted within its folders."""

from __future__ import annotations

import difflib
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash2_mlx.drafter.config import is_drafter, read_config
from dflash2_mlx.errors import DFlashError, ModelNotFound, RequestError
from dflash2_server.management import DrafterFit

from . import embedded, ids, pairing, places, removal
from .listing import Listing, list_files
from .models import DEMO, DEMO_DRAFTER, LocalModel
from .places import Place
from .reading import Reading, read

log = logging.getLogger(__name__)


def _nothing() -> Collection[str]:
    return ()


@dataclass(frozen=True)
class _Scan:
    """What one look at the folders found. Never changed."""

    models: tuple[LocalModel, ...] = ()
    places: dict[str, Place] = field(default_factory=dict)  # by id
    hidden: dict[str, str] = field(default_factory=dict)  # reasons by folder or repository
    problems: tuple[str, ...] = ()


class Library:
    """Models and drafters in folders and in the Hub cache. Safe to use from several threads.

    `incoming` tells the repositories whose download is under way: they are not listed. `extra` are single model
    folders, listed wherever they lie and never deleted.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        hub_cache: Path | None,
        *,
        incoming: Callable[[], Collection[str]] = _nothing,
        extra: Sequence[Path] = (),
    ) -> None:
        self._folders = [_absolute(folder) for folder in folders]
        self._hub_cache = _absolute(hub_cache) if hub_cache is not None else None
        self._extra = [_absolute(folder) for folder in extra]
        self._incoming = incoming
        self._lock = threading.Lock()
        self._readings: dict[Path, tuple[Listing, Reading]] = {}
        self._ids: dict[Path, str] = {}
        self._scan: _Scan | None = None

    @property
    def problems(self) -> list[str]:
        """What the last scan could not read, and models that are not listed, each with its reason."""
        scan = self._scanned()
        return [*scan.problems, *(f"{name}: {reason}" for name, reason in scan.hidden.items())]

    def models(self) -> list[LocalModel]:
        """Models by name, the embedded one last, then drafters. The first call scans, later ones cost nothing."""
        coming = self._incoming()
        return [model for model in self._scanned().models if model.repo_id is None or model.repo_id not in coming]

    def refresh(self) -> None:
        """Look at the folders again. Blocks; only what has changed is read."""
        with self._lock:
            self._scan = self._look()

    def add_folder(self, folder: Path) -> None:
        """Look into one more folder, from the next refresh on."""
        with self._lock:
            if _absolute(folder) not in self._folders:
                self._folders.append(_absolute(folder))

    def get(self, name: str) -> LocalModel:
        """By id, repository id, or the path of a folder that is listed. Raises ModelNotFound with similar names."""
        listed = self.models()
        for names_it in (_by_id, _by_repository, _by_path):
            for model in listed:
                if names_it(model, name):
                    return model
        raise ModelNotFound(self._absent(name, listed))

    def fits(self, model: LocalModel) -> list[DrafterFit]:
        """Every drafter on disk, those that fit the model first, the others with reasons."""
        return pairing.fits(model, (drafter for drafter in self.models() if drafter.kind == "drafter"))

    def targets(self, drafter: LocalModel) -> tuple[tuple[str, ...], str | None]:
        """Ids of the models on disk that a drafter fits, and a reason where there is none."""
        return pairing.targets(drafter, (model for model in self.models() if model.kind == "model"))

    def published(self, model: LocalModel) -> str | None:
        """The Hub id of the drafter that is known for a model, on disk or not."""
        from dflash2_mlx.pairs import published_drafter  # imports mlx

        if model.facts is None or model.source == "embedded":
            return None
        return published_drafter(model.facts, model.repo_id or model.id, warn=False)

    def resolve_drafter(self, name: str) -> Path:
        """The folder of a drafter: library id, repository id, "demo" or a folder's path.

        Raises ModelNotFound where it is not on disk, RequestError (param dflash_draft_model) for what is no drafter.
        """
        try:
            found = self.get(DEMO_DRAFTER if name == DEMO else name)
        except ModelNotFound as error:
            return _drafter_folder(name, str(error))
        if found.kind != "drafter":
            raise _no_drafter(name)
        if found.problem is not None:
            raise RequestError(f"the drafter {name} cannot be used: {found.problem}", param="dflash_draft_model")
        return found.path

    def delete(self, model: LocalModel) -> int:
        """Delete from disk; bytes freed. Blocks.

        Raises RequestError for what is embedded, given by itself, a link or outside the folders, ModelNotFound for
        what is not listed any more, DFlashError where not all could be deleted.
        """
        if model.source == "embedded":
            raise RequestError(f"{model.id} comes with this program: it cannot be deleted", param="model")
        if model.repo_id in self._incoming():
            raise RequestError(f"{model.id} is being downloaded: cancel that first", param="model")
        place = self._scanned().places.get(model.id)
        if place is None or place.folder != model.path:
            raise ModelNotFound(f"{model.id} is not there any more: look at the folders again")
        try:
            return removal.remove(place, self._roots(), self._extra)
        finally:
            self.refresh()

    def _roots(self) -> list[Path]:
        return [*self._folders, *([self._hub_cache] if self._hub_cache is not None else [])]

    def _scanned(self) -> _Scan:
        scan = self._scan
        if scan is None:
            self.refresh()
            scan = self._scan
        return scan if scan is not None else _Scan()

    def _look(self) -> _Scan:
        problems: list[str] = []
        roots = self._roots()
        found = places.find(self._folders, self._hub_cache, self._extra, problems)
        readings = {place.folder: self._read(place) for place in found}
        self._readings = {folder: kept for folder, kept in self._readings.items() if folder in readings}
        listed = [place for place in found if readings[place.folder].model is not None]
        self._ids = ids.assign(listed, self._ids)
        models = [
            replace(model, id=self._ids[place.folder], deletable=removal.refusal(place, roots, self._extra) is None)
            for place in listed
            if (model := readings[place.folder].model) is not None
        ]
        hidden = {place.repo_id or str(place.folder): readings[place.folder].hidden for place in found}
        return _Scan(
            models=tuple(sorted([*models, *embedded.pair()], key=_order)),
            places={self._ids[place.folder]: place for place in listed},
            hidden={name: reason for name, reason in hidden.items() if reason is not None},
            problems=tuple(problems),
        )

    def _read(self, place: Place) -> Reading:
        try:
            listing = list_files(place)
        except OSError as error:
            return Reading(hidden=f"it cannot be read: {error.strerror or error}")
        known = self._readings.get(place.folder)
        if known is not None and known[0] == listing:
            return known[1]
        try:
            reading = read(place, listing)
        except Exception as error:  # a config or header that nobody thought of must not hide the other models
            log.warning("%s cannot be read", place.folder, exc_info=True)
            reading = Reading(hidden=f"it cannot be read: {type(error).__name__}: {error}")
        self._readings[place.folder] = listing, reading
        return reading

    def _absent(self, name: str, listed: Sequence[LocalModel]) -> str:
        scan = self._scanned()
        if name in self._incoming():
            return f"{name} is being downloaded: wait until it is complete"
        if name in scan.hidden:
            return f"{name} is not complete: {scan.hidden[name]}"
        names = {known for model in listed for known in (model.id, model.repo_id) if known}
        near = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.5)
        hint = f"; near it are {', '.join(near)}" if near else ""
        return f"no model {name!r} on this machine{hint}: download it, or add its folder to model_dir"


def _absolute(path: Path) -> Path:
    """Without a `~`; links stay, since they must be seen."""
    try:
        return path.expanduser().absolute()
    except RuntimeError:  # no such user
        return path.absolute()


def _by_id(model: LocalModel, name: str) -> bool:
    return model.id == name


def _by_repository(model: LocalModel, name: str) -> bool:
    return model.repo_id == name


def _by_path(model: LocalModel, name: str) -> bool:
    return model.source != "embedded" and str(model.path) == name


def _order(model: LocalModel) -> tuple[bool, bool, str, str]:
    return model.kind == "drafter", model.source == "embedded", model.id.casefold(), model.id


def _drafter_folder(name: str, absent: str) -> Path:
    """Of a drafter outside the folders, given by its path."""
    folder = _absolute(Path(name))
    try:
        config = read_config(folder) if "\0" not in name and (folder / "config.json").is_file() else None
    except (DFlashError, OSError) as error:
        raise RequestError(f"the drafter {name} cannot be used: {error}", param="dflash_draft_model") from None
    if config is None:
        raise ModelNotFound(absent)
    if not is_drafter(config):
        raise _no_drafter(name)
    return folder


def _no_drafter(name: str) -> RequestError:
    return RequestError(f"{name} is a chat model, no drafter: name a DFlash drafter", param="dflash_draft_model")
