"""One checked request: token ids, a law and limits. Whatever is wrong is refused here, before a model is touched."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import RequestError
from .constraint import Constraint
from .laws import SamplingLaw, sampling_law

if TYPE_CHECKING:
    from .state import DecodeState

VERIFY_MODES = ("adaptive", "dflash", "off")
_PLANNED_MODES = ("ddtree",)
VERIFY_PRECISIONS = ("fast", "reference")
_MOST_ALTERNATIVES = 20

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `decode.generate` runs; build it with `make_request`.

    `block_size` counts the anchor, 1 is plain decoding; it is the most where the width is chosen by measurement: in
    verify mode adaptive for each cycle, in mode dflash, when it was left open (`automatic`), once. Verify precision
    reference feeds the rows of a block one by one, for comparison: exact, and no faster than plain. `logprobs` is the
    number of alternatives to report next to each token's own log-probability, None for neither. `cut` may look at new
    tokens and keep only so many. `constraint` says which tokens may stand. Prefill stops at the positions `borders`
    and calls `at_border`; with `turns` it gives an empty step after each chunk, so that whoever runs it may do
    something else meanwhile.
    """

    prompt: tuple[int, ...]
    law: SamplingLaw
    max_tokens: int
    block_size: int
    verify_mode: str
    seed: int
    verify_precision: str = "fast"
    automatic: bool = False
    seeded: bool = False  # the seed was given: what was drawn is to be drawn again
    logprobs: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    prefill_step_size: int = 2048
    progress: Progress = field(default=lambda done, total: None)
    cancelled: Callable[[], bool] = field(default=lambda: False)
    cut: Callable[[Sequence[int]], int | None] = field(default=lambda tokens: None)
    constraint: Constraint | None = None
    borders: frozenset[int] = frozenset()
    at_border: Callable[[DecodeState], None] = field(default=lambda state: None)
    turns: bool = False

    @property
    def kind(self) -> str:
        """What acceptance is averaged by."""
        if self.constraint is not None:
            return "constrained"
        return "greedy" if self.law.deterministic else "sampled"


def make_request(
    prompt: Sequence[int],
    *,
    vocab_size: int,
    checkpoint_block_size: int,
    max_tokens: int = 256,
    block_size: int | None = None,
    verify_mode: str = "dflash",
    verify_precision: str = "fast",
    seed: int | None = None,
    logprobs: int | None = None,
    eos_token_ids: Collection[int] = (),
    prefill_step_size: int = 2048,
    progress: Progress | None = None,
    cancelled: Callable[[], bool] | None = None,
    cut: Callable[[Sequence[int]], int | None] | None = None,
    constraint: Constraint | None = None,
    **law: Any,
) -> Request:
    """Check every parameter; the rest of the keywords are SamplingLaw's.

    Raises RequestError that names the parameter, its value and the remedy.
    """
    if verify_mode not in VERIFY_MODES:
        planned = ", which this version does not have yet" if verify_mode in _PLANNED_MODES else ""
        raise RequestError(f"verify_mode {verify_mode!r}{planned}: use one of {VERIFY_MODES}", param="verify_mode")
    if verify_precision not in VERIFY_PRECISIONS:
        given = f"verify_precision is {verify_precision!r}"
        raise RequestError(f"{given}: use one of {VERIFY_PRECISIONS}", param="verify_precision")
    if checkpoint_block_size == 1 and block_size not in (None, 1):
        raise RequestError(f"block_size is {block_size!r}: there is no drafter, decoding is plain", param="block_size")
    block = checkpoint_block_size if block_size is None else _whole("block_size", block_size, 1, checkpoint_block_size)
    hooks: dict[str, Any] = {"progress": progress, "cancelled": cancelled, "cut": cut}
    for name, hook in hooks.items():
        if hook is not None and not callable(hook):
            raise RequestError(f"{name} is {hook!r}: it must be a function", param=name)
    return Request(
        prompt=_check_prompt(prompt, vocab_size),
        law=sampling_law(vocab_size=vocab_size, **law),
        max_tokens=_whole("max_tokens", max_tokens, 1, 1 << 31),
        block_size=1 if verify_mode == "off" else block,
        verify_mode=verify_mode,
        verify_precision=verify_precision,
        automatic=block_size is None,
        seeded=seed is not None,
        seed=int.from_bytes(os.urandom(7)) if seed is None else _whole("seed", seed, 0, (1 << 64) - 1),
        logprobs=None if logprobs is None else _whole("logprobs", logprobs, 0, min(_MOST_ALTERNATIVES, vocab_size)),
        eos_token_ids=end_tokens(eos_token_ids),
        prefill_step_size=_whole("prefill_step_size", prefill_step_size, 1, 1 << 31),
        constraint=constraint,
        **{name: hook for name, hook in hooks.items() if hook is not None},
    )


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise RequestError(f"{name} is {value!r}: it must be a whole number from {low} to {high}", param=name)
    return value


def end_tokens(ids: Any) -> frozenset[int]:
    """The checked set of end tokens; an id that the vocabulary lacks never comes and is no error."""
    fitting = isinstance(ids, Iterable) and not isinstance(ids, str | bytes)
    found = list(ids) if fitting else []
    if not fitting or any(isinstance(token, bool) or not isinstance(token, int) or token < 0 for token in found):
        raise RequestError(f"eos_token_ids is {ids!r}: it must be a collection of token ids", param="eos_token_ids")
    return frozenset(found)


def _check_prompt(prompt: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
        raise RequestError(f"prompt is {prompt!r}: it must be a text or token ids", param="prompt")
    ids = tuple(prompt.tolist() if hasattr(prompt, "tolist") else prompt)
    if not ids:
        raise RequestError("the prompt is empty: give at least one token", param="prompt")
    for i, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise RequestError(
                f"prompt token {i} is {token!r}: it must be an id from 0 to {vocab_size - 1}", param="prompt"
            )
    return ids
