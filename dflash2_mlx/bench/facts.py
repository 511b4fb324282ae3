"""What every result carries beside its figures: machine, versions, prompts, command."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence

from .. import machine
from ..prompts import Prompt, digest


def machine_facts() -> dict[str, str]:
    """The machine and the versions of what runs on it. Imports mlx."""
    device = machine.device()
    total = machine.memory().total
    name = device.get("device_name") or device.get("architecture") or platform.machine()
    return {
        "machine": f"{name}, {os.cpu_count()} cores" + (f", {total / 2**30:.0f} GiB" if total else ""),
        "backend": f"{device['backend']}, BLAS {machine.blas()}" if device["backend"] == "CPU" else device["backend"],
        "system": machine.system(),
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions().items()),
    }


def prompt_facts(prompts: Sequence[Prompt]) -> dict[str, str]:
    """Which prompts: their sources, and a digest that is the same for the same prompts."""
    sources = ", ".join(dict.fromkeys(prompt.source for prompt in prompts))
    return {"prompts": f"{len(prompts)} of {sources}, digest {digest(prompts)}"}


def command_fact(arguments: Sequence[str]) -> dict[str, str]:
    """The command line. No key is on it: keys come from the environment alone."""
    return {"command": f"dflash2-mlx {shlex.join(arguments)}"}
