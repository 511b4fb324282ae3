"""Makes text of a model safe to write to a terminal."""

from __future__ import annotations

# Control characters could move the cursor, set the title or more: shown as pictures of themselves instead.
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
_PICTURES |= dict.fromkeys(range(128, 160), "�") | {0x7F: "\u2421"}


def visible(text: str) -> str:
    return text.translate(_PICTURES)
