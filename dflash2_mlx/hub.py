"""From a path or a Hub id to a local folder."""

from __future__ import annotations

from pathlib import Path

from .errors import ModelNotFound

# Patterns of the files that the runtime reads; `*` crosses folders.
FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.py"]
_CACHED = "models--"  # how the folders of models in the Hub's cache begin


def resolve(name: str) -> Path:
    """The folder of `name`, a path or a Hub id; a Hub id is downloaded where the cache lacks it.

    Raises ModelNotFound with the cause: no such folder, missing or gated repository, no connection.
    """
    path = Path(name)
    if name.startswith("~"):
        try:
            path = path.expanduser()
        except RuntimeError as error:
            raise ModelNotFound(f"{name}: {error}") from None
    if path.is_dir():
        return path
    if path.exists():
        raise ModelNotFound(f"{name} is a file: give the folder that holds config.json")
    if name.startswith((".", "/", "~")) or name.count("/") != 1 or any(c.isspace() for c in name):
        raise ModelNotFound(f"no folder {name!r}, and it is no Hub id either (those read owner/name)")
    return _download(name)


def is_hub_id(name: str) -> bool:
    """Whether a name reads owner/name and is no path that exists."""
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).exists()


def shown_name(name: str) -> str:
    """A Hub id as it is, of a path the last part: the rest tells of somebody's disk.

    Of a folder in the Hub's cache, whose last part is a commit, the Hub id.
    """
    if is_hub_id(name):
        return name
    folder = Path(name).expanduser().resolve()
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith(_CACHED):
        return repository.removeprefix(_CACHED).replace("--", "/", 1)
    return folder.name


def _download(repository: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
    )
    from huggingface_hub.errors import HTTPError as HubError  # type: ignore[attr-defined]
    from huggingface_hub.errors import RepositoryNotFoundError as Missing

    try:
        return Path(snapshot_download(repository, allow_patterns=FILES))
    except GatedRepoError:
        cause = "is gated: accept its terms on the Hub and log in (hf auth login)"
    except Missing:
        cause = "is not on the Hub, or private: check the spelling, or log in (hf auth login)"
    except HFValidationError as error:
        cause = f"is no valid Hub id ({error})"
    except LocalEntryNotFoundError:
        cause = "is not in the Hub cache, and the Hub cannot be reached: connect, or give a local folder"
    except (HubError, OSError) as error:  # HubError: also of the transport, such as a proxy or a time-out
        cause = f"could not be downloaded: {error}"
    raise ModelNotFound(f"{repository} {cause}") from None
