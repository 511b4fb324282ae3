"""What was measured of a pair on this machine, kept on disk: costs by width and depth, acceptance, exactness.

One small file for each chip, pair, quantisation and set of library versions: another of these is another file, so that
nothing is believed that was measured on something else.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..demo.store import cache_folder
from ..errors import DFlashError
from .exactness_report import ExactnessReport
from .width import WidthController

FOLDER_VARIABLE = "DFLASH2_MEASURED"
_VERSION = 1
# Seconds between two writes while requests come and go, and cycles before the first is worth one.
_EVERY, _WORTH = 60.0, 32

log = logging.getLogger(__name__)


def folder() -> Path:
    """Where the files are; the environment variable DFLASH2_MEASURED overrides it."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    return Path(chosen) if chosen else cache_folder() / "measured"


def made_for(identity: str) -> dict[str, str]:
    """What the measurements of a pair hold for: this chip and these versions. Its quantisation is in its identity."""
    from .. import machine

    device = machine.device()
    versions = machine.versions()
    return {
        "backend": str(device["backend"]),
        "chip": str(device.get("device_name", "unknown")),
        "blas": machine.blas(),
        "pair": identity,
        **{name: versions[name] for name in ("dflash2-mlx", "mlx", "mlx-lm")},
    }


class WidthStore:
    """The file of one pair. What is in it and cannot be used is told once and left out."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self.facts = dict(facts)
        name = hashlib.sha256(json.dumps(self.facts, sort_keys=True).encode()).hexdigest()[:24]
        self.path = folder() / f"{name}.json"
        self.exactness: ExactnessReport | None = None
        self._tuned: str | None = None
        self._saved = 0.0
        self._saved_cycles = 0
        self._lock = threading.Lock()

    def restore(self, controller: WidthController) -> None:
        """Give the controller what was kept."""
        tree = self.read()
        if tree is not None:
            self._give(controller, tree)

    def read(self) -> dict[str, Any] | None:
        """What the file holds, if it is made for these facts; `exactness` is set from it."""
        try:
            tree = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(tree, dict) or tree.get("version") != _VERSION or tree.get("made_for") != self.facts:
                return None
            if tree["exactness"] is not None:
                self.exactness = ExactnessReport.from_dict(tree["exactness"])
            self._tuned = tree["tuned"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("%s is left out, it will be measured anew: %s", self.path, error)
            return None
        return tree

    def ended(self, controller: WidthController) -> None:
        """A request has ended: write now and then."""
        cycles = controller.cycles
        fresh = not self._saved_cycles and cycles >= _WORTH
        due = self._saved_cycles and cycles > self._saved_cycles and time.monotonic() - self._saved >= _EVERY
        if fresh or due:
            self.save(controller)

    def save(self, controller: WidthController, *, tuned: str | None = None) -> None:
        """Write all of it; `tuned` is the time at which the costs were measured on purpose. What fails is told.

        Where another process has tuned the pair meanwhile, that is taken up first.
        """
        from ..settings import files

        with self._lock:
            self._saved, self._saved_cycles = time.monotonic(), controller.cycles
            try:
                with files.locked(self.path):
                    self._take_up(controller, tuned)
                    tree = {
                        "version": _VERSION,
                        "made_for": self.facts,
                        "tuned": self._tuned,
                        **controller.kept(),
                        "exactness": None if self.exactness is None else self.exactness.as_dict(),
                    }
                    files.write(self.path, tree)
            except DFlashError as error:
                log.warning("what was measured is not kept: %s", error)

    def _take_up(self, controller: WidthController, tuned: str | None) -> None:
        before, report = self._tuned, self.exactness
        tree = self.read()
        self.exactness = report or self.exactness
        if tuned is not None:
            self._tuned = tuned
        elif tree is not None and self._tuned != before:
            self._give(controller, tree)

    def _give(self, controller: WidthController, tree: dict[str, Any]) -> None:
        try:
            controller.restore(tree)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            log.warning("%s is left out, it will be measured anew: %s", self.path, error)
