"""The doctor's check of exactness: loads the pair, and compares blocks of every width with single rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash2_mlx.chat.options import ModelChoice
from dflash2_mlx.chat.progress import loading

if TYPE_CHECKING:
    from dflash2_mlx.chat.backend import Backend
    from dflash2_mlx.decode.exactness_report import ExactnessReport

NOT_ASKED = "not checked: --exactness loads the pair and checks"


def measured(backend: Backend, pair: dict[str, Any], draft_quant: str | None) -> ExactnessReport | str:
    """The report on a `pair` that the doctor has described, for all widths; or why there is none.

    Nothing is downloaded: the folders are those that the doctor has found.
    """
    from dflash2_mlx.pairs import DEMO, check_exactness

    if pair["verdict"] not in ("fits", "tight"):
        return f"not checked: the verdict on the pair is {pair['verdict']!r}"
    if "drafter" not in pair:
        return "not checked: without a drafter no block is verified"
    # By its name the demo is loaded as it always is, and so is its drafter.
    model = DEMO if pair["model"] == DEMO else pair["target"]["folder"]
    draft = pair["draft"] if pair["model"] == DEMO or pair["draft"] == DEMO else pair["drafter"]["folder"]
    before = kept(pair, draft_quant)
    with loading() as progress:
        loaded = backend.load(ModelChoice(model, draft, draft_quant), progress)
        if loaded.exactness is not None and before is None:
            return loaded.exactness  # the load has just checked it
        tell = progress or (lambda part, share: None)
        return check_exactness(loaded, lambda share: tell("exactness", share))


def kept(pair: dict[str, Any], draft_quant: str | None) -> ExactnessReport | None:
    """What the check at the last load of the pair that the doctor has described has told, on this machine."""
    from dflash2_mlx.pairs import DEMO, kept_exactness

    if "target" not in pair or "drafter" not in pair:
        return None
    embedded = (pair["model"] == DEMO, DEMO in (pair["model"], pair["draft"]))
    folders = (Path(pair["target"]["folder"]), Path(pair["drafter"]["folder"]))
    return kept_exactness(*folders, embedded=embedded, spec=draft_quant)


def as_dict(found: ExactnessReport | str) -> dict[str, Any]:
    """For the doctor's report; `verdict` is None where nothing was checked, and `summary` says why."""
    return {"verdict": None, "summary": found} if isinstance(found, str) else found.as_dict()
