"""The prompts on which acceptance is measured: some of the package's own, as token ids of one tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from dflash2_mlx.prompts import KINDS, Prompt, own
from dflash2_mlx.text.prompt import build_prompt
from dflash2_mlx.text.template import ChatTemplate


def chosen(count: int) -> list[Prompt]:
    """The first `count` of the package's own prompts, one of each kind after the other."""
    return list(chain.from_iterable(zip(*(own([kind]) for kind in KINDS), strict=True)))[:count]


def token_ids(tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """By the tokenizer's chat template; without one, the texts as they are."""
    if not getattr(tokenizer, "has_chat_template", False):
        return [list(tokenizer.encode("\n\n".join(m["content"] for m in p.messages))) for p in prompts]
    template = ChatTemplate(tokenizer)
    return [build_prompt(template, prompt.messages).ids for prompt in prompts]
