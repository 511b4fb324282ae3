"""The prose that contexts are filled with: as long as wanted, of sentences that do not come again."""

from __future__ import annotations

import re
from collections import Counter
from itertools import islice

import pytest

from dflash2_mlx.errors import RequestError
from dflash2_mlx.prompts import long_context
from dflash2_mlx.prompts.filler import paragraphs


def words(text: str) -> list[str]:
    """A tokenizer of words and punctuation."""
    return re.findall(r"\w+|[^\w\s]", text)


def pieces(text: str) -> list[str]:
    """Like most tokenizers: words with the space before them, in parts of five letters."""
    return re.findall(r"\n+| ?\w{1,5}| ?[^\w\s]+", text)


@pytest.mark.parametrize("encode", [words, pieces])
@pytest.mark.parametrize("wanted", [1, 2, 50, 999, 5000])
def test_it_is_as_long_as_wanted(encode: object, wanted: int) -> None:
    assert callable(encode)
    count = len(encode(long_context(wanted, encode)))
    assert wanted - 8 <= count <= wanted


def test_no_tokens_are_no_text_and_less_is_refused() -> None:
    assert long_context(0, words) == ""
    with pytest.raises(RequestError, match="-5 tokens"):
        long_context(-5, words)


def test_it_is_the_same_each_time_and_a_longer_one_begins_with_a_shorter() -> None:
    short = long_context(500, words)
    assert long_context(500, words) == short
    assert long_context(3000, words).startswith(short)
    # written down, so that results of other days and machines can be compared
    assert short.startswith("From the harbour log, the 1st entry\n")


def test_no_sentence_comes_twice_in_32k_tokens_and_far_beyond() -> None:
    text = "\n\n".join(islice(paragraphs(), 1600))
    assert len(words(text)) > 150_000
    sentences = Counter(re.split(r"(?<=[.?!])\s+|\n+", text))
    assert sum(sentences.values()) > 9_000
    assert [sentence for sentence, count in sentences.items() if count > 1] == []


def test_it_is_prose_without_holes() -> None:
    text = long_context(20_000, words)
    assert not re.search(r"[{}]|  |\.\.| ,", text)
    for paragraph in text.split("\n\n")[:-1]:
        heading, body = paragraph.split("\n")
        assert heading[0].isupper()
        assert re.fullmatch(r"[A-Z].*[.?]", body)


def test_long_runs_of_words_do_not_come_again_often() -> None:
    """What a drafter could copy from earlier in the text: runs of twelve words are nearly all new."""
    text = long_context(32_000, words).split()
    runs = Counter(tuple(text[i : i + 12]) for i in range(len(text) - 12))
    assert sum(count - 1 for count in runs.values()) / len(text) < 0.03


def test_another_seed_gives_other_prose() -> None:
    one, other = long_context(400, words, seed=1), long_context(400, words, seed=2)
    assert one[:40] != other[:40]
    assert long_context(400, words, seed=1) == one


def test_a_long_text_is_encoded_a_few_times_only() -> None:
    encoded = 0

    def counting(text: str) -> list[str]:
        nonlocal encoded
        encoded += len(text)
        return pieces(text)

    text = long_context(20_000, counting)
    assert 19_992 <= len(pieces(text)) <= 20_000
    assert encoded < 4.5 * len(text)
