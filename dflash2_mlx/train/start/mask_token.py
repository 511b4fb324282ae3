"""The token that stands for a row to be drafted: one of the vocabulary that no text holds."""

from __future__ import annotations

import re
from typing import Any

from ...errors import RequestError

# Names of tokens that texts do not hold, the surest first. Only added tokens are asked, never words.
_NAMES = (
    r"mask",
    r"unused|reserved",
    r"extra_id|place.?holder|dummy|control_\d",
    r"fim.?pad|empty",
    r"fim|repo.?name|file.?sep|filename|gh_stars|issue_|jupyter",
)
_OWN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id")


def choose_mask_token(tokenizer: Any, vocabulary: int) -> int:
    """An id below `vocabulary`: an added token with such a name, else one past the tokenizer's own.

    Never one that ends, begins or pads a text, nor one that the chat template names. Raises RequestError (param
    mask_token) where none is left, or the tokenizer is None.
    """
    if tokenizer is None:
        raise _refusal("without a tokenizer none can be chosen")
    added = {int(i): str(token) for i, token in tokenizer.added_tokens_decoder.items() if int(i) < vocabulary}
    free = {i: name for i, name in added.items() if i not in _taken(tokenizer, added)}
    for pattern in _NAMES:
        for i, name in sorted(free.items()):
            if re.search(pattern, name, re.IGNORECASE):
                return i
    past = max(tokenizer.get_vocab().values()) + 1
    if past < vocabulary:
        return int(past)
    raise _refusal("the vocabulary has no mask, reserved or unused token")


def _taken(tokenizer: Any, added: dict[int, str]) -> set[int]:
    """Ids with a task in every text, and those whose name stands in the chat template."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    own = {getattr(tokenizer, name, None) for name in _OWN_IDS} | set(getattr(tokenizer, "eos_token_ids", None) or ())
    return {i for i in own if i is not None} | {i for i, name in added.items() if name in template}


def _refusal(reason: str) -> RequestError:
    return RequestError(f"no mask token: {reason}. Name an id that no text holds with --mask-token", param="mask_token")
