"""Fresh texts of a target: its greedy answer to a prompt, and one drawn from its whole law."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import RequestError
from ..pairs import Pair
from ..text.stream import generate
from ..text.template import ChatTemplate
from .text import RecordedText, drafter_label, target_identity


def prompt_ids(pair: Pair, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """A conversation through the target's chat template; of a base model, which has none, its texts as they are.

    Raises RequestError without a tokenizer.
    """
    if pair.tokenizer is None:
        raise RequestError(f"{pair.model_name} has no tokenizer: give recorded texts", param="prompts")
    if not pair.tokenizer.has_chat_template:
        ids: list[int] = pair.tokenizer.encode("\n\n".join(message["content"] for message in messages))
        return ids
    template = ChatTemplate(pair.tokenizer)
    return template.encode(template.render([dict(message) for message in messages]))


def write_text(
    pair: Pair,
    prompt: Sequence[int],
    kind: str,
    *,
    tokens: int,
    temperature: float,
    seed: int = 0,
) -> RecordedText:
    """The target's answer of up to `tokens` tokens, decoded with the drafter at its checkpoint's block size."""
    answer = generate(
        pair,
        prompt,
        max_tokens=tokens,
        temperature=temperature,
        seed=seed,
        block_size=pair.block_size,
        verify_mode="dflash",
    )
    return RecordedText(
        prompt=tuple(prompt),
        answer=tuple(answer.tokens),
        kind=kind,
        temperature=temperature,
        model=pair.model_name,
        identity=target_identity(pair),
        vocab_size=pair.target.vocab_size,
        drafter=drafter_label(pair),
        cycles=answer.stats.cycles,
        cycle_tokens=answer.stats.cycle_tokens,
    )


def write_texts(
    pair: Pair,
    prompts: Sequence[tuple[Sequence[int], str]],
    temperatures: Sequence[float],
    *,
    tokens: int,
    seed: int = 0,
) -> Iterator[RecordedText]:
    """A text at each temperature for each (ids, kind), one at a time; prompt n draws with seed + n."""
    for number, (ids, kind) in enumerate(prompts):
        for temperature in temperatures:
            yield write_text(pair, ids, kind, tokens=tokens, temperature=temperature, seed=seed + number)
