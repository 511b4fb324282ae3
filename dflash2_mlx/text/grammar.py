"""Answers bound to a grammar: llguidance's masks for the rows of a draft. Needs the extra `grammar`."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from ..errors import DecodeError, RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Bits = np.ndarray[Any, np.dtype[np.uint8]]

# Models write JSON with one space after ":" and ",", or in indented lines: both are single tokens or runs of them,
# and compact text alone would force others than they were trained on. Whitespace without a bound (llguidance's
# default) lets a model that knows no answer write blanks up to the limit.
WHITESPACE = r"( |\n {0,40}|\n\t{0,10})"
# After reasoning an answer begins with blank lines, and with some tokenizers every text begins with a space.
LEAD = r"/[ \n]{0,2}/"


@dataclass(frozen=True)
class Grammar:
    """A grammar in llguidance's form; `param` is the request's field that asked for it."""

    text: str
    param: str


def json_schema_grammar(schema: Any, *, param: str = "response_format", lead: str = LEAD) -> Grammar:
    """JSON that `schema` validates, after a `lead` in llguidance's Lark. Properties come in the schema's order.

    Raises RequestError where the schema is none, uses a keyword that cannot be enforced, or llguidance is missing.
    """
    check_schema(schema, "the JSON schema", param)
    return lark_grammar(f"start: {lead} value\nvalue: {json_rule(schema)}\n", param)


def lark_grammar(text: str, param: str) -> Grammar:
    """A checked grammar in llguidance's dialect of Lark."""
    matcher = llguidance_for(param).LLMatcher
    grammar = Grammar(matcher.grammar_from_lark(text), param)
    if reason := matcher.validate_grammar(grammar.text):
        raise RequestError(f"{param} makes a grammar that llguidance does not take: {reason}", param=param)
    return grammar


def check_schema(schema: Any, what: str, param: str, *, lenient: bool = False) -> None:
    """Raise RequestError, with llguidance's reason, where a schema cannot be enforced."""
    if not isinstance(schema, Mapping):
        raise RequestError(f"{what} is {schema!r:.200}: it must be an object", param=param)
    matcher = llguidance_for(param).LLMatcher
    try:
        text = json.dumps(_with_options(schema, lenient), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{what} is no JSON: {error}", param=param) from error
    if reason := matcher.validate_grammar(matcher.grammar_from_json_schema(text)):
        raise RequestError(f"{what} cannot be enforced: {reason}; leave that part out", param=param)


def json_rule(schema: Mapping[str, Any], *, lenient: bool = False) -> str:
    """The right side of a Lark rule for JSON of a checked schema; `lenient` skips keywords that llguidance lacks."""
    return f"%json {json.dumps(_with_options(schema, lenient))}"


def _with_options(schema: Mapping[str, Any], lenient: bool) -> dict[str, Any]:
    return {**schema, "x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": lenient}}


def llguidance_for(param: str) -> ModuleType:
    """The library, which is an extra: RequestError of the field that asks for it where it is missing."""
    try:
        import llguidance
    except ImportError as error:
        raise RequestError(
            f"{param} needs llguidance, which is not installed: pip install 'dflash2-mlx[grammar]'", param=param
        ) from error
    return llguidance


class GrammarFactory:
    """Makes the constraints of one tokenizer, which it prepares once, at the first (a second for a large one)."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is mlx-lm's wrapper, or a fast tokenizer of transformers itself."""
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._prepared: LLTokenizer | None = None
        self._vocabulary: dict[str, int] | None = None

    def constraint(
        self, grammar: Grammar, *, vocab_size: int, eos_token_ids: Collection[int] | None = None
    ) -> GrammarConstraint:
        """A fresh constraint for one answer of a target with `vocab_size` logits a row.

        `eos_token_ids`, the tokenizer's by default, may stand where the grammar is complete. Raises RequestError
        where the tokenizer or the grammar does not serve.
        """
        library = llguidance_for(grammar.param)
        prepared = self._prepare(library, grammar.param)
        if eos_token_ids is None:
            eos_token_ids = _end_tokens(self._tokenizer)
        ends = sorted(token for token in eos_token_ids if 0 <= token < vocab_size)
        if not ends:
            raise RequestError(
                f"{grammar.param} needs an end token, and the model has none: give eos_token_ids", param=grammar.param
            )
        matcher = library.LLMatcher(prepared, grammar.text, log_level=0)
        if matcher.is_error():
            raise RequestError(f"{grammar.param} cannot be enforced: {matcher.get_error()}", param=grammar.param)
        return GrammarConstraint(matcher, prepared, ends, vocab_size)

    def token_id(self, text: str) -> int | None:
        """The id of the token that is exactly this marker, None where the vocabulary has none."""
        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = self._tokenizer.get_vocab()
            return self._vocabulary.get(text)

    def _prepare(self, library: ModuleType, param: str) -> LLTokenizer:
        with self._lock:
            if self._prepared is None:
                backend = getattr(self._tokenizer, "backend_tokenizer", None)
                if backend is None:
                    raise RequestError(
                        f"{param} needs a fast tokenizer (tokenizer.json), and this model has none", param=param
                    )
                content = json.loads(backend.to_str())
                content.update(padding=None, truncation=None)  # another request may have set them meanwhile
                ends = _end_tokens(self._tokenizer)
                self._prepared = library.LLTokenizer(json.dumps(content), eos_token=min(ends, default=None))
            return self._prepared


