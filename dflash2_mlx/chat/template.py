"""Messages to prompt ids by the tokenizer's chat template.

Control tokens come from the template alone: where a message *says* `<|im_end|>`, the model reads those
characters, never the token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dflash2_mlx.errors import RequestError

Message = dict[str, str]

# A noncharacter of Unicode: no text holds it, no template looks for it. It stands inside a literal
# control token (`<` MARK `|im_end|>`) from the message until the text is encoded.
MARK = "\ufdd0"

_SWITCHES = ("enable_thinking", "thinking")
_EFFORTS = ("reasoning_effort", "reasoning_strength")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_STRING = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


class ChatTemplate:
    """The chat template of one tokenizer (mlx-lm's `TokenizerWrapper`).

    Raises RequestError when the tokenizer has none.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "has_chat_template", False):
            raise RequestError("the model's tokenizer has no chat template: use `generate --raw`", param="model")
        self.tokenizer = tokenizer
        self._source = _template_text(tokenizer)
        self._controls = control_tokens(tokenizer, self._source)
        self._plain = _any_of(self._controls)
        self._marked = _any_of([token[:1] + MARK + token[1:] for token in self._controls])

    def guard(self, text: str) -> str:
        """`text` with its literal control tokens marked, so that neither template nor tokenizer sees them."""
        return self._plain.sub(lambda found: found[0][:1] + MARK + found[0][1:], text.replace(MARK, ""))

    def render(
        self,
        messages: Sequence[Message],
        *,
        reasoning: str | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text up to where the answer begins, literal control tokens marked.

        Raises RequestError when the template refuses the messages or knows no such reasoning.
        """
        arguments = {**self.reasoning_arguments(reasoning), **(extra or {})}
        guarded = [{key: self.guard(value) for key, value in message.items()} for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(guarded, tokenize=False, add_generation_prompt=True, **arguments)
        except Exception as error:  # whatever a template of unknown origin raises: it runs as code
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return str(text)

    def encode(self, text: str, *, known_text: str = "", known_ids: Sequence[int] = ()) -> list[int]:
        """Token ids of a rendered text; what was marked becomes plain characters.

        Where the text begins with `known_text` (unmarked), the ids of that part are `known_ids`: the tokens
        that a model chose need not be those that its text is encoded to, and the caches hold the former.
        """
        if known_text and unmarked(text).startswith(known_text):
            return [*known_ids, *self.encode(text[_position(text, len(known_text)) :])]
        ids: list[int] = []
        start = 0
        for found in self._marked.finditer(text):
            ids += self._encode(text[start : found.start()])
            ids += self._encode_plainly(found[0].replace(MARK, ""))
            start = found.end()
        return ids + self._encode(text[start:])

    def reasoning_arguments(self, choice: str | None) -> dict[str, Any]:
        """The template's own argument for on, off, low, medium or high; none for None.

        Raises RequestError when the template reads no such key.
        """
        if choice is None:
            return {}
        switch = self._first_used(_SWITCHES) or self._renderer_switch()
        effort = self._first_used(_EFFORTS)
        if choice in ("on", "off"):
            return _switch(choice, switch, effort)
        if effort is None:
            known = "it can only be on or off" if switch else "the template knows no reasoning"
            raise RequestError(f"reasoning {choice!r}: {known}", param="reasoning")
        return {effort: choice, **({switch: True} if switch else {})}

    def _first_used(self, names: Sequence[str]) -> str | None:
        code = " ".join(_STRING.sub("", block) for block in _CODE.findall(_COMMENT.sub("", self._source)))
        return next((name for name in names if re.search(rf"\b{name}\b", code)), None)

    def _renderer_switch(self) -> str | None:
        """mlx-lm maps `enable_thinking` for the models whose template is Python code."""
        return "enable_thinking" if not self._source and self.tokenizer.has_thinking else None

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _encode_plainly(self, token: str) -> list[int]:
        """A control token's characters. Cut in two where the tokenizer would know it even as plain text."""
        ids = list(self.tokenizer.encode(token, add_special_tokens=False, split_special_tokens=True))
        if not self._known_ids.intersection(ids):
            return ids
        if len(token) == 1:
            raise RequestError(f"the text holds {token!r}, which this model knows only as a control token")
        return self._encode_plainly(token[:1]) + self._encode_plainly(token[1:])

    @property
    def _known_ids(self) -> set[int]:
        return {int(i) for i in self.tokenizer.convert_tokens_to_ids(self._controls)}


def unmarked(text: str) -> str:
    """A rendered text as one would print it."""
    return text.replace(MARK, "")


def control_tokens(tokenizer: Any, template: str = "") -> list[str]:
    """Texts of the tokens that steer a model, longest first.

    These are the special ones, and of the other added ones those that the chat template writes or that
    look like `<|this|>`. Added runs of blanks and HTML tags, which some vocabularies have, are text.
    """
    found = []
    for token in tokenizer.added_tokens_decoder.values():
        text = str(token)
        steers = token.special or text in template or re.fullmatch(r"<\|.+>|<.+\|>", text)
        if text.strip() and steers:
            found.append(text)
    return sorted(found, key=len, reverse=True)


def _switch(choice: str, switch: str | None, effort: str | None) -> dict[str, Any]:
    if switch is not None:
        return {switch: choice == "on"}
    if effort is None:
        raise RequestError(f"reasoning {choice!r}: the model's chat template knows no reasoning", param="reasoning")
    if choice == "off":
        raise RequestError(
            "reasoning 'off': the template has no switch for it, only low, medium and high", param="reasoning"
        )
    return {}  # such a template always reasons, by its own default


def _position(text: str, characters: int) -> int:
    """The index in a marked text before which `characters` unmarked ones stand."""
    for index, character in enumerate(text):
        if characters == 0:
            return index
        characters -= character != MARK
    return len(text)


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """A pattern for any of the texts; for none of them, one that never matches."""
    return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")


def _template_text(tokenizer: Any) -> str:
    """The Jinja source; empty when the template is Python code."""
    source = getattr(tokenizer, "chat_template", None)
    if isinstance(source, Mapping):  # named templates
        source = source.get("default", "")
    return source if isinstance(source, str) else ""
