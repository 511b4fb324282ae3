"""Messages to prompt ids by the tokenizer's chat template.

Control tokens come from the template alone: where a message *says* `<|im_end|>`, the model reads those
characters, never the token.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..errors import RequestError
from .effort import Effort
from .tools import ToolFormat, template_source, tool_format

Message = dict[str, Any]

# A noncharacter of Unicode: no text holds it, no template looks for it. It stands inside a literal
# control token (`<` MARK `|im_end|>`) from the message until the text is encoded.
MARK = "\ufdd0"

# What `apply_chat_template` takes for itself: from outside it could bring another template in, or cut the prompt.
_PROMPT_OPTIONS = ("conversation", "messages", "tools", "chat_template", "add_generation_prompt")
_OTHER_OPTIONS = ("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors")
_NEWER_OPTIONS = ("return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "sanitize_control_tokens")
RESERVED = frozenset((*_PROMPT_OPTIONS, *_OTHER_OPTIONS, *_NEWER_OPTIONS))
# Beginnings of prompts (system message and tools) whose ids are kept: that of every client, and those of its side jobs.
_HEADS = 16


class Known(NamedTuple):
    """How later prompts may begin: a rendered prompt, marked, and the answer to it as text. `ids` are those of both."""

    prompt: str
    answer: str
    ids: Sequence[int]


class ChatTemplate:
    """The chat template of one tokenizer (mlx-lm's `TokenizerWrapper`).

    Raises RequestError when the tokenizer has none. `encode` may be called by several threads.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "has_chat_template", False):
            raise RequestError("the model's tokenizer has no chat template: use `generate --raw`", param="model")
        self.tokenizer = tokenizer
        self.source = template_source(tokenizer)
        self.encoded = lru_cache(maxsize=_HEADS)(self._encoded)
        self.generation_prompt = lru_cache(maxsize=_HEADS)(self._generation_prompt)
        python_switch = "enable_thinking" if not self.source and tokenizer.has_thinking else None
        self._effort = Effort(self.source, python_switch)
        self._controls = control_tokens(tokenizer, self.source)
        self._plain = _any_of(self._controls)
        marked = [token[:1] + MARK + token[1:] for token in self._controls]
        self._marked = _any_of(marked)
        self._either = _any_of([*self._controls, *marked])
        # A tokenizer keeps `split_special_tokens` from call to call: of two threads one would encode the other's way.
        self._lock = threading.Lock()

    @cached_property
    def tool_format(self) -> ToolFormat:
        """The format in which the model calls tools."""
        return tool_format(self.tokenizer)

    @cached_property
    def arguments_as_text(self) -> bool:
        """Whether the template prints a call's arguments as they are, so that they must be JSON text for it."""
        for as_text in (False, True):
            try:
                text = self.apply(_past_call(as_text=as_text))
            except RequestError:
                continue
            if as_text or "{'probe'" not in text:  # Python's way to print a dict
                return as_text
        return False

    def guard(self, text: str) -> str:
        """`text` with its literal control tokens marked, so that neither template nor tokenizer sees them."""
        return self._plain.sub(lambda found: found[0][:1] + MARK + found[0][1:], text.replace(MARK, ""))

    def guarded(self, value: Any) -> Any:
        """JSON-like data with every text in it guarded, the keys too."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, Mapping):
            return {self.guarded(key): self.guarded(item) for key, item in value.items()}
        return [self.guarded(item) for item in value] if isinstance(value, list | tuple) else value

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        reasoning: str | None = None,
        lenient: bool = False,
        extra: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text up to where the answer begins, literal control tokens marked.

        The messages are taken as they are; `prompt.build_prompt` is what brings a client's into the template's form.
        `reasoning` and `lenient` are `Effort.arguments`'; `extra` are further arguments of the template.
        Raises RequestError when the template refuses the messages or knows no such reasoning.
        """
        return self.apply(
            self.guarded(messages),
            tools=self.guarded(tools),
            arguments=self.arguments(reasoning, lenient=lenient, extra=extra),
            add_generation_prompt=add_generation_prompt,
        )

    def arguments(
        self, reasoning: str | None, *, lenient: bool = False, extra: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The template's arguments, for `apply`; `extra` wins."""
        refused = sorted(RESERVED.intersection(extra or {}))
        if refused:
            raise RequestError(
                f"{refused[0]!r} is no argument that a request may give the chat template: leave it out",
                param=f"chat_template_kwargs.{refused[0]}",
            )
        return {**self._effort.arguments(reasoning, lenient=lenient), **self.guarded(extra or {})}

    def apply(
        self,
        guarded: Sequence[Message],
        *,
        tools: Sequence[Message] = (),
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """`render` of what is guarded already."""
        given = {**(arguments or {}), **({"tools": list(tools)} if tools else {})}
        try:
            text = self.tokenizer.apply_chat_template(
                list(guarded), tokenize=False, add_generation_prompt=add_generation_prompt, **given
            )
        except Exception as error:  # whatever a template of unknown origin raises: it runs as code
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return str(text)

    def encode(
        self, text: str, *, known_prompt: str = "", known_text: str = "", known_ids: Sequence[int] = ()
    ) -> list[int]:
        """Token ids of a rendered text; what was marked becomes plain characters.

        Where the text begins with a known prompt and answer (see `end_of_known`), the ids of that part are
        `known_ids`: the tokens that a model chose need not be those that its text is encoded to, and the caches hold
        the former.
        """
        if end := self.end_of_known(text, known_prompt, known_text):
            return [*known_ids, *self.encode(text[end:])]
        ids: list[int] = []
        start = 0
        for found in self._marked.finditer(text):
            ids += self._encode(text[start : found.start()])
            ids += self._encode_plainly(found[0].replace(MARK, ""))
            start = found.end()
        return ids + self._encode(text[start:])

    def known(self, prompt: str, ids: Sequence[int], answer: str, tokens: Sequence[int]) -> Known | None:
        """A rendered prompt with its answer, for the prompts to come; None where text and tokens do not correspond.

        They do not where a stop string cut the text inside a token, or where the model spelt out a control token in
        plain characters: beside a template's own token of that name the text would look the same.
        """
        spoken = list(tokens)
        if spoken and spoken[-1] in self.tokenizer.eos_token_ids:
            spoken.pop()
        controls = sum(token in self._known_ids for token in spoken)
        if self.tokenizer.decode(spoken) != answer or len(self._plain.findall(answer)) != controls:
            return None
        return Known(prompt, answer, [*ids, *spoken])

    def end_of_known(self, text: str, prompt: str, answer: str) -> int:
        """Where a rendered text goes on after a known prompt and its answer; 0 where it does not begin with them.

        The prompt must be there with the same marks. The answer may have others: what the model wrote as control
        tokens comes back from a client as text.
        """
        if not text.startswith(prompt):
            return 0
        start = len(prompt)
        end = start + _position(text[start:], len(answer))
        if unmarked(text[start:end]) != answer:
            return 0
        around = (found for found in self._either.finditer(text, start) if found.end() > end)
        after = next(around, None)  # an answer cut off at "<" does not begin the token that ends another one
        return end if after is None or after.start() >= end else 0

    def reasoning_arguments(self, choice: str | None, *, lenient: bool = False) -> dict[str, Any]:
        """The template's own argument for a choice of reasoning; see `Effort.arguments`, which raises RequestError."""
        return self._effort.arguments(choice, lenient=lenient)

    def end_of_last_control(self, text: str) -> int:
        """Where the last control token of a rendered text ends: what comes later cannot change the ids before it."""
        return max((found.end() for found in self._plain.finditer(text)), default=0)

    def _encoded(self, text: str) -> tuple[int, ...]:
        """`encode` of a text that comes again and again; used as `encoded`."""
        return tuple(self.encode(text))

    def _generation_prompt(self, arguments_json: str) -> str:
        """What the template writes to open an answer; empty where it cannot be told. Used as `generation_prompt`."""
        dummy: list[Message] = [{"role": "user", "content": "x"}]
        arguments = json.loads(arguments_json)
        try:
            whole = self.apply(dummy, arguments=arguments)
            closed = self.apply(dummy, arguments=arguments, add_generation_prompt=False)
        except RequestError:
            return ""
        return whole.removeprefix(closed) if whole.startswith(closed) else ""

    def _encode(self, text: str, **options: Any) -> list[int]:
        if not text:
            return []
        with self._lock:
            return list(self.tokenizer.encode(text, add_special_tokens=False, **options))

    def _encode_plainly(self, token: str) -> list[int]:
        """A control token's characters. Cut in two where the tokenizer would know it even as plain text."""
        ids = self._encode(token, split_special_tokens=True)
        if not self._known_ids.intersection(ids):
            return ids
        if len(token) == 1:
            raise RequestError(f"the text holds {token!r}, which this model knows only as a control token")
        return self._encode_plainly(token[:1]) + self._encode_plainly(token[1:])

    @cached_property
    def _known_ids(self) -> frozenset[int]:
        return frozenset(int(i) for i in self.tokenizer.convert_tokens_to_ids(self._controls))


def unmarked(text: str) -> str:
    """A rendered text as one would print it."""
    return text.replace(MARK, "")


def control_tokens(tokenizer: Any, template: str = "") -> list[str]:
    """Texts of the tokens that steer a model, longest first.

    These are the special ones, and of the other added ones those that the chat template writes, that begin or end
    thinking, or that look like `<|this|>`. Added runs of blanks and HTML tags, which some vocabularies have, are text.
    """
    found = []
    thinking = {getattr(tokenizer, name, None) for name in ("think_start", "think_end")}
    for token in tokenizer.added_tokens_decoder.values():
        text = str(token)
        steers = token.special or text in template or text in thinking or re.fullmatch(r"<\|.+>|<.+\|>", text)
        if text.strip() and steers:
            found.append(text)
    return sorted(found, key=len, reverse=True)


def _position(text: str, characters: int) -> int:
    """The index in a marked text before which `characters` unmarked ones stand."""
    if MARK not in text:
        return min(characters, len(text))
    for index, character in enumerate(text):
        if characters == 0:
            return index
        characters -= character != MARK
    return len(text)


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    """A pattern for any of the texts; for none of them, one that never matches."""
    return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")


def _past_call(*, as_text: bool) -> list[Message]:
    """A conversation with one call, to see what a template makes of its arguments."""
    call = {"name": "f", "arguments": '{"probe": "x"}' if as_text else {"probe": "x"}}
    return [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a1b2c3d4e", "type": "function", "function": call}]},
        {"role": "tool", "content": "x", "name": "f", "tool_call_id": "a1b2c3d4e"},
    ]
