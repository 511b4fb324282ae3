"""The models of the fake manager: one of every kind that the pages and the admin API have to show."""

from __future__ import annotations

from typing import Any

from dflash2_mlx.settings.model import ModelSettings
from dflash2_server.management import DrafterFit, Estimate, ModelView

TARGET = "Qwen3-4B-4bit"
DRAFTER = "Qwen3-4B-DFlash-b16"
LONELY = "Llama-3.1-8B-Instruct-4bit"  # no drafter on disk fits it
PLAIN = "Mamba-Codestral-7B-4bit"  # of a family that cannot be tapped
DAMAGED = "Gemma-3-4B-it-damaged"  # cannot be loaded at all
STRAY = "Qwen3.8-27B-DFlash2"  # a drafter without a target
LOAD_ERROR = "model-00002-of-00002.safetensors ends before its header says: delete the model and download it again"
GIB = 1 << 30

_SIZE_REASON = "hidden size: the drafter's is 64, the model's 2560"


def views() -> list[ModelView]:
    """Everything on disk, nothing loaded."""
    return [*_models(), *_drafters()]


def estimate_of(view: ModelView, drafter: ModelView | None, available: int) -> Estimate:
    """A plausible estimate: weights, and 4 GiB of caches for every 32k tokens."""
    context = view.settings.max_context_window or view.context_length or 4096
    cache = int(4 * GIB * context / 32768 * view.size / (16 * GIB))
    size = drafter.size if drafter is not None and view.settings.dflash_enabled else 0
    needed = view.size + size + cache
    verdict: Any = "fits" if needed < 0.8 * available else "tight" if needed <= available else "does not fit"
    return Estimate(
        target_bytes=view.size, drafter_bytes=size, cache_bytes=cache, context=context, available=available,
        verdict=verdict,
    )  # fmt: skip


def _models() -> list[ModelView]:
    hub = "/cache/hub/models--mlx-community--"
    fits = DrafterFit(id=DRAFTER, repo_id=f"z-lab/{DRAFTER}", engine="dflash", block_size=16)
    other = DrafterFit(id="demo-drafter", repo_id=None, engine="dflash2", block_size=8, reasons=(_SIZE_REASON,))
    return [
        _model(
            TARGET, f"{hub}{TARGET}/snapshots/4a1f", "mlx-community", 2_263_000_000, "qwen3", 40960,
            settings=ModelSettings(is_favorite=True, display_name="Qwen3 4B"),
            dflash_compatible=True, drafters=(fits, other), automatic_drafter=DRAFTER,
            published_drafter=f"z-lab/{DRAFTER}",
        ),
        _model(
            LONELY, f"/models/mlx-community/{LONELY}", "mlx-community", 4_517_000_000, "llama", 131072,
            source="folder", dflash_compatible=True,
            drafters=(DrafterFit(id=DRAFTER, repo_id=f"z-lab/{DRAFTER}", engine="dflash", block_size=16,
                                 reasons=("hidden size: the drafter's is 2560, the model's 4096",
                                          "depth: the drafter taps 36 layers, the model has 32")),),
        ),
        _model(
            PLAIN, f"/models/{PLAIN}", None, 4_100_000_000, "mamba", 262144, source="folder",
            dflash_reason="model_type 'mamba' has no layers that the runtime can tap: it is decoded plainly",
        ),
        _model(
            DAMAGED, f"{hub}{DAMAGED}/snapshots/9c02", "mlx-community", 2_600_000_000, "gemma3", 32768,
            dflash_compatible=True,
        ),
        ModelView(
            id="demo", kind="model", path="(embedded)", repo_id=None, source="embedded", size=9_400_000,
            model_type="qwen3", quantization=None, context_length=2048, settings=ModelSettings(),
            dflash_compatible=True,
            drafters=(DrafterFit(id="demo-drafter", repo_id=None, engine="dflash2", block_size=8),),
            automatic_drafter="demo-drafter",
        ),
    ]  # fmt: skip


def _drafters() -> list[ModelView]:
    return [
        ModelView(
            id=DRAFTER, kind="drafter", path=f"/models/{DRAFTER}", repo_id=f"z-lab/{DRAFTER}",
            source="folder", size=1_070_000_000, model_type="dflash", quantization=None, context_length=None,
            settings=ModelSettings(), targets=(TARGET,), deletable=True,
        ),
        ModelView(
            id=STRAY, kind="drafter", path=f"/models/incoai/{STRAY}", repo_id=f"incoai/{STRAY}",
            source="folder", size=3_300_000_000, model_type="dflash2", quantization=None, context_length=None,
            settings=ModelSettings(), deletable=True,
            targets_reason="it needs a target of 64 layers and hidden size 5120, and no model on disk has these: "
            "download mlx-community/Qwen3.8-27B-4bit",
        ),
        ModelView(
            id="demo-drafter", kind="drafter", path="(embedded)", repo_id=None, source="embedded", size=1_900_000,
            model_type="dflash2", quantization=None, context_length=None, settings=ModelSettings(),
            targets=("demo",),
        ),
    ]  # fmt: skip


def _model(
    name: str, path: str, owner: str | None, size: int, model_type: str, context: int, **facts: Any
) -> ModelView:
    given: dict[str, Any] = {"settings": ModelSettings(), "source": "hub", "deletable": True} | facts
    repo_id = None if owner is None else f"{owner}/{name}"
    return ModelView(
        id=name, kind="model", path=path, repo_id=repo_id, size=size, model_type=model_type,
        quantization="4-bit, group 64", context_length=context, **given,
    )  # fmt: skip


def downloaded(repo_id: str, size: int) -> ModelView:
    """What a finished download adds to the list."""
    name = repo_id.rsplit("/", 1)[-1]
    drafter = "dflash" in name.lower()
    return ModelView(
        id=name, kind="drafter" if drafter else "model", path=f"/models/{repo_id}", repo_id=repo_id,
        source="folder", size=size, model_type="dflash2" if drafter else "qwen3", quantization=None,
        context_length=None if drafter else 32768, settings=ModelSettings(), deletable=True,
        dflash_compatible=not drafter,
        targets_reason="no model on disk has its sizes" if drafter else None,
    )  # fmt: skip
