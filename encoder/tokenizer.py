"""CLIP's byte-pair tokenizer, with the position of every token in the text.

Reads the vocabulary shipped with this package and runs it on the ``tokenizers`` library, the engine of transformers'
CLIPTokenizer. It does less for the same result: whitespace between words is not cleaned up before it is dropped, and
words are not split a second time. It adds no BOS, EOS or padding.

Forge tokenizes with the slow CLIPTokenizer of transformers 4, which repairs text by ftfy: curly quotes become straight
ones, ``&amp;`` becomes ``&``, ligatures and full-width letters become plain ones, and wrongly decoded text is decoded
again. `CleaningTokenize` does so first, keeping the origin of each character; ftfy is imported only when a text may
need it.

Source: A. Radford et al., 2021; transformers 5.23 ``CLIPTokenizer``; docs/reference/syntaxes.md, "Tokens" and
"Cleaning"; transformers 4.46.1 ``CLIPTokenizer`` with ftfy 6.3.1.
"""

from __future__ import annotations

import gzip
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
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
    unprintable = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(unprintable))]


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
    unprintable = iter(sorted(set(range(256)) - set(map(ord, symbols))))
    return {symbol: ord(symbol) if ord(symbol) < 256 else next(unprintable) for symbol in symbols}


_WORDS = re.compile(r"\s+|\S+")
_SPECIAL = re.compile(r"<\|(?:start|end)oftext\|>")
_SPECIAL_WORD = re.compile(r"(?<![^\w\s])(?<!_)" + _SPECIAL.pattern, re.IGNORECASE)
"""BOS or EOS in letters of any case at a possible word start, i.e. not after a symbol."""


class Cleaned(NamedTuple):
    """A text as it is tokenized."""

    text: str
    """The cleaned text."""
    spans: list[tuple[int, int]]
    """Start and end in code points of the original, for each character."""

    def span_of(self, start: int, end: int) -> tuple[int, int]:
        """Origin of a stretch of the text; (0, 0) for an empty one."""
        return (self.spans[start][0], self.spans[end - 1][1]) if end > start else (0, 0)


@dataclass(frozen=True)
class CleaningTokenize:
    """A tokenizer preceded by `clean`; equal for equal tokenizers. Without ftfy it is the tokenizer itself."""

    tokenize: Callable[[str], Sequence[tuple[int, int, int]]]
    """From text to ``(id, start, end)`` triples."""

    def __call__(self, text: str) -> Sequence[tuple[int, int, int]]:
        """Tokens of a text, with positions in the text before cleaning."""
        cleaned = clean(text) if may_change(text) and can_clean() else None
        if cleaned is None:
            return self.tokenize(text)
        return [
            TokenSpan(token_id, *cleaned.span_of(start, end)) for token_id, start, end in self.tokenize(cleaned.text)
        ]


def can_clean() -> bool:
    """Whether ftfy is installed."""
    return find_spec("ftfy") is not None


def may_change(text: str) -> bool:
    """Whether `clean` examines a text at all: plain ASCII without ``&`` and ``<|`` remains unchanged.

    >>> may_change("a (red:1.2) cat's bowl"), may_change("rock &amp; roll")
    (False, True)
    """
    return not (text.isascii() and text.isprintable() and "&" not in text and "<|" not in text)


def clean(text: str) -> Cleaned | None:
    """Repair a text as Forge does.

    Args:
        text: Text of one weight; Forge cleans each stretch separately.

    Returns:
        The cleaned text, or None if it is unchanged.

    Raises:
        ImportError: If the text may change, and ftfy is not installed.

    >>> clean("“red” &amp; blue").text
    '"red" & blue'
    """
    if not may_change(text):
        return None
    text = without_surrogates(text)
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    start = 0
    for special in (*_SPECIAL.finditer(text), None):  # BOS and EOS are found before anything is repaired
        end = len(text) if special is None else special.start()
        words = list(_repaired(text, start, end))
        parts.append(_SPECIAL_WORD.sub(lambda match: match[0].lower(), "".join(word for word, _, _ in words)))
        for word, first, last in words:
            spans += _spans(text[first:last], word, first)
        if special is not None:
            parts.append(special[0])
            start = special.end()
            spans += ((index, index + 1) for index in range(end, start))
    cleaned = "".join(parts)
    return None if cleaned == text else Cleaned(cleaned, spans)


def _repaired(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    """Repair a part of a text by ftfy: word by word, each with its position in the text, if that gives the same."""
    import ftfy

    part = text[start:end]
    fixed = ftfy.fix_text(part)
    is_html = "<" in part
    words = [
        (_repaired_word(word[0], is_html), start + word.start(), start + word.end()) for word in _WORDS.finditer(part)
    ]
    is_same = "".join(word for word, _, _ in words) == fixed
    yield from words if is_same else [(fixed, start, end)]


@lru_cache(maxsize=4096)
def _repaired_word(word: str, is_html: bool) -> str:
    """Repair a word of a part by ftfy; entities are decoded only if the part is not HTML."""
    import ftfy

    if not may_change(word):
        return word
    return ftfy.fix_text(word, ftfy.TextFixerConfig(unescape_html=False if is_html else "auto"))


def _spans(old: str, new: str, first: int) -> Iterator[tuple[int, int]]:
    """Origin of each character of a repaired word in the old one, which begins at code point ``first``."""
    before = after = 0
    if len(old) == len(new):
        before = len(old)
    else:
        shorter = min(len(old), len(new))
        while before < shorter and old[before] == new[before]:
            before += 1
        while after < shorter - before and old[-1 - after] == new[-1 - after]:
            after += 1
        before -= before > 0 and before + after == len(new)  # omitted characters belong to the character before
    end = first + len(old)
    yield from ((index, index + 1) for index in range(first, first + before))
    yield from [(first + before, end - after)] * (len(new) - before - after)
    yield from ((index, index + 1) for index in range(end - after, end))
