"""Text in, text out: the public `stream_generate` and `generate` on top of token steps."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..decode.generate import TokenStep, generate_tokens
from ..decode.logprobs import TokenLogprobs
from ..decode.request import Request, end_tokens, make_request
from ..decode.state import DecodeState
from ..decode.stats import Stats
from ..errors import RequestError
from ..pairs import Pair
from .detokenise import Detokeniser
from .stops import StopFilter, stop_strings


@dataclass(frozen=True)
class GenerationStep:
    """What one cycle (or plain step) added.

    `text` is safe to show: joined, the texts equal the decode of all tokens, up to a stop string. `accepted` of the
    `tokens` were drafts. Exactly the last step has a `finish_reason`: "stop", "length" or "cancelled". `stats` is
    live.
    """

    text: str
    tokens: list[int]
    accepted: int
    finish_reason: str | None
    logprobs: list[TokenLogprobs] | None
    stats: Stats


@dataclass
class Generation:
    """A whole answer."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    stats: Stats = field(default_factory=Stats)


def stream_generate(
    pair: Pair,
    prompt: str | Sequence[int],
    *,
    stop: str | Sequence[str] | None = None,
    eos_token_ids: Collection[int] | None = None,
    ignore_eos: bool = False,
    state: DecodeState | None = None,
    **parameters: Any,
) -> Iterator[GenerationStep]:
    """Generate after `prompt`, a text (encoded as it is, without a chat template) or token ids.

    Parameters: max_tokens (256), temperature (0: greedy), top_p, top_k, min_p, repetition_penalty, presence_penalty,
    frequency_penalty and their *_context_size (20), logit_bias, seed, block_size (the checkpoint's; 1 decodes
    plainly), verify_mode ("adaptive", "dflash" or "off"), verify_precision ("fast", or "reference": one row at a time,
    for comparison), logprobs (number of alternatives; 0: the chosen token only), prefill_step_size (2048),
    progress(done, total), cancelled(). `stop` is a string or up to four; `eos_token_ids` defaults to the tokenizer's.
    `state` (see `Pair.new_state`) carries the caches from call to call: the longest prefix of the prompt that it holds
    is not run again.

    Everything is checked at the call, not at the first step: RequestError names the parameter. Closing the iterator,
    in any thread, leaves `state` at the emitted tokens.
    """
    run = TextRun(pair, prompt, stop=stop, eos_token_ids=eos_token_ids, ignore_eos=ignore_eos, **parameters)
    if state is None:
        # Nobody comes back to these caches: no marks, and a plain request need not keep the drafter's context up.
        drafter = pair.drafter if run.request.block_size > 1 else None
        state = DecodeState(pair.target, drafter, keeps_marks=False)
    elif not state.belongs_to(pair.target, pair.drafter):
        raise RequestError("state is that of another pair: use this pair's new_state()", param="state")
    return _steps(pair, run, state)


def generate(pair: Pair, prompt: str | Sequence[int], **parameters: Any) -> Generation:
    """The whole answer of `stream_generate`, which see for the parameters."""
    answer = Generation()
    for step in stream_generate(pair, prompt, **parameters):
        answer.text += step.text
        answer.tokens += step.tokens
        answer.finish_reason = step.finish_reason
        answer.stats = step.stats
        if step.logprobs is not None:
            answer.logprobs = (answer.logprobs or []) + step.logprobs
    return answer


def _prompt_ids(pair: Pair, prompt: str | Sequence[int]) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    if pair.tokenizer is None:
        raise RequestError("this pair has no tokenizer: give the prompt as token ids", param="prompt")
    ids: list[int] = pair.tokenizer.encode(prompt)
    return ids


def _end_tokens(pair: Pair, given: Any, ignore: Any) -> frozenset[int]:
    if not isinstance(ignore, bool):
        raise RequestError(f"ignore_eos is {ignore!r}: it must be true or false", param="ignore_eos")
    if given is None:
        given = pair.tokenizer.eos_token_ids if pair.tokenizer else ()
    ids = end_tokens(given)
    return frozenset() if ignore else ids


def _steps(pair: Pair, run: TextRun, state: DecodeState) -> Iterator[GenerationStep]:
    stats = pair.new_stats(run.request.block_size, run.request.verify_mode)
    chooser = pair.chooser(run.request)
    for step in generate_tokens(pair.target, pair.drafter, run.request, state, stats, chooser):
        yield run.step(step)


class TextRun:
    """A checked `request` with its text side: token steps to text, cut at stop strings. End tokens have no text.

    For whoever runs the request: `stream_generate`, which see for the parameters, or an engine.
    """

    def __init__(
        self,
        pair: Pair,
        prompt: str | Sequence[int],
        *,
        stop: str | Sequence[str] | None = None,
        eos_token_ids: Collection[int] | None = None,
        ignore_eos: bool = False,
        **parameters: Any,
    ) -> None:
        strings = stop_strings(stop)
        if strings and pair.tokenizer is None:
            raise RequestError("this pair has no tokenizer: it cannot see stop strings", param="stop")
        self._eos = _end_tokens(pair, eos_token_ids, ignore_eos)
        self._detokeniser = Detokeniser(pair.tokenizer) if pair.tokenizer else None
        self._stops = StopFilter(strings)
        self._ready: str | None = None
        self.request: Request = make_request(
            _prompt_ids(pair, prompt),
            vocab_size=pair.target.vocab_size,
            checkpoint_block_size=pair.block_size,
            eos_token_ids=self._eos,
            cut=self._cut if strings else None,
            **parameters,
        )

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.found

    def step(self, step: TokenStep) -> GenerationStep:
        """A step with its text."""
        text = self._take(step.tokens, last=step.finish_reason is not None)
        return GenerationStep(text, step.tokens, step.accepted, step.finish_reason, step.logprobs, step.stats)

    def _cut(self, tokens: Sequence[int]) -> int | None:
        """How many of the new tokens to keep: up to the one that completes a stop string; None: all."""
        self._ready = ""
        for count, token in enumerate(tokens, start=1):
            self._ready += self._add([token])
            if self._stops.stopped:
                return count
        return None

    def _take(self, tokens: Sequence[int], *, last: bool) -> str:
        if self._ready is None:
            shown = self._add(tokens)
        else:
            shown, self._ready = self._ready, None
        if last and self._detokeniser and not self._stops.stopped:
            shown += self._stops.add(self._detokeniser.finish())
            if not self._stops.stopped:
                shown += self._stops.finish()
        return shown

    def _add(self, tokens: Sequence[int]) -> str:
        if self._detokeniser is None:
            return ""
        return self._stops.add(self._detokeniser.add([t for t in tokens if t not in self._eos]))
