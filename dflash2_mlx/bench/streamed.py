"""A streamed chat completion, chunk by chunk: what came when, and what the server told of it at the end."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DFlashError

_DIGEST = 12  # hexadecimal characters
# Servers name reasoning differently, and some send it under both names.
_REASONING = ("reasoning_content", "reasoning")


@dataclass
class Streamed:
    """What has come so far. Times are those of the clock of whoever calls `add`.

    `first` and `last` are when the first and the last piece of text came, content or reasoning.
    """

    first: float | None = None
    last: float | None = None
    first_signs: int = 0
    pieces: int = 0
    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    ended: bool = False
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    engine: Mapping[str, Any] = field(default_factory=dict)

    def add(self, chunk: Mapping[str, Any], now: float) -> None:
        """Take a chunk in. Raises DFlashError where it is an error, ValueError where it has another form."""
        if chunk.get("error"):
            raise DFlashError(f"the server broke off: {error_text(chunk)}")
        for name, key in (("usage", "usage"), ("timings", "timings"), ("engine", "dflash")):
            if isinstance(chunk.get(key), Mapping):
                setattr(self, name, chunk[key])
        for choice in chunk.get("choices") or []:
            self._add_text(choice.get("delta") or {}, now)
            self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _add_text(self, delta: Mapping[str, Any], now: float) -> None:
        reasoning = next((delta[name] for name in _REASONING if delta.get(name)), "")
        content = delta.get("content") or ""
        if not reasoning and not content:
            return
        self.reasoning += reasoning
        self.content += content
        self.pieces += 1
        if self.first is None:
            self.first, self.first_signs = now, len(reasoning) + len(content)
        self.last = now

    @property
    def prompt_tokens(self) -> int | None:
        """As the server counted them, cached ones included; None where it does not tell."""
        return _count(self.usage, "prompt_tokens") or _count(self.timings, "prompt_n")

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the server had kept from another request."""
        details = self.usage.get("prompt_tokens_details")
        return (_count(details, "cached_tokens") if isinstance(details, Mapping) else None) or 0

    @property
    def generation_tokens(self) -> int | None:
        found = _count(self.usage, "completion_tokens")
        return found if found is not None else _count(self.timings, "predicted_n")

    @property
    def tokens_per_cycle(self) -> float | None:
        """Told by a dflash2-mlx server alone."""
        found = self.timings.get("tokens_per_cycle")
        return float(found) if isinstance(found, int | float) else None

    def seconds(self, tokens: int) -> float:
        """From the first token to the last of `tokens`.

        A first piece may hold several tokens, by its share of the text: time is added as if they had come one by one.
        0 where less than half of the tokens came after it: the rest would tell little of the whole.
        """
        if self.first is None or self.last is None:
            return 0.0
        signs = len(self.content) + len(self.reasoning)
        at_once = max(1.0, tokens * self.first_signs / signs)
        if tokens - at_once < max(1.0, tokens / 2):
            return 0.0
        return (self.last - self.first) * (tokens - 1) / (tokens - at_once)

    @property
    def digest(self) -> str:
        """Of the text, the reasoning included."""
        text = f"{self.reasoning}\0{self.content}".encode("utf-8", "surrogatepass")
        return hashlib.sha256(text).hexdigest()[:_DIGEST]


def data_of(line: str) -> str | None:
    """The data of a line of server-sent events; None for other lines."""
    return line[5:].strip() if line.startswith("data:") else None


def parse_chunk(data: str) -> Mapping[str, Any]:
    """Raises DFlashError for what is no chunk."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DFlashError(f"the server sent a chunk that is no JSON object: {data[:80]!r}")
    return found


def error_text(body: Any) -> str:
    """The message of an error object, in whichever of the usual forms it comes."""
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("detail") or error
    return " ".join(str(error).split())[:300]


def model_names(body: Any) -> list[str]:
    """The ids of a list of models; empty where it is none."""
    entries: Iterable[Any] = body.get("data") or [] if isinstance(body, Mapping) else []
    return [str(entry["id"]) for entry in entries if isinstance(entry, Mapping) and "id" in entry]


def _count(figures: Any, key: str) -> int | None:
    found = figures.get(key)
    return int(found) if isinstance(found, int | float) and not isinstance(found, bool) else None