def _end_tokens(tokenizer: Any) -> set[int]:
    """Those of mlx-lm's wrapper; under the same name, transformers gives the one of a plain tokenizer, or None."""
    ids = tokenizer.eos_token_ids
    found = {ids} if isinstance(ids, int) else set(ids or ())
    return {token for token in found if token < len(tokenizer)}


class GrammarConstraint:
    """Follows one answer through its grammar. Where that is complete, all end tokens of the model may stand."""

    def __init__(self, matcher: LLMatcher, prepared: LLTokenizer, ends: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._ends = frozenset(ends)
        self._vocab_size = vocab_size
        # Rows of bits, one a token: of the tokenizer's tokens and the target's, whichever are more.
        self._width = (max(prepared.vocab_size, vocab_size) + 31) // 32 * 4  # bytes: whole words, as llguidance gives
        self._end_at, self._end_bit = prepared.eos_token >> 3, 1 << (prepared.eos_token & 7)
        self._end_row = self._bits(ends)
        self._other_row = self._bits(range(vocab_size)) & ~self._end_row & ~self._bits([prepared.eos_token])
        self._ended = False

    def free(self, rows: int) -> bool:
        return False

    def masks(self, tokens: Sequence[int]) -> mx.array:
        """See `decode.constraint`."""
        rows = [self._row()]
        for token in tokens:
            if token in self._ends or not _has(rows[-1], token):
                break
            self._consume(token)
            rows.append(self._row())
        self._matcher.rollback(len(rows) - 1)
        return self._expand(rows, len(tokens) + 1)

    def advance(self, tokens: Sequence[int]) -> None:
        """See `decode.constraint`. Raises DecodeError at a token that may not stand."""
        for token in tokens:
            self._ended = self._ended or token in self._ends
            if not self._ended:
                self._consume(token)

    def _row(self) -> bytes:
        """One bit a token, the lowest of a byte first; nothing after the end."""
        row = b"" if self._ended else self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise DecodeError(f"the grammar cannot be followed further: {self._matcher.get_error()}")
        return row

    def _consume(self, token: int) -> None:
        if not self._matcher.consume_token(token):
            raise DecodeError(f"the grammar does not take token {token}: {self._matcher.get_error()}")

    def _expand(self, rows: list[bytes], count: int) -> mx.array:
        """Bits to bool (count, V). Rows that are left out allow the end tokens alone."""
        bits = np.zeros((count, self._width), np.uint8)
        # llguidance's rows are whole words, which may go past the target's.
        known = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)[:, : self._width]
        bits[: len(rows), : known.shape[1]] = known
        may_end = bits[:, self._end_at] & self._end_bit != 0
        bits &= self._other_row
        may_end |= ~bits.any(axis=1)
        bits[may_end] |= self._end_row
        # Unpacked on the device: an eighth of the bytes goes there. (R + 1, V / 8, 8)
        allowed = (mx.array(bits)[:, :, None] >> mx.arange(8, dtype=mx.uint8)) & 1
        return allowed.astype(mx.bool_).reshape(count, -1)[:, : self._vocab_size]

    def _bits(self, tokens: Iterable[int]) -> Bits:
        flags = np.zeros(self._width * 8, np.uint8)
        flags[list(tokens)] = 1
        return np.packbits(flags, bitorder="little")


def _has(row: bytes, token: int) -> bool:
    return token >> 3 < len(row) and bool(row[token >> 3] >> (token & 7) & 1)
