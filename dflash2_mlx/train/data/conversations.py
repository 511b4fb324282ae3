"""Items of a plan to conversations, in the plan's order: prompts encoded, answers awaited, existing ones taken up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import RequestError
from ...text.prompt import build_prompt
from ...text.template import ChatTemplate
from .answers import Asked
from .plan import Item
from .tokens import Conversation

Answering = Callable[[Iterable[Asked]], Iterator[tuple[int, list[int]]]]


class Encoder:
    """Prompts to ids by one tokenizer; `reasoning` as in `ChatTemplate.render`."""

    def __init__(self, tokenizer: Any, *, reasoning: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.reasoning = reasoning

    @cached_property
    def template(self) -> ChatTemplate:
        try:
            return ChatTemplate(self.tokenizer)
        except RequestError:
            message = "the target's tokenizer has no chat template: such a model goes on with texts, give --texts"
            raise RequestError(message, param="model") from None

    def prompt(self, item: Item) -> list[int]:
        """The ids that the target answers; none where its chat template refuses the messages."""
        if item.text is not None:
            return list(self.tokenizer.encode(item.text))
        template = self.template
        try:
            return list(build_prompt(template, item.messages, reasoning=self.reasoning).ids)
        except RequestError:
            return []

    def completion(self, item: Item) -> list[int]:
        """The ids of an answer that is there as text: those that the tokenizer gives for it."""
        assert item.completion is not None
        ids = list(self.tokenizer.encode(item.completion, add_special_tokens=False))
        return [*ids, self.tokenizer.eos_token_id] if item.finished else ids


def conversations(
    items: Sequence[Item], first: int, encoder: Encoder, answering: Answering, *, max_prompt_tokens: int, shortest: int
) -> Generator[Conversation | None, None, None]:
    """The conversation of each item from `first` on; None for one that is left out.

    Left out are prompts of more than `max_prompt_tokens` or that the chat template refuses, and answers of fewer than
    `shortest` tokens.
    """
    prompts: dict[int, list[int]] = {}

    def fits(prompt: list[int]) -> bool:
        return 0 < len(prompt) <= max_prompt_tokens

    def asked() -> Iterator[Asked]:
        for number in range(first, len(items)):
            item = items[number]
            if item.completion is None:
                prompts[number] = encoder.prompt(item)
                if fits(prompts[number]):
                    yield Asked(number, prompts[number], item.temperature, item.seed)

    answers = answering(asked())
    found: dict[int, list[int]] = {}
    for number in range(first, len(items)):
        item = items[number]
        if item.completion is not None:
            prompt, answer = encoder.prompt(item), encoder.completion(item)
        else:
            # An answer that nobody was asked for: the prompt did not fit.
            while number not in found and fits(prompts.get(number, [0])) and (other := next(answers, None)) is not None:
                found[other[0]] = other[1]
            prompt, answer = prompts.pop(number, []), found.pop(number, [])
        yield _conversation(prompt, answer, item.temperature) if fits(prompt) and len(answer) >= shortest else None


def _conversation(prompt: Sequence[int], answer: Sequence[int], temperature: float) -> Conversation:
    mask = np.zeros(len(prompt) + len(answer), dtype=np.bool_)
    mask[len(prompt) :] = True
    return Conversation(np.array([*prompt, *answer], dtype=np.int32), mask, temperature)
