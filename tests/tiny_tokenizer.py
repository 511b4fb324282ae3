"""A tiny byte-level BPE tokenizer: every byte, a few words, and merges that end inside a character."""

from __future__ import annotations

from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
SPECIAL = (END, "<|user|>")
# in the order of their merges; the last two end inside a character
WORDS = ("Ġt", "Ġs", "he", "Ġthe", "Ġa", "in", "er", "op", "Ġst", "Ġstop", "âĤ", "ðŁ")


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, a few merges, two special tokens."""
    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for word in WORDS:
        head, tail = _split(word, vocab)
        merges.append((head, tail))
        vocab[word] = len(vocab)
    inner = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(word, special=True) for word in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token=END, clean_up_tokenization_spaces=False)


def _split(word: str, vocab: dict[str, int]) -> tuple[str, str]:
    """The longest known start of a word, and the rest, which must be known too."""
    at = max(i for i in range(1, len(word)) if word[:i] in vocab and word[i:] in vocab)
    return word[:at], word[at:]


def tokenizer_wrapper() -> TokenizerWrapper:
    """As mlx-lm hands it out."""
    return TokenizerWrapper(tokenizer())
