"""Texts of a target as token ids: what an analysis reads. Kept in JSON Lines, one text a line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import RequestError
from ..pairs import Pair

# Acceptance is told at these two; a text is the target's greedy one, or drawn from its whole law.
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class RecordedText:
    """What a target answered to a prompt, as ids; `temperature` 0 is its greedy text, 1 a draw of its whole law.

    `model` is its name and `identity` the digest of `target_identity`. `cycles` made `cycle_tokens` of the answer's
    tokens (all but the first) with `drafter` (see `drafter_label`).
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    kind: str
    temperature: float
    model: str
    identity: str
    vocab_size: int
    drafter: str | None = None
    cycles: int = 0
    cycle_tokens: int = 0

    @property
    def ids(self) -> list[int]:
        """Prompt and answer."""
        return [*self.prompt, *self.answer]


def target_identity(pair: Pair) -> str:
    """Stands for a target on every machine: a digest of its config and shape, 16 hex digits."""
    config = json.dumps(pair.config, sort_keys=True, default=str)
    return hashlib.sha256(f"{config} {tuple(pair.facts)}".encode()).hexdigest()[:16]


def drafter_label(pair: Pair) -> str | None:
    """The drafter's name, with its quantisation where there is one; None in plain decoding."""
    if pair.drafter is None:
        return None
    name, packing = pair.drafter_name or "drafter", pair.drafter.quantization
    return name if packing == "off" else f"{name} {packing}"


def prompts_digest(texts: Sequence[RecordedText]) -> str:
    """Of the prompts' ids, each once and in order, 12 hex digits."""
    prompts = dict.fromkeys(text.prompt for text in texts)
    return hashlib.sha256(repr(list(prompts)).encode()).hexdigest()[:12]


def append_text(path: Path, text: RecordedText) -> None:
    """Add one line to a recording; raises RequestError where the file cannot be written."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(text)) + "\n")
    except OSError as error:
        raise RequestError(f"{path} cannot be written ({error.strerror}): name another file", param="record") from None


def read_texts(path: Path) -> list[RecordedText]:
    """A whole recording. Raises RequestError that names file and line for what is no text."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read ({error}): give a file of --record", param="replay") from None
    texts = [_read_line(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise RequestError(f"{path} holds no text: give a file of --record", param="replay")
    return texts


def check_target(texts: Sequence[RecordedText], pair: Pair) -> None:
    """Raises RequestError when a text is another target's than that of `pair`."""
    for text in texts:
        if text.vocab_size != pair.target.vocab_size:
            raise RequestError(
                f"a recorded text of {text.model} has a vocabulary of {text.vocab_size}, {pair.model_name} has "
                f"{pair.target.vocab_size}: replay it with the target that wrote it",
                param="replay",
            )
        if text.identity != target_identity(pair):
            raise RequestError(
                f"a recorded text is of {text.model} (identity {text.identity}), not of {pair.model_name} "
                f"({target_identity(pair)}): replay it with the target that wrote it",
                param="replay",
            )


def _read_line(line: str, place: str) -> RecordedText:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _bad(place, f"is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise _bad(place, f"is {found!r}, expected an object")
    names = {field.name for field in fields(RecordedText)}
    if unknown := sorted(set(found) - names):
        raise _bad(place, f"has unknown keys {unknown}")
    vocabulary = _number(found, "vocab_size", place, least=1)
    temperature = found.get("temperature")
    if isinstance(temperature, bool) or temperature not in TEMPERATURES:
        raise _bad(place, f"has temperature {temperature!r}, expected 0 or 1")
    drafter = found.get("drafter")
    return RecordedText(
        prompt=_ids(found, "prompt", vocabulary, place),
        answer=_ids(found, "answer", vocabulary, place),
        kind=_word(found, "kind", place),
        temperature=float(temperature),
        model=_word(found, "model", place),
        identity=_word(found, "identity", place),
        vocab_size=vocabulary,
        drafter=None if drafter is None else _word(found, "drafter", place),
        cycles=_number({"cycles": 0, **found}, "cycles", place),
        cycle_tokens=_number({"cycle_tokens": 0, **found}, "cycle_tokens", place),
    )


def _ids(found: dict[str, Any], name: str, vocabulary: int, place: str) -> tuple[int, ...]:
    ids = found.get(name)
    if not isinstance(ids, list) or not ids:
        raise _bad(place, f"has {name} {ids!r}, expected a list of token ids")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise _bad(place, f"has {token!r} in {name}, expected ids from 0 to {vocabulary - 1}")
    return tuple(ids)


def _number(found: dict[str, Any], name: str, place: str, *, least: int = 0) -> int:
    value = found.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _bad(place, f"has {name} {value!r}, expected a whole number of at least {least}")
    return value


def _word(found: dict[str, Any], name: str, place: str) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise _bad(place, f"has {name} {value!r}, expected a text")
    return value


def _bad(place: str, what: str) -> RequestError:
    return RequestError(f"{place} {what}: mend the line, or record anew", param="replay")
