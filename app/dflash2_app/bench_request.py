"""What the form of the page Bench asks for: the choices there are, the request, and how much work it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dflash2_app.form_values import Wrong
from dflash2_app.model_words import name_of
from dflash2_app.wording import count
from dflash2_mlx.bench.spread import values_needed
from dflash2_mlx.prompts import KINDS, own
from dflash2_mlx.settings.model import field_facts
from dflash2_server.management import DrafterFit, ModelView

AUTOMATIC = 0  # among the block sizes: stands for None of a request
DEPTHS = (0, 2048, 8192, 32768, 131072)
TEMPERATURES = (0.0, 1.0)
MODES = {"adaptive": "down to plain decoding where that is faster", "dflash": "blocks in every cycle"}
DEFAULT_KINDS = ("code", "chat", "prose")
NUMBERS = {"prompts_per_kind": "Prompts per kind", "max_tokens": "Tokens per answer", "rounds": "Rounds"}
DEFAULT_NUMBERS = {"prompts_per_kind": 3, "max_tokens": 128, "rounds": 3}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What stands in the form. Block size AUTOMATIC among `block_sizes`; plain decoding is always measured."""

    block_sizes: Sequence[int]
    modes: Sequence[str]
    kinds: Sequence[str]
    temperatures: Sequence[float]
    depths: Sequence[int]
    prompts_per_kind: int
    max_tokens: int
    rounds: int

    def request(self) -> dict[str, Any]:
        """As `BenchJobs.start` takes it."""
        return {
            "block_sizes": [size or None for size in self.block_sizes],
            "verify_modes": list(self.modes),
            "kinds": list(self.kinds),
            "temperatures": list(self.temperatures),
            "depths": list(self.depths),
            **{name: getattr(self, name) for name in NUMBERS},
        }

    @property
    def ways(self) -> int:
        """Of decoding that are compared, plain decoding among them."""
        return len(self.temperatures) * (1 + len(self.block_sizes) * len(self.modes))

    @property
    def prompts(self) -> int:
        return len(self.kinds) * self.prompts_per_kind * len(self.depths)

    @property
    def samples(self) -> int:
        return self.ways * self.prompts * self.rounds


def missing(wanted: Wanted) -> str | None:
    """What has to be chosen before it can start."""
    needed = (
        ("a block size", wanted.block_sizes), ("a mode", wanted.modes), ("a kind of content", wanted.kinds),
        ("a temperature", wanted.temperatures), ("a context depth", wanted.depths),
    )  # fmt: skip
    lacking = [name for name, chosen in needed if not chosen]
    return f"Choose {' and '.join(lacking)}." if lacking else None


def amount_words(wanted: Wanted) -> str:
    """How many samples that is, and of what."""
    most = wanted.samples * wanted.max_tokens
    pairs = wanted.prompts_per_kind * wanted.rounds * len(wanted.depths)
    few = f" {pairs} pairs of a kind tell no difference: it takes {values_needed()}." if pairs < values_needed() else ""
    what = (
        f"{count(wanted.samples)} samples: {_plural(wanted.ways, 'way')} of decoding × "
        f"{_plural(wanted.prompts, 'prompt')} × {_plural(wanted.rounds, 'round')}"
    )
    return f"{what}; up to {count(most)} tokens in all.{few}"


def whole(name: str, typed: Any) -> int:
    """A number of the form, 1 or more. Raises Wrong."""
    text = "".join(str(typed if typed is not None else "").split())
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise Wrong(f"{NUMBERS[name]}: {text or 'nothing'} is no whole number from 1 on")
    if name == "prompts_per_kind" and number > most_prompts():
        raise Wrong(f"{NUMBERS[name]}: {text} is more than the {most_prompts()} that there are of a kind")
    return number


@cache
def most_prompts() -> int:
    """That every kind has."""
    return min(len(own((kind,))) for kind in KINDS)


def offered(views: Sequence[ModelView]) -> list[ModelView]:
    """The models that can be measured: with a drafter that fits, loaded ones first."""
    fitting = [view for view in views if view.kind == "model" and view.problem is None and drafter_of(view)]
    return sorted(fitting, key=lambda view: view.running is None)


def drafter_of(view: ModelView) -> DrafterFit | None:
    """The drafter that runs or would: the loaded one, the one that is set, or the automatic one."""
    fitting = [fit for fit in view.drafters if fit.fits]
    running = view.running.drafter if view.running is not None else None
    for wanted in filter(None, (running, view.settings.dflash_draft_model, view.automatic_drafter)):
        for fit in fitting:
            if wanted in (fit.id, fit.repo_id):
                return fit
    return None


def widest(view: ModelView) -> int:
    """The checkpoint's block size."""
    if view.running is not None and view.running.widths is not None:
        return view.running.widths.block_size
    fit = drafter_of(view)
    return fit.block_size if fit is not None else 1


def depths_for(view: ModelView, max_tokens: int) -> tuple[int, ...]:
    """The depths of context that the model has room for."""
    room = (view.context_length or DEPTHS[-1]) - max_tokens
    return tuple(depth for depth in DEPTHS if depth < room or depth == 0)


def modes_there() -> dict[str, str]:
    """The verify modes that this version can run, each in words."""
    unavailable = next((facts.unavailable for facts in field_facts() if facts.name == "dflash_verify_mode"), {})
    return {mode: words for mode, words in MODES.items() if mode not in unavailable}


def choice_words(view: ModelView) -> str:
    """A model in the list of the form."""
    fit = drafter_of(view)
    loaded = "loaded" if view.running is not None else view.state if view.state != "unloaded" else "not loaded"
    return f"{name_of(view)} – {loaded}" + (f", with {fit.id}" if fit is not None else "")


def hindrance_words(view: ModelView) -> str:
    """What stands in the way of a bench. Empty: nothing."""
    running = view.running
    if running is not None and running.state == "active":
        return ""
    if running is not None:
        why = running.reason or "it was loaded with DFlash off"
        return f"It runs without its drafter: {why}. Turn DFlash on in its settings to measure speculation."
    if not view.settings.dflash_enabled:
        return "DFlash is off in its settings: turn it on there to measure speculation."
    return ""


def note_words(view: ModelView) -> str:
    """What stands in the way, or what comes before the first sample. Empty: nothing."""
    loads = "" if view.running is not None else "It is not loaded: the bench loads it first."
    return hindrance_words(view) or loads


def depth_words(depth: int) -> str:
    return "as the prompts are" if depth == 0 else f"{count(depth)} tokens"


def size_words(size: int) -> str:
    return "automatic" if size == AUTOMATIC else str(size)


def temperature_words(temperature: float) -> str:
    return "0, greedy" if temperature == 0 else f"{temperature:g}, sampled"


def default_kinds() -> list[str]:
    return [kind for kind in KINDS if kind in DEFAULT_KINDS]


def _plural(number: int, what: str) -> str:
    return f"{count(number)} {what}{'' if number == 1 else 's'}"
