"""What a prompt is, and the digest that a result carries of its prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KINDS = ("code", "mathematics", "chat", "prose", "structured", "copy-edit", "translation")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Chat messages that end with a user's; `source` says where they are from: "own", a set's name, a file.

    `id` is unique within its source. `kind` is one of KINDS, or what a user's file says.
    """

    id: str
    kind: str
    messages: tuple[Mapping[str, str], ...]
    source: str


def digest(prompts: Sequence[Prompt]) -> str:
    """12 hexadecimal digits of the SHA-256 of kinds and messages in their order: equal for equal questions."""
    content = [[prompt.kind, [dict(message) for message in prompt.messages]] for prompt in prompts]
    text = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
