"""A target whose logits follow a script, for the real engine: what it says depends on the prompt alone.

It keeps the ids that it was fed in an ordinary key-value cache, so that rollback, snapshots and reuse are the real
ones: a wrong cache makes it lose its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx_lm.models.cache import KVCache
from mlx_lm.tokenizer_utils import TokenizerWrapper

from dflash2_mlx.drafter.load import load_drafter
from dflash2_mlx.pairs import Pair
from dflash2_mlx.target.adapter import Target
from tests.chat_doubles import make_tokenizer
from tests.tiny_drafters import tiny_drafter_config, write_drafter

HIDDEN = 32
BEGIN = "<|im_start|>assistant\n"

# ChatML with tools and thinking, as Qwen3's: thinking of earlier turns is left out.
TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    'Call them as <tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call><|im_end|>\n'
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{% if not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}"
    "{% elif message.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response>"
    "<|im_end|>\n"
    "{% else %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for tool_call in message.tool_calls or [] %}"
    "{% if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}"
    "{% if not loop.first or message.content %}{{ '\\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ tool_call.name }}", "arguments": '
    "{{ tool_call.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


class ScriptedLayer(nn.Module):
    """Keeps ids in its cache, (1, 1, n, 1); what it does to the hidden rows only has to differ by row."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = mx.ones((HIDDEN,))

    def __call__(self, x: mx.array, ids: mx.array, cache: Any) -> tuple[mx.array, mx.array]:
        rows = ids[:, None, :, None].astype(mx.float32)
        history, _ = cache.update_and_fetch(rows, rows)
        return x * self.scale, history


class _Tapped(nn.Module):
    """One layer whose output is the rows alone: what a tap sees."""

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        return x + 1


class ScriptedModel(nn.Module):
    """An mlx-lm model: after the ids so far, the next is `choose(ids)`, by a margin of 20."""

    model_type = "scripted"

    def __init__(self, vocab_size: int, choose: Callable[[Sequence[int]], int]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, HIDDEN)
        self.keeper = ScriptedLayer()
        self.layers = [_Tapped(), _Tapped()]
        self.vocab_size = vocab_size
        self.choose = choose

    def make_cache(self) -> list[KVCache]:
        return [KVCache()]

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        cache = self.make_cache() if cache is None else cache
        x = self.embed_tokens(tokens)
        x, history = self.keeper(x, tokens, cache[0])
        for layer in self.layers:
            x = layer(x)
        known = [int(token) for token in history[0, 0, :, 0].tolist()]  # type: ignore[arg-type,union-attr]
        rows = tokens.shape[1]
        # In a long prefill nobody reads any row but the last.
        wanted = [self.choose(known[: len(known) - rows + 1 + i]) if rows <= 64 else 0 for i in range(rows)]
        logits = 20 * (mx.arange(self.vocab_size) == mx.array(wanted)[:, None]).astype(mx.float32)
        return (logits + 0 * x.sum(axis=-1, keepdims=True)[0])[None]


class Script:
    """What the target says: `answer` is given the whole prompt's text; the prompt ends with `BEGIN`."""

    def __init__(self, tokenizer: TokenizerWrapper, answer: Callable[[str], str], begin: str = BEGIN) -> None:
        self._tokenizer, self.answer = tokenizer, answer
        self._begin = list(tokenizer.encode(begin, add_special_tokens=False))
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, ids: Sequence[int]) -> int:
        at = self._last_begin(ids)
        prompt = tuple(ids[:at])
        if prompt not in self._answers:
            text = self.answer(self._tokenizer.decode(list(prompt)))
            self._answers[prompt] = [
                *self._tokenizer.encode(text, add_special_tokens=False),
                self._tokenizer.eos_token_id,
            ]
        said, answer = list(ids[at:]), self._answers[prompt]
        lost = said != answer[: len(said)] or len(said) >= len(answer)
        return int(self._tokenizer.eos_token_id if lost else answer[len(said)])

    def _last_begin(self, ids: Sequence[int]) -> int:
        size = len(self._begin)
        starts = range(len(ids) - size, -1, -1)
        return next((i + size for i in starts if list(ids[i : i + size]) == self._begin), 0)


def tools_tokenizer(template: str = TOOLS_TEMPLATE) -> TokenizerWrapper:
    """Bytes, ChatML, thinking tags, and mlx-lm's parser for JSON calls."""
    from mlx_lm.tool_parsers import json_tools

    inner = make_tokenizer(template)._tokenizer
    return TokenizerWrapper(
        inner,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
        tool_parser=json_tools.parse_tool_call,
    )


def scripted_pair(
    folder: Path, answer: Callable[[str], str], *, tokenizer: TokenizerWrapper | None = None, config: Any = None
) -> Pair:
    """A scripted target with a random drafter, nearly always wrong. To be made on the engine's thread."""
    tokenizer = tokenizer or tools_tokenizer()
    model = ScriptedModel(len(tokenizer), Script(tokenizer, answer))
    target = Target(model)
    drafter = load_drafter(
        write_drafter(folder, tiny_drafter_config(model, block_size=4, target_layer_ids=[0, 1])), dtype="float32"
    )
    return Pair(
        target, drafter, tokenizer, "scripted", "random", config={"max_position_embeddings": 100_000, **(config or {})}
    )
