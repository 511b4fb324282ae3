"""A target and its drafter, loaded, checked against each other and ready to generate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mlx.core as mx

from . import _blas, hub
from .decode.adaptive import AdaptiveWidth, HeldWidth
from .decode.chooser import FixedWidth, WidthChooser
from .decode.exactness import exactness, sample_tokens
from .decode.exactness_report import ExactnessReport
from .decode.request import Request
from .decode.state import DecodeState
from .decode.stats import Stats
from .decode.width import WidthController
from .decode.width_store import WidthStore, made_for
from .drafter.config import DrafterConfig, is_drafter, read_config
from .drafter.load import load_drafter
from .drafter.propose import Drafter
from .drafter.quantization import parse_spec
from .errors import CheckpointError, DFlashError, EngineBusy, PairError
from .facts import text_config
from .target.adapter import Target
from .target.identity import checkpoint_identity
from .target.load import load_target

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

DEMO = "demo"
AUTO = "auto"

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]


class TargetFacts(NamedTuple):
    """What decides whether a drafter fits: residual width, number of layers, rows of the embedding."""

    hidden_size: int
    num_layers: int
    vocab_size: int


# Published drafters by the facts of their target; the word tells apart targets of one shape, by name, where it can.
_PUBLISHED: list[tuple[TargetFacts, str, str]] = [
    (TargetFacts(5120, 64, 248320), "3.8", "incoai/Qwen3.8-27B-DFlash2"),
    (TargetFacts(5120, 64, 248320), "3.5", "z-lab/Qwen3.5-27B-DFlash"),
    (TargetFacts(6656, 52, 202048), "muse", "incoai/Muse-Glimmer-30B-DFlash2"),
    (TargetFacts(2560, 36, 151936), "qwen3", "z-lab/Qwen3-4B-DFlash-b16"),
    (TargetFacts(4096, 36, 151936), "qwen3", "z-lab/Qwen3-8B-DFlash-b16"),
    (TargetFacts(2048, 48, 151936), "coder", "z-lab/Qwen3-Coder-30B-A3B-DFlash"),
    (TargetFacts(2880, 24, 201088), "gpt-oss", "z-lab/gpt-oss-20b-DFlash"),
    (TargetFacts(2880, 36, 201088), "gpt-oss", "z-lab/gpt-oss-120b-DFlash"),
    (TargetFacts(4096, 32, 128256), "llama", "z-lab/LLaMA3.1-8B-Instruct-DFlash-UltraChat"),
]


def target_facts(config: Mapping[str, Any], vocabulary: int | None = None) -> TargetFacts:
    """What a target's config tells of it, nested or not; `vocabulary` stands in for a vocab_size that it leaves out.

    Raises CheckpointError for a drafter's config, and where it does not tell.
    """
    if is_drafter(config):
        raise CheckpointError("this is a drafter, no chat model: give it with --draft, and its target with --model")
    text = text_config(config)
    sizes = {name: text.get(name, config.get(name)) for name in ("hidden_size", "num_hidden_layers", "vocab_size")}
    if sizes["vocab_size"] is None:
        sizes["vocab_size"] = vocabulary
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | float) or size < 1 or size % 1:
            raise CheckpointError(f"the target's config does not tell {name!r}")
    return TargetFacts(*(int(size) for size in sizes.values()))


def published_drafter(facts: TargetFacts, name: str = "", *, warn: bool = True) -> str | None:
    """The Hub id of the published drafter for a target of those facts; among several, the one that `name` hints at.

    `warn` logs it where the shape alone decides.
    """
    fitting = [(word, drafter) for known, word, drafter in _PUBLISHED if known == facts]
    hinted = [drafter for word, drafter in fitting if word in name.lower()]
    if fitting and not hinted and warn:
        log.warning("%s is taken for %s by its shape alone: --draft names another", fitting[0][1], name or tuple(facts))
    return next(iter(hinted or [drafter for _, drafter in fitting]), None)


def published_drafters() -> list[str]:
    """The Hub ids of all published drafters that are known here."""
    return [drafter for _, _, drafter in _PUBLISHED]


def misfits(config: DrafterConfig, facts: TargetFacts) -> list[str]:
    """Why a drafter cannot serve a target, each with both values; empty when it fits."""
    pairs = [
        ("hidden size", config.hidden_size, facts.hidden_size),
        ("number of target layers", config.num_target_layers, facts.num_layers),
        ("vocabulary", config.vocab_size, facts.vocab_size),
    ]
    return [f"{what}: drafter {ours}, target {theirs}" for what, ours, theirs in pairs if ours != theirs]


@dataclass
class Pair:
    """A loaded target, its drafter (None: plain decoding) and what to call them."""

    target: Target
    drafter: Drafter | None = None
    tokenizer: TokenizerWrapper | None = None
    model_name: str = "target"
    drafter_name: str | None = None
    fallback_reason: str | None = None
    defaults: dict[str, float] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    # Stands for the checkpoints, for what is kept on disk; None: not loaded from folders.
    identity: str | None = None
    # What was measured of it, and what chooses automatic block sizes; None without a drafter.
    widths: WidthController | None = None
    # Whether a verify gives the single-row logits on this machine, checked at the first load.
    exactness: ExactnessReport | None = None

    def __post_init__(self) -> None:
        if self.drafter is None:
            return
        reasons = misfits(self.drafter.config, self.facts)
        if reasons:
            raise PairError(f"drafter and target do not fit: {'; '.join(reasons)}")
        # A Target of its own: other pairs may share the model, with other taps.
        self.target = self.target.tapped(self.drafter.config.target_layer_ids)
        if self.widths is None:
            self.widths = WidthController(self.block_size)

    @property
    def facts(self) -> TargetFacts:
        """What decides which drafters fit."""
        return TargetFacts(self.target.hidden_size, self.target.num_layers, self.target.vocab_size)

    @property
    def engine(self) -> str:
        """The engine in force: plain, dflash or dflash2."""
        return self.drafter.engine if self.drafter else "plain"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not in force, each with its reason: options, and block sizes that are never chosen."""
        notes = self.drafter.notes if self.drafter else ()
        if self.widths is not None and self.widths.alarm is not None:
            notes = (*notes, self.widths.alarm)
        if self.widths is None or not self.widths.avoided:
            return notes
        sizes = ", ".join(map(str, sorted(self.widths.avoided)))
        return (*notes, f"block size {sizes} is never chosen: a verify does not give the target's own logits there")

    @property
    def block_size(self) -> int:
        """The checkpoint's block size, anchor included; 1 without a drafter."""
        return self.drafter.config.block_size if self.drafter else 1

    def new_state(self) -> DecodeState:
        """Empty caches for one conversation."""
        return DecodeState(self.target, self.drafter)

    def chooser(self, request: Request) -> WidthChooser | None:
        """What chooses the width of each cycle of a request; None without a drafter."""
        widths = self.widths
        if widths is None or self.drafter is None:
            return None
        most, kind = request.block_size, request.kind
        if request.verify_precision == "reference":
            return FixedWidth(most, f"block {most} throughout: rows are verified one by one, which is not measured")
        if most == 1:
            return HeldWidth(widths, kind, 1, "plain decoding, as asked for")
        if not request.automatic and request.verify_mode == "dflash":
            return HeldWidth(widths, kind, most, f"block {most}, as asked for")
        if request.seeded and not request.law.deterministic:
            least = 2 if request.verify_mode == "dflash" else 1
            return HeldWidth(widths, kind, *widths.best_for_seed(kind, most, least=least))
        if request.verify_mode == "dflash":
            best, reason = widths.best_block(kind, most, len(request.prompt))
            return HeldWidth(widths, kind, best, reason, chosen=True)
        return AdaptiveWidth(widths, kind, most)

    def new_stats(self, block_size: int, verify_mode: str) -> Stats:
        """Statistics of a request that runs with `block_size`; block size 1 is the plain engine whatever is loaded."""
        plain = self.drafter is None or block_size == 1
        return Stats(
            block_size=1 if plain else block_size,
            verify_mode="off" if self.drafter is None else verify_mode,
            draft_quant=self.drafter.quantization if self.drafter else "off",
            engine="plain" if plain else self.engine,
            fallback_reason=self.fallback_reason,
            pair_alarm=None if plain or self.widths is None else self.widths.alarm,
        )


