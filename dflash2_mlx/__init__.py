"""Exact DFlash 2 speculative decoding for MLX language models.

Importing the package is cheap: it loads neither mlx nor mlx-lm, only (on Linux) the BLAS that mlx is to use.
The public names below are imported at their first use.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._blas import preload
from .errors import DFlashError

if TYPE_CHECKING:
    from .pairs import Pair, load
    from .text.stream import generate, stream_generate

__version__ = "0.1.0"

__all__ = ["Pair", "__version__", "generate", "load", "stream_generate"]

_HOMES = {
    "Pair": ".pairs",
    "load": ".pairs",
    "generate": ".text.stream",
    "stream_generate": ".text.stream",
}

# Every submodule that imports mlx.core is imported after this has run. A wrong DFLASH2_BLAS is told at the first use,
# where the terminal program can print it as it prints every error.
with suppress(DFlashError):
    preload()


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    preload()
    value = getattr(import_module(home, __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
