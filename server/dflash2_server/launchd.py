"""What launchd is told of the server, and how launchctl is asked. It runs nothing by itself."""

from __future__ import annotations

import plistlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from dflash2_mlx.errors import DFlashError

LABEL = "dflash2-mlx.serve"
# Where the user's caches and models lie may be said by these; a secret is in none of them.
KEPT_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
# Streams end within ten seconds of the signal; launchd's own patience is twenty.
_EXIT_SECONDS = 40
# After a bootout the old process may still be ending; launchctl then says so and wants to be asked again.
_TRIES, _PAUSE_SECONDS = 20, 0.5

Launchctl = Callable[[Sequence[str]], "CompletedProcess[str]"]


def plist_path(home: Path) -> Path:
    return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"


def log_folder(home: Path) -> Path:
    return home / "Library" / "Logs" / "dflash2-mlx"


def content(python: str, flags: Sequence[str], home: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """The property list. `flags` are those of `dflash2-mlx serve`, without secrets: those stand in server.json."""
    logs = log_folder(home)
    return {
        "Label": LABEL,
        "ProgramArguments": [python, "-m", "dflash2_mlx.cli", "serve", *flags],
        "RunAtLoad": True,
        # Started again when it failed, not when it was told to end.
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": _EXIT_SECONDS,
        # A background job's work would be slowed down.
        "ProcessType": "Interactive",
        "WorkingDirectory": str(home),
        "StandardOutPath": str(logs / "serve.log"),
        "StandardErrorPath": str(logs / "serve.log"),
        "EnvironmentVariables": {
            "PYTHONUNBUFFERED": "1",
            **{name: environment[name] for name in KEPT_VARIABLES if environment.get(name)},
        },
    }


def encoded(plist: Mapping[str, Any]) -> bytes:
    return plistlib.dumps(dict(plist), sort_keys=False)


def load(path: Path, user: int, launchctl: Launchctl, sleep: Callable[[float], None]) -> None:
    """In place of one that may be loaded. Raises DFlashError with launchctl's own words."""
    unload(user, launchctl)
    for attempt in range(_TRIES):
        done = launchctl(["bootstrap", f"gui/{user}", str(path)])
        if done.returncode == 0:
            return
        if attempt < _TRIES - 1:
            sleep(_PAUSE_SECONDS)
    raise DFlashError(f"launchctl bootstrap gui/{user} {path} failed: {_words(done)}")


def unload(user: int, launchctl: Launchctl) -> bool:
    """Stop it and forget it; whether it was there."""
    return launchctl(["bootout", f"gui/{user}/{LABEL}"]).returncode == 0


def state(user: int, launchctl: Launchctl) -> dict[str, str] | None:
    """What launchd says of it: state, pid and last exit code, as far as it has them; None where it knows it not."""
    done = launchctl(["print", f"gui/{user}/{LABEL}"])
    if done.returncode != 0:
        return None
    found: dict[str, str] = {}
    for name, value in re.findall(r"^\s*(state|pid|last exit code) = (.+?)\s*$", done.stdout, re.MULTILINE):
        found.setdefault(name, value)
    return found


def _words(done: CompletedProcess[str]) -> str:
    return " ".join((done.stderr or done.stdout or f"code {done.returncode}").split())
