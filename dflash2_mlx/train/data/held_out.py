"""Prompts for evaluation, held out of training, with the target's own greedy answers, written once and kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import CheckpointError, RequestError
from ...prompts import KINDS, Prompt, from_jsonl, own
from ...prompts.jsonl import OTHER

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from ...pairs import Pair

FILE = "held_out.jsonl"
PER_KIND = 2  # of our own prompts
_LEAST_ANSWER = 2  # tokens: a cycle starts at the first
_AT_A_TIME = 16  # answers

_Ids = tuple[int, ...]


@dataclass(frozen=True)
class HeldOut:
    """Ids of a prompt and of the target's greedy answer to it."""

    prompt_ids: tuple[int, ...]
    kind: str
    answer: tuple[int, ...]


def some_of(held_out: Sequence[HeldOut], count: int | None) -> list[HeldOut]:
    """`count` of them, kinds in turn, in their order; None or more than there are: all."""
    number: dict[str, int] = {}
    turns = []
    for place, one in enumerate(held_out):
        turns.append((number.setdefault(one.kind, 0), place))
        number[one.kind] += 1
    return [held_out[place] for place in sorted(place for _, place in sorted(turns)[:count])]


def held_out_prompts(path: Path | None) -> list[Prompt]:
    """The prompts of a file: JSON Lines (`.jsonl`), else a text with one prompt a line; None: a few of our own.

    Raises RequestError (param held_out) that names file and line.
    """
    if path is None:
        return own(KINDS, PER_KIND)
    if path.suffix in (".jsonl", ".json"):
        try:
            return from_jsonl(path)
        except RequestError as error:
            raise RequestError(str(error), param="held_out") from None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise _refused(f"{path} cannot be read ({error.strerror or error}): name a file of prompts") from None
    except UnicodeDecodeError as error:
        raise _refused(f"{path} is no UTF-8 text ({error.reason}): name a file of prompts") from None
    found = [
        Prompt(id=str(n), kind=OTHER, messages=({"role": "user", "content": line.strip()},), source=path.name)
        for n, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not found:
        raise _refused(f"{path} holds no prompts: write one a line")
    return found


def answer(
    pair: Pair,
    prompts: Sequence[Prompt],
    tokens: int,
    *,
    kept: Path | None = None,
    identity: str = "",
    reasoning: str | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[HeldOut]:
    """The target's greedy answers of up to `tokens` tokens, decoded plainly, some at a time.

    Answers that are in the file `kept` for the same prompt, length and target (`identity`) are taken from there, new
    ones are added to it as they come. `reasoning` is that of `train data`. A prompt whose answer is shorter than two
    tokens is left out. Raises RequestError (param held_out) where nothing is left.
    """
    known = {} if kept is None else _read(kept)
    asked = [prompt_ids(pair.tokenizer, prompt.messages, reasoning) for prompt in prompts]
    missing = list(dict.fromkeys(ids for ids in asked if _key(ids, tokens, identity) not in known))
    for done, (ids, text) in enumerate(_greedy(pair, missing, tokens)):
        progress(len(prompts) - len(missing) + done, len(prompts))
        known[_key(ids, tokens, identity)] = text
        if kept is not None:
            _append(kept, ids, tokens, identity, text)
    progress(len(prompts), len(prompts))
    texts = (known[_key(ids, tokens, identity)] for ids in asked)
    found = [HeldOut(ids, one.kind, text) for ids, one, text in zip(asked, prompts, texts, strict=True)]
    long_enough = [one for one in found if len(one.answer) >= _LEAST_ANSWER]
    if not long_enough:
        raise _refused("the target answers every held-out prompt with an end token: give other prompts")
    return long_enough


def prompt_ids(
    tokenizer: TokenizerWrapper | None, messages: Sequence[Mapping[str, str]], reasoning: str | None = None
) -> tuple[int, ...]:
    """A conversation through the target's chat template; of a base model, which has none, its texts as they are.

    Raises RequestError (param model) without a tokenizer.
    """
    from ...text.prompt import build_prompt
    from ...text.template import ChatTemplate

    if tokenizer is None:
        raise RequestError("the target has no tokenizer: its folder is to hold one", param="model")
    if not tokenizer.has_chat_template:
        return tuple(tokenizer.encode("\n\n".join(message["content"] for message in messages)))
    return tuple(build_prompt(ChatTemplate(tokenizer), messages, reasoning=reasoning).ids)


def _greedy(pair: Pair, prompts: Sequence[_Ids], tokens: int) -> Iterator[tuple[_Ids, _Ids]]:
    """(prompt, answer) as the answers are finished."""
    from .answers import Asked, answers

    ends = pair.tokenizer.eos_token_ids if pair.tokenizer is not None else ()
    asked = [Asked(number, list(ids)) for number, ids in enumerate(prompts)]
    for number, text in answers(pair.target.model, asked, end_tokens=ends, max_tokens=tokens, batch=_AT_A_TIME):
        yield prompts[number], tuple(text)


_Key = tuple[tuple[int, ...], int, str]


def _key(ids: Sequence[int], tokens: int, identity: str) -> _Key:
    return tuple(ids), tokens, identity


def _read(path: Path) -> dict[_Key, tuple[int, ...]]:
    """Answers by key. A line that is cut or damaged is passed over: it is written anew."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        try:
            row = json.loads(line)
            found[_key(row["prompt"], row["tokens"], row["target"])] = tuple(row["answer"])
        except (ValueError, KeyError, TypeError):
            continue
    return found


def _append(path: Path, ids: Sequence[int], tokens: int, identity: str, text: Sequence[int]) -> None:
    row = {"prompt": list(ids), "tokens": tokens, "target": identity, "answer": list(text)}
    try:
        with path.open("a+", encoding="utf-8") as file:
            # A kill may have left the last line without its end.
            ends = file.tell() == 0 or path.read_bytes().endswith(b"\n")
            file.write(("" if ends else "\n") + json.dumps(row) + "\n")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written ({error.strerror or error}): make room and go on") from None


def _refused(message: str) -> RequestError:
    return RequestError(message, param="held_out")
