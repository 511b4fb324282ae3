"""Gives mlx a fast BLAS on Linux; has to run before `mlx.core` is imported.

mlx's Linux wheels bundle a reference BLAS that is about ten times slower on a block of rows (docs/log.md).
A library loaded into the global scope first takes its place: that is where the linker looks for `cblas_*`.
macOS has Accelerate and is left alone; so are OpenBLAS's own variables (OPENBLAS_*).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .errors import DFlashError

ENVIRONMENT_VARIABLE = "DFLASH2_BLAS"

# By soname, so that the linker's own cache finds them. Fedora's and openSUSE's names of the threaded build
# come first, as their libopenblas.so.0 is single-threaded; Debian's threaded build has the plain name.
_SYSTEM_OPENBLAS = ("libopenblasp.so.0", "libopenblas_pthreads.so.0", "libopenblas.so.0")


@dataclass(frozen=True, slots=True)
class BlasStatus:
    """What `preload` did: the library that was loaded (path or soname; None: mlx's own is used) and why."""

    library: str | None
    reason: str

    def __str__(self) -> str:
        return f"{self.library or 'the one that mlx brings'} ({self.reason})"


@cache
def preload() -> BlasStatus:
    """Load a fast BLAS for mlx, once per process.

    DFLASH2_BLAS chooses: `auto` (default) takes MKL or OpenBLAS where one is found, `bundled` keeps mlx's
    own, and a path names a library with the CBLAS interface.

    Raises:
        DFlashError: DFLASH2_BLAS has another value, or its library cannot be loaded.
    """
    if sys.platform != "linux":
        return BlasStatus(None, f"nothing is replaced on {sys.platform}")
    choice = os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    if choice not in ("auto", "bundled") and os.sep not in choice:
        raise DFlashError(
            f"{ENVIRONMENT_VARIABLE}={choice!r} is none of the values it takes: set it to 'auto', to "
            f"'bundled' or to the path of a library (such as './{choice}')."
        )
    if choice == "bundled":
        return BlasStatus(None, f"{ENVIRONMENT_VARIABLE}=bundled")
    if "mlx.core" in sys.modules:
        return BlasStatus(None, "mlx.core was imported before dflash2_mlx; import dflash2_mlx first")
    return _load_first_found() if choice == "auto" else _load_named(choice)


def status() -> BlasStatus:
    """What `preload` did in this process (for `dflash2-mlx doctor`)."""
    return preload()


def set_threads(count: int) -> None:
    """Let the library that `preload` loaded use `count` threads for one product; without effect on mlx's own."""
    library = preload().library
    if library is None:
        return
    loaded = ctypes.CDLL(library)
    for name in ("openblas_set_num_threads", "MKL_Set_Num_Threads"):
        if hasattr(loaded, name):
            getattr(loaded, name)(ctypes.c_int(count))


def _load_first_found() -> BlasStatus:
    for library in _candidates():
        try:
            _load(library)
        except OSError:
            continue
        return BlasStatus(library, "found")
    return BlasStatus(
        None,
        "no faster one was found: install OpenBLAS (on Debian libopenblas0-pthread) or 'dflash2-mlx[mkl]'",
    )


def _load_named(path: str) -> BlasStatus:
    try:
        _load(path)
    except OSError as error:
        raise DFlashError(
            f"{ENVIRONMENT_VARIABLE}={path!r} cannot be used: {error}. Set it to a library with the CBLAS "
            f"interface, to 'auto' or to 'bundled'."
        ) from error
    return BlasStatus(path, f"named by {ENVIRONMENT_VARIABLE}")


def _candidates() -> Iterator[str]:
    """Libraries to try, best first: those of this Python environment (wheels, conda), then the system's."""
    folder = Path(sys.prefix, "lib")
    for pattern in ("libmkl_rt.so*", "libopenblas.so.0"):
        yield from map(str, sorted(folder.glob(pattern), reverse=True))
    yield from _SYSTEM_OPENBLAS


def _load(library: str) -> None:
    """Put a library into the global scope; OSError where it is missing or has no CBLAS interface.

    It is looked at in a scope of its own first: a build with renamed symbols (64-bit integers) stays there.
    """
    if not hasattr(ctypes.CDLL(library), "cblas_sgemm"):
        raise OSError(f"{library} has no cblas_sgemm")
    ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