def load(
    model: str = DEMO,
    drafter: str | None = AUTO,
    *,
    quantize: str | None = None,
    dtype: str | None = None,
    draft_window: int | None = None,
    draft_sink: int = 0,
    allow_fallback: bool = False,
    progress: Progress | None = None,
) -> Pair:
    """Load a target and its drafter; paths and Hub ids are equal, `demo` is the embedded pair.

    `drafter` None decodes plainly; "auto" takes the published drafter for the target's shape and decodes plainly,
    with the reason in `fallback_reason`, where none is known. `quantize` packs the drafter at load
    (`w4a16:gs64`), `dtype` is the target's compute dtype. The drafter sees context at distances below `draft_window`
    (None: as its checkpoint says) and the first `draft_sink` tokens at any distance. A drafter that does not load or
    fit fails the load, unless `allow_fallback`: then the pair is plain and says why. `progress` is called with
    "target" or "drafter" and a share.

    Raises ModelNotFound, CheckpointError, PairError, TargetError or RequestError.
    """
    parse_spec(quantize)
    report = progress or (lambda stage, share: None)
    pair = _load_target(model, dtype, report)
    if drafter is None:
        return pair
    name = _drafter_for(pair) if drafter == AUTO else drafter
    if name is None:
        reason = f"no drafter is known for {model} {tuple(pair.facts)}: name one with --draft, or train one"
        log.warning("plain decoding: %s", reason)
        return replace(pair, fallback_reason=reason)
    try:
        options = {"spec": quantize, "draft_window": draft_window, "draft_sink": draft_sink}
        return _with_drafter(pair, name, options, report)
    except DFlashError as error:
        if not allow_fallback or isinstance(error, EngineBusy):  # whoever is told of the progress has stopped it
            raise
        log.warning("plain decoding: the drafter %s failed: %s", name, error)
        return replace(pair, fallback_reason=f"the drafter {name} failed: {error}")


