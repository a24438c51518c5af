"""CLIP's byte-pair tokenizer, with the position of every token in the text.

Reads the vocabulary shipped with this package and runs it on the ``tokenizers`` library, the engine of transformers'
CLIPTokenizer. It does less for the same result: whitespace between words is not cleaned up before it is dropped, and
words are not split a second time. It adds no BOS, EOS or padding.

Source: A. Radford et al., 2021; transformers 5.23 ``CLIPTokenizer``; docs/reference/syntaxes.md, "Tokens".
"""

from __future__ import annotations

import gzip
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import NamedTuple

VOCABULARY_FILE = Path(__file__).parent / "data" / "clip_merges.txt.gz"
BOS_TEXT, EOS_TEXT = "<|startoftext|>", "<|endoftext|>"
END_OF_WORD = "</w>"

_WORD_PATTERN = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
# the only word above that is three in transformers: BOS or EOS in capitals, which is text
_WORD_IN_BRACKETS = r"(?:start|end)oftext(?=\|>)"
_SURROGATES = re.compile("[\ud800-\udfff]")


class TokenSpan(NamedTuple):
    """One token and its text."""

    id: int
    """Vocabulary id."""
    start: int
    """First code point of its text."""
    end: int
    """One past the last code point. Several tokens share one span if they make up one character, as in CJK or emoji."""


class Tokenizer:
    """Tokenizer with spans, equal to transformers' CLIPTokenizer without special tokens.

    >>> tokenizer = Tokenizer()
    >>> tokenizer("a red cat")
    [TokenSpan(id=320, start=0, end=1), TokenSpan(id=736, start=2, end=5), TokenSpan(id=2368, start=6, end=9)]
    """

    def __init__(self) -> None:
        from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

        merges = read_merges()
        # order of ids: 256 bytes, the same with an end-of-word mark, the merges in order, BOS, EOS
        alone = byte_symbols()
        vocabulary = [*alone, *(symbol + END_OF_WORD for symbol in alone), *map("".join, merges)]
        vocabulary += [BOS_TEXT, EOS_TEXT]
        self._vocabulary = vocabulary
        self._backend = Tokenizer(
            models.BPE(
                vocab={token: index for index, token in enumerate(vocabulary)},
                merges=merges,
                continuing_subword_prefix="",
                end_of_word_suffix=END_OF_WORD,
                unk_token=EOS_TEXT,
            )
        )
        self._backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
        self._backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_WORD_PATTERN), behavior="removed", invert=True),
                pre_tokenizers.Split(Regex(_WORD_IN_BRACKETS), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        self._backend.add_special_tokens([BOS_TEXT, EOS_TEXT])

    @property
    def vocab_size(self) -> int:
        """Number of ids."""
        return len(self._vocabulary)

    def __call__(self, text: str) -> list[TokenSpan]:
        """Tokenize any string; lone surrogates, which no tokenizer accepts, count as U+FFFD.

        Args:
            text: Any string.

        Returns:
            Its tokens in order, spans in code points.
        """
        encoding = self._backend.encode(without_surrogates(text), add_special_tokens=False)
        tokens = [TokenSpan(i, start, end) for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)]
        return tokens if text.isascii() else _cover_combining_marks(text, tokens)

    def words(self, text: str) -> list[str]:
        """Words of a text before any merge, with a printable character for each byte.

        >>> Tokenizer().words("Crème, 2!")
        ['crÃ¨me', ',', '2', '!']
        """
        normal = self._backend.normalizer.normalize_str(without_surrogates(text))
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normal)]

    def symbol(self, token_id: int) -> str:
        """Vocabulary entry of an id, including ``</w>`` at the end of a word.

        >>> Tokenizer().symbol(2368)
        'cat</w>'
        """
        return self._vocabulary[token_id]


def without_surrogates(text: str) -> str:
    r"""Replace each lone surrogate, which no tokenizer accepts, by U+FFFD; the length stays the same.

    >>> ascii(without_surrogates("a\ud800b"))
    "'a\\ufffdb'"
    """
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


@cache
def default_tokenizer() -> Tokenizer:
    """The shared `Tokenizer`, built on first use."""
    return Tokenizer()


def _cover_combining_marks(text: str, tokens: list[TokenSpan]) -> list[TokenSpan]:
    """Extend each span over the combining marks after it, which NFC has merged into its last character."""
    covered: list[TokenSpan] = []
    next_start = len(text)
    for token in reversed(tokens):
        end = token.end
        while end < next_start and unicodedata.combining(text[end]):
            end += 1
        covered.append(TokenSpan(token.id, token.start, end))
        next_start = min(next_start, token.start)
    return covered[::-1]


def read_merges() -> list[tuple[str, str]]:
    """Pairs of symbols that the vocabulary file joins, in order."""
    with gzip.open(VOCABULARY_FILE, "rt", encoding="utf-8") as file:
        lines = file.read().split("\n")[1:-1]  # the first is a header
    return [(left, right) for left, right in (line.split() for line in lines)]


def byte_symbols() -> list[str]:
    """A printable character for each byte, in the order of their ids: printable Latin-1 first, then the rest."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def bytes_of(symbol: str) -> bytes:
    """UTF-8 bytes of a vocabulary entry, possibly only part of a character.

    >>> bytes_of("crÃ¨me</w>").decode()
    'crème'
    """
    return bytes(map(_bytes().__getitem__, symbol.removesuffix(END_OF_WORD)))


@cache
def _bytes() -> dict[str, int]:
    """The byte that each printable character stands for."""
    symbols = byte_symbols()
    others = iter(sorted(set(range(256)) - set(map(ord, symbols))))
    return {symbol: ord(symbol) if ord(symbol) < 256 else next(others) for symbol in symbols}
