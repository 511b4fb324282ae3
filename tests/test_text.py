"""Ids to text in pieces: no broken character, and stop strings cut exactly, whatever the chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers

from dflash2_mlx.text.detokenise import Detokeniser
from dflash2_mlx.text.stops import StopFilter
from tests.tiny_tokenizer import END, tokenizer

BROKEN = "\ufffd"
TEXTS = (
    "the stop in here",
    " leading and  double spaces ",
    "€uro, naïve, Ωmega, 日本語, 😀😀👩‍👩‍👧",
    "a\n\tb\r\n",
    "",
    "ends inside €",
)


def _spm() -> Tokenizer:
    """As SentencePiece: a space begins a word, the first one is dropped, unknown characters are bytes."""
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz,.", "▁the", "▁a"]
    inner = Tokenizer(
        models.BPE(
            vocab={piece: i for i, piece in enumerate(pieces)},
            merges=[("▁", "a")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return inner


BYTE_LEVEL = tokenizer()
SPM = _spm()
SIZE = len(BYTE_LEVEL)


def encode_byte_level(text: str) -> list[int]:
    ids: list[int] = BYTE_LEVEL.encode(text)
    return ids


def encode_spm(text: str) -> list[int]:
    ids: list[int] = SPM.encode(text).ids
    return ids


def pieces_of(inner: Any, ids: Sequence[int], sizes: Sequence[int] = ()) -> list[str]:
    """What a detokeniser gives for ids that come in chunks of those sizes, then one by one; the end last."""
    detokeniser, pieces, at = Detokeniser(inner), [], 0
    for size in [*sizes, *[1] * len(ids)]:
        pieces.append(detokeniser.add(ids[at : at + size]))
        at += size
    return [*pieces, detokeniser.finish()]


chunks = st.lists(st.integers(0, 9), max_size=12)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, SIZE - 1), max_size=90), sizes=chunks)
def test_joined_pieces_are_the_full_decode_of_any_ids(ids: list[int], sizes: list[int]) -> None:
    """Random ids are random bytes: most of them make no character."""
    assert "".join(pieces_of(BYTE_LEVEL, ids, sizes)) == BYTE_LEVEL.decode(ids)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60), sizes=chunks)
@pytest.mark.parametrize("kind", ["byte level", "spm"])
def test_text_comes_whole_and_no_piece_is_broken(kind: str, text: str, sizes: list[int]) -> None:
    inner, encode = (BYTE_LEVEL, encode_byte_level) if kind == "byte level" else (SPM, encode_spm)
    ids = encode(text)
    pieces = pieces_of(inner, ids, sizes)
    full = inner.decode(ids)
    assert "".join(pieces) == full
    if BROKEN not in full:
        assert BROKEN not in "".join(pieces)
        assert pieces[-1] == "", "text was held back although every character was complete"


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(("inner", "encode"), [(BYTE_LEVEL, encode_byte_level), (SPM, encode_spm)])
def test_a_character_is_shown_as_soon_as_it_is_complete(
    inner: Any, encode: Callable[[str], list[int]], text: str
) -> None:
    ids, detokeniser, shown = encode(text), Detokeniser(inner), ""
    for count, token in enumerate(ids, start=1):
        shown += detokeniser.add([token])
        so_far = inner.decode(ids[:count])
        if not so_far.endswith(BROKEN):
            assert shown == so_far
    assert shown == text


@pytest.mark.parametrize("text", ["€", "😀", "x 日", "日 x😀"])
@pytest.mark.parametrize(("inner", "encode"), [(BYTE_LEVEL, encode_byte_level), (SPM, encode_spm)])
def test_a_truncated_tail_comes_out_at_the_end_only(inner: Any, encode: Callable[[str], list[int]], text: str) -> None:
    ids = encode(text)[:-1]
    *pieces, last = pieces_of(inner, ids)
    assert BROKEN not in "".join(pieces)
    assert last == BROKEN * len(last) != ""
    assert "".join(pieces) + last == inner.decode(ids)


def test_invalid_bytes_do_not_block_and_cost_no_more_with_time() -> None:
    """Continuation bytes that continue nothing, for long; then text again."""
    (continuation,) = {ids[-1] for ids in [encode_byte_level("€")]}
    longest = 0

    class Counting:
        def decode(self, ids: list[int]) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            text: str = BYTE_LEVEL.decode(ids)
            return text

    detokeniser, shown = Detokeniser(Counting()), ""
    for count in range(1, 1001):
        shown += detokeniser.add([continuation])
        assert count - 4 <= len(shown) <= count
    shown += detokeniser.add(encode_byte_level(" the 😀"))
    assert shown == BROKEN * 1000 + " the 😀"
    assert detokeniser.finish() == ""
    assert longest <= 65


def test_ids_past_the_tokenizer_and_special_tokens() -> None:
    (end,) = BYTE_LEVEL.convert_tokens_to_ids([END])
    ids = [*encode_byte_level("a "), SIZE + 5, end, *encode_byte_level(" €")]
    assert "".join(pieces_of(BYTE_LEVEL, ids)) == BYTE_LEVEL.decode(ids)
    assert END in BYTE_LEVEL.decode(ids)


def test_only_the_last_few_ids_are_decoded_anew() -> None:
    lengths = []

    class Counting:
        def decode(self, ids: list[int]) -> str:
            lengths.append(len(ids))
            text: str = BYTE_LEVEL.decode(ids)
            return text

    text = "the stop in here, " * 40
    assert "".join(pieces_of(Counting(), encode_byte_level(text))) == text
    assert max(lengths) <= 4


# Stop strings


def by_letter(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """What is left of `text` when it comes letter by letter and ends with the first stop that is complete."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