def with_drafter(pair: Pair, drafter: str, *, quantize: str | None = None, progress: Progress | None = None) -> Pair:
    """The target of `pair`, which has no drafter, with a drafter as `load` takes it: several pairs share one target.

    They run on one thread, one at a time. Raises what `load` raises, and PairError where no drafter is known.
    """
    if pair.drafter is not None:
        raise PairError(f"the pair has a drafter, {pair.drafter_name}: load its target without one")
    name = _drafter_for(pair) if drafter == AUTO else drafter
    if name is None:
        raise PairError(f"no drafter is known for {pair.model_name} {tuple(pair.facts)}: name one with --draft")
    options = {"spec": quantize, "draft_window": None, "draft_sink": 0}
    return _with_drafter(pair, name, options, progress or (lambda stage, share: None))


def _load_target(model: str, dtype: str | None, report: Progress) -> Pair:
    if model == DEMO:
        from .demo.paths import target_path

        folder = target_path(progress=lambda share: report("convert", share))
    else:
        folder = hub.resolve(model)
    if is_drafter(read_config(folder)):
        raise CheckpointError(
            f"{model} is a DFlash drafter, no chat model: give it with --draft, its target with --model"
        )
    unpack = model == DEMO and packed_is_slow()
    loaded = load_target(folder, dtype=dtype, dequantize=unpack, progress=lambda share: report("target", share))
    return Pair(
        Target(loaded.model),
        tokenizer=loaded.tokenizer,
        model_name=model,
        defaults=loaded.defaults,
        config=loaded.config,
        identity=checkpoint_identity(folder, dtype, unpack),
    )


def _drafter_for(pair: Pair) -> str | None:
    return DEMO if pair.model_name == DEMO else published_drafter(pair.facts, pair.model_name)


def _with_drafter(pair: Pair, name: str, options: dict[str, Any], report: Progress) -> Pair:
    if name == DEMO:
        from .demo.paths import drafter_path

        folder = drafter_path()
    else:
        folder = hub.resolve(name)
    report("drafter", 0.0)
    unpack = name == DEMO and packed_is_slow()
    drafter = load_drafter(folder, dtype=pair.target.drafter_dtype, dequantize=unpack, **options)
    identity = checkpoint_identity(folder, pair.identity, unpack, options)
    loaded = replace(pair, drafter=drafter, drafter_name=name, identity=identity)
    report("drafter", 1.0)
    _measured(loaded, report)
    return loaded


def _measured(pair: Pair, report: Progress) -> None:
    """Take up what was measured of the pair on this machine before, check exactness once, and keep what will come."""
    if pair.widths is None or pair.identity is None:
        return
    store = WidthStore(made_for(pair.identity))
    store.restore(pair.widths)
    pair.widths.store = store
    if store.exactness is None or store.exactness.verdict == "different":  # what is bad news is checked again
        check_exactness(pair, lambda share: report("exactness", share))
    else:
        pair.exactness = store.exactness


def check_exactness(pair: Pair, progress: Callable[[float], None] = lambda share: None) -> ExactnessReport:
    """Check every block size of a pair with a drafter now; what is not exact is never chosen. Kept where it can be."""
    tokens = sample_tokens(pair.tokenizer, pair.target.vocab_size)
    found = exactness(pair.target, range(2, pair.block_size + 1), tokens=tokens, progress=progress)
    pair.exactness = found
    if pair.widths is not None:
        pair.widths.avoided = frozenset(w.width for w in found.widths if w.verdict == "different")
        if pair.widths.store is not None:
            pair.widths.store.exactness = found
            pair.widths.store.save(pair.widths)
    if found.verdict == "different":
        log.warning("a verify does not give this target's own logits on this machine: %s", found.summary)
    return found


def kept_exactness(
    target: Path, drafter: Path, *, embedded: tuple[bool, bool] = (False, False), spec: str | None = None
) -> ExactnessReport | None:
    """What the check at a load of those folders on this machine has told; nothing is loaded for it.

    `embedded` tells whether target and drafter are those of the demo pair.
    """
    slow = packed_is_slow()
    options = {"spec": spec, "draft_window": None, "draft_sink": 0}
    identity = checkpoint_identity(target, None, embedded[0] and slow)
    store = WidthStore(made_for(checkpoint_identity(drafter, identity, embedded[1] and slow, options)))
    store.read()
    return store.exactness


def packed_is_slow() -> bool:
    """Whether packed products cost more than plain ones: MLX's CPU backend runs them without a BLAS (docs/log.md)."""
    return bool(mx.default_device() == mx.cpu) and _blas.status().library is not None
