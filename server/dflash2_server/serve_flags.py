"""The flags of `dflash2-mlx serve` as they were given, for starting it in another process. Secrets are kept apart."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash2_mlx.settings import ServerSettings, environment_name, flag_name
from dflash2_mlx.settings.server import is_secret

# Settings whose value may be a folder.
_PLACES = frozenset({"model", "draft", "model_dir", "download_dir", "ssd_cache_dir"})


def flags_of(args: argparse.Namespace) -> list[str]:
    """The words of a command line that says the same, without its secrets, in any folder: paths become absolute."""
    config = getattr(args, "config", None)
    words = [] if config is None else ["--config", str(config.expanduser().resolve())]
    for name in ServerSettings.model_fields:
        value = getattr(args, name, None)
        if value is not None and not is_secret(name):
            words += _words(name, value)
    return words


def secrets_of(args: argparse.Namespace) -> dict[str, str]:
    """The secrets as variables of the environment, which other users of the machine do not see."""
    given = {name: getattr(args, name, None) for name in ServerSettings.model_fields if is_secret(name)}
    return {
        environment_name(name): ",".join(value) if isinstance(value, list) else str(value)
        for name, value in given.items()
        if value is not None
    }


def _words(name: str, value: object) -> list[str]:
    flag = flag_name(name)
    if value is True:
        return [flag]
    if value is False:
        return [flag.replace("--", "--no-", 1)]
    values = value if isinstance(value, list) else [value]
    return [f"{flag}={_absolute(str(one)) if name in _PLACES else one}" for one in values]


def _absolute(text: str) -> str:
    """Each of a list of folders or names; a name that is no folder here stays a name."""
    paths = [(part, Path(part).expanduser()) for part in text.split(",")]
    return ",".join(str(path.resolve()) if path.exists() else part for part, path in paths)
