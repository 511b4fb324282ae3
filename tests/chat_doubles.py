"""Doubles for the terminal's tests: a byte-level tokenizer with a chat template, a pair with a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dflash2_mlx.chat.options import REQUEST_PARAMETERS, ModelChoice
from dflash2_mlx.errors import RequestError

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# As Qwen3's: earlier thinking is dropped, and thinking can be switched off by a closed block in the prompt.
THINKING = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"


def make_tokenizer(template: str | None = CHATML) -> TokenizerWrapper:
    """A token for every byte, `<|im_start|>`, `<|im_end|>` (the end), and thinking tags, not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    core.add_tokens([AddedToken("<think>"), AddedToken("</think>"), AddedToken("  ")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.chat_template = template
    return TokenizerWrapper(tokenizer)


@dataclass
class FakeStats:
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": self.generation_tokens,
            "cycles": 4,
            "accepted_tokens": 6,
            "tokens_per_cycle": 2.5,
            "acceptance_by_position": [0.75, 0.5, 0.25],
            "prompt_tps": 100.0,
            "generation_tps": 20.0,
            "peak_memory_gb": 0.5,
            "block_size": 4,
            "verify_mode": "dflash",
            "draft_quant": "off",
            "engine": "dflash2",
            "fallback_reason": None,
            "dropped_blocks": 0,
            "alarm": None,
        }


@dataclass
class FakePair:
    tokenizer: Any = field(default_factory=make_tokenizer)
    model_name: str = "demo"
    drafter_name: str | None = "demo-drafter"
    engine: str = "dflash2"
    block_size: int = 4
    fallback_reason: str | None = None
    defaults: dict[str, Any] = field(default_factory=dict)

    def new_state(self) -> SimpleNamespace:
        return SimpleNamespace(tokens=[])


@dataclass
class FakeBackend:
    """Answers with the texts in `answers`, one after another, `rows` tokens a step.

    `interrupt_at` and `fail_at` are numbers of steps after which the stream raises.
    """

    answers: list[str] = field(default_factory=lambda: ["Paris."] * 9)
    rows: int = 3
    interrupt_at: int | None = None
    fail_at: int | None = None
    pairs: dict[str, Any] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    choices: list[ModelChoice] = field(default_factory=list)

    def load(self, choice: ModelChoice, progress: Any) -> Any:
        self.choices.append(choice)
        pair = self.pairs.get(choice.model, FakePair(model_name=choice.model))
        if isinstance(pair, Exception):
            raise pair
        return pair

    def check(self, pair: Any, parameters: Mapping[str, Any]) -> None:
        for name, value in parameters.items():
            assert name in REQUEST_PARAMETERS
            if name == "temperature" and (not isinstance(value, int | float) or not value >= 0):
                raise RequestError(f"temperature is {value!r}: it must be at least 0", param=name)

    def stream(self, pair: Any, prompt: str | list[int], **parameters: Any) -> Iterator[Any]:
        self.calls.append({"prompt": prompt, **parameters})
        state = parameters.pop("state", None) or SimpleNamespace(tokens=[])
        cancelled = parameters.pop("cancelled", None) or (lambda: False)
        progress = parameters.pop("progress", None)
        logprobs = parameters.pop("logprobs", None)
        self.check(pair, parameters)
        ids = pair.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        stats = FakeStats(prompt_tokens=len(ids), cached_tokens=common(state.tokens, ids[:-1]))
        if progress:
            progress(len(ids), len(ids))
        state.tokens = list(ids)
        spoken = [
            *pair.tokenizer.encode(self.answers.pop(0), add_special_tokens=False),
            pair.tokenizer.eos_token_id,
        ]
        for number, start in enumerate(range(0, len(spoken), self.rows)):
            self._raise_at(number)
            if cancelled():
                yield self._step(pair, [], "cancelled", None, stats)
                return
            tokens = spoken[start : start + self.rows]
            state.tokens += tokens
            stats.generation_tokens += len(tokens)
            yield self._step(pair, tokens, "stop" if tokens[-1] == spoken[-1] else None, logprobs, stats)

    def _raise_at(self, step: int) -> None:
        if step == self.interrupt_at:
            raise KeyboardInterrupt
        if step == self.fail_at:
            raise RequestError("the target failed")

    def _step(self, pair: Any, tokens: list[int], finish: str | None, logprobs: int | None, stats: FakeStats) -> Any:
        entries = [SimpleNamespace(token=t, logprob=-0.5, top=[(t, -0.5)][:logprobs]) for t in tokens]
        return SimpleNamespace(
            text=pair.tokenizer.decode([t for t in tokens if t != pair.tokenizer.eos_token_id]),
            tokens=tokens,
            accepted=max(len(tokens) - 1, 0),
            finish_reason=finish,
            logprobs=None if logprobs is None else entries,
            stats=stats,
        )


def common(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
