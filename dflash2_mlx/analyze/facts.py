"""What a report of an analysis stands on: machine, versions, pair, texts and command."""

from __future__ import annotations

from dflash2_mlx import machine

from ..pairs import Pair
from .run import Figures
from .text import prompts_digest


def facts_of(pair: Pair, figures: Figures, command: str) -> dict[str, str]:
    """Every fact as a text, in the order in which they are shown. `pair` has a drafter."""
    assert pair.drafter is not None
    device = machine.device()
    name = next((str(device[key]) for key in ("device_name", "architecture") if device.get(key)), "")
    texts = figures.texts
    temperatures = [sum(text.temperature == temperature for text in texts) for temperature in (0, 1)]
    return {
        "command": command,
        "target": pair.model_name,
        "drafter": pair.drafter_name or "drafter",
        "draft quantisation": pair.drafter.quantization,
        "engine": figures.engine,
        "block size": str(figures.block_size),
        "dtype": f"target {_type(pair.target.dtype)}, drafter {_type(pair.drafter.dtype)}",
        "texts": f"{temperatures[0]} greedy, {temperatures[1]} drawn at temperature 1",
        "tokens": str(sum(len(text.answer) for text in texts)),
        "blocks": f"{figures.served.blocks} greedy, {figures.served.sampled_blocks} drawn, "
        + ("every token an anchor" if figures.stride == 1 else f"every {figures.stride}th token an anchor"),
        "prompts": prompts_digest(texts),
        "device": f"{device['backend']} {name}".strip(),
        "system": machine.system(),
        "versions": ", ".join(f"{package} {version}" for package, version in machine.versions().items()),
    }


def _type(dtype: object) -> str:
    return str(dtype).rpartition(".")[2]
