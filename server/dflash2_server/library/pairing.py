"""Which drafters on disk fit which models on disk, and why not."""

from __future__ import annotations

from collections.abc import Iterable

from dflash2_server.management import DrafterFit

from .models import LocalModel

_UNREAD = "its config cannot be read"


def fits(model: LocalModel, drafters: Iterable[LocalModel]) -> list[DrafterFit]:
    """Every drafter seen from one model, those that fit first."""
    seen = [
        DrafterFit(
            id=drafter.id,
            repo_id=drafter.repo_id,
            engine=_engine(drafter),
            block_size=drafter.drafter.block_size if drafter.drafter else 0,
            reasons=_reasons(drafter, model),
            quantized_from=drafter.quantized_from,
        )
        for drafter in drafters
    ]
    return sorted(seen, key=lambda fit: (not fit.fits, len(fit.reasons), fit.id.casefold()))


def targets(drafter: LocalModel, models: Iterable[LocalModel]) -> tuple[tuple[str, ...], str | None]:
    """Ids of the models that a drafter fits; a reason where there is none."""
    seen = [(_reasons(drafter, model), model) for model in models if model.facts is not None]
    fitting = tuple(model.id for reasons, model in seen if not reasons)
    return (fitting, None) if fitting else ((), _none(drafter))


def _reasons(drafter: LocalModel, model: LocalModel) -> tuple[str, ...]:
    from dflash2_mlx.pairs import misfits  # imports mlx

    if drafter.drafter is None:
        return (drafter.problem or _UNREAD,)
    if model.facts is None or not model.dflash_compatible:
        return (model.dflash_reason or _UNREAD,)
    return tuple(misfits(drafter.drafter, model.facts))


def _none(drafter: LocalModel) -> str:
    config = drafter.drafter
    if config is None:
        return drafter.problem or _UNREAD
    return (
        f"no model on disk has hidden size {config.hidden_size}, {config.num_target_layers} layers and a vocabulary of "
        f"{config.vocab_size}: download the one that it was trained for"
    )


def _engine(drafter: LocalModel) -> str:
    if drafter.drafter is not None:
        return drafter.drafter.engine
    return "dflash2" if "DFlash2DraftModel" in str(drafter.config.get("architectures")) else "dflash"