def filtered(pieces: Sequence[str], stops: Sequence[str]) -> tuple[str, bool]:
    stop_filter = StopFilter(stops)
    shown = "".join(stop_filter.add(piece) for piece in pieces)
    return shown + stop_filter.finish(), stop_filter.stopped


def cut_up(text: str, sizes: Sequence[int]) -> list[str]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    return [*pieces, text[at:]]


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=5), max_size=4),
    sizes=st.lists(st.integers(0, 6), max_size=12),
)
def test_any_chunking_gives_what_the_whole_text_gives(text: str, stops: list[str], sizes: list[int]) -> None:
    expected = by_letter(text, stops)
    assert filtered(cut_up(text, sizes), stops) == expected
    assert filtered([text], stops) == expected
    assert filtered(list(text), stops) == expected


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("aab", ["ab"], "a"),
        ("aaab", ["aab"], "a"),
        ("abababc", ["ababc"], "ab"),
        ("xabcx", ["abc", "b"], "xa"),
        ("xabx", ["ab", "b"], "x"),
        ("one two", ["two", "one"], ""),
        ("the end", ["END"], "the end"),
        ("a\n\nb", ["\n\n"], "a"),
        ("a€b", ["€"], "a"),
    ],
)
def test_overlapping_stops(text: str, stops: list[str], shown: str) -> None:
    assert filtered(list(text), stops)[0] == filtered([text], stops)[0] == shown


def test_no_more_is_held_back_than_may_begin_a_stop() -> None:
    stop_filter = StopFilter(["stop", "top!"])
    assert [stop_filter.add(piece) for piece in ("ab", "s", "to", "x", "top", "s")] == ["ab", "", "", "stox", "", "top"]
    assert stop_filter.finish() == "s"
    assert stop_filter.finish() == ""


def test_nothing_is_shown_after_a_stop() -> None:
    stop_filter = StopFilter(["x"])
    assert (stop_filter.add("axb"), stop_filter.add("c"), stop_filter.finish()) == ("a", "", "")
    assert stop_filter.stopped
