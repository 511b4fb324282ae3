"""The machine and what is installed on it. Each figure is read from the system; None where it cannot be."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from dflash2_mlx import __version__, _blas

_PACKAGES = ("mlx", "mlx-lm", "transformers")
# (limit, usage) of a container's memory: control groups version 2, then 1.
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


class Memory(NamedTuple):
    """Bytes; `available` is what a program can take without others being pushed out."""

    total: int | None
    available: int | None


def versions() -> dict[str, str]:
    """Of Python, this package and the ones below it; "not installed" where one is absent."""
    found = {"python": platform.python_version(), "dflash2-mlx": __version__}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def system() -> str:
    return platform.platform()


def blas() -> str:
    """The BLAS in force, and why."""
    return "Accelerate" if sys.platform == "darwin" else str(_blas.status())


def device() -> dict[str, Any]:
    """MLX's device and its limits, bytes where they are sizes. Imports mlx."""
    import mlx.core as mx

    metal = mx.metal.is_available()
    return {
        "backend": "Metal" if metal else str(mx.default_device().type).rpartition(".")[2].upper(),
        **{key: value for key, value in mx.device_info().items() if isinstance(value, str | int)},
        "memory_limit": mx.get_memory_limit(),
    }


def memory() -> Memory:
    """Of the machine, or of the container where that has less."""
    read = _linux_memory if sys.platform == "linux" else _darwin_memory if sys.platform == "darwin" else _no_memory
    total, available = read()
    for limit_file, usage_file in _CGROUPS:
        limit, usage = _number(limit_file), _number(usage_file)
        if limit is not None and usage is not None and total is not None and limit < total:
            total, available = limit, min(limit - usage, available or limit)
    return Memory(total, available)


def _linux_memory() -> Memory:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return _no_memory()
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    return Memory(*(kib[name] * 1024 if name in kib else None for name in ("MemTotal", "MemAvailable")))


def _darwin_memory() -> Memory:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = subprocess.run(["vm_stat"], capture_output=True, text=True, check=True, timeout=5).stdout
    except (OSError, subprocess.SubprocessError):
        return Memory(total, None)
    return Memory(total, pages_available(text))


def pages_available(vm_stat: str) -> int | None:
    """Bytes that macOS can hand out, from `vm_stat`'s output: free pages and those it can free at once."""
    size = re.search(r"page size of (\d+) bytes", vm_stat)
    pages = re.findall(r"^Pages (?:free|inactive|speculative|purgeable):\s+(\d+)", vm_stat, re.MULTILINE)
    return int(size[1]) * sum(map(int, pages)) if size and pages else None


def _no_memory() -> Memory:
    return Memory(None, None)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or the word "max"
        return None
