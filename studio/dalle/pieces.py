"""Captions as pieces: lower-cased byte-pair encoding, with merges learned from captions or CLIP's own.

Words are split as in CLIP's tokenizer. Merges can be dropped at random (BPE dropout), so that a model sees a word
divided in several ways; the `tokenizers` library can do that too, but cannot be seeded.

Source: R. Sennrich et al., "Neural Machine Translation of Rare Words with Subword Units", 2016; I. Provilkov et al.,
"BPE-Dropout", 2020; A. Ramesh et al., 2021, section 2.2.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from ...encoder.quoting import quote
from ...encoder.tokenizer import END_OF_WORD, byte_symbols, bytes_of, default_tokenizer, read_merges

Merges = Sequence[tuple[str, str]]
NUM_BYTES = 512
"""Pieces before any merge: 256 bytes, and the same bytes at the end of a word."""
MAX_REMEMBERED = 4096
"""Maximum number of words in the cache."""


class Pieces:
    """Byte-pair encoder of texts.

    >>> pieces = Pieces([("r", "e"), ("re", "d</w>")])
    >>> [pieces.symbol(piece) for piece in pieces("Red bed")]
    ['red</w>', 'b', 'e', 'd</w>']
    """

    def __init__(self, merges: Merges) -> None:
        """Initialise with merges in order of priority; ``</w>`` marks the end of a word."""
        bytes_alone = byte_symbols()
        self._symbols = [*bytes_alone, *(symbol + END_OF_WORD for symbol in bytes_alone)]
        known = set(self._symbols)
        for left, right in merges:
            if left not in known or right not in known:
                raise ValueError(f"merge {quote((left, right), 200)} joins symbols that no merge before it makes")
            known.add(left + right)
            self._symbols.append(left + right)
        self.merges = tuple((left, right) for left, right in merges)
        """The merges given."""
        self._ids = {symbol: index for index, symbol in enumerate(self._symbols)}
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._whole = lru_cache(MAX_REMEMBERED)(lambda word: tuple(self._of_word(word, 0.0, None)))

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return len(self._symbols)

    def symbol(self, piece: int) -> str:
        """Symbol of a piece, as written in CLIP's vocabulary."""
        return self._symbols[piece]

    def __call__(self, text: str, dropout: float = 0.0, rng: random.Random | None = None) -> list[int]:
        """Divide a text into pieces.

        Args:
            text: Any string.
            dropout: Probability of skipping a possible merge.
            rng: Source of randomness, required if ``dropout`` is above 0.

        Returns:
            Pieces of all words, in order.
        """
        found: list[int] = []
        for word in default_tokenizer().words(text):
            found += self._of_word(word, dropout, rng) if dropout else self._whole(word)
        return found

    def _of_word(self, word: str, dropout: float, rng: random.Random | None) -> list[int]:
        parts = [*word[:-1], word[-1] + END_OF_WORD]
        while len(parts) > 1:
            possible = [
                (self._ranks[pair], place)
                for place, pair in enumerate(pairwise(parts))
                if pair in self._ranks and (not dropout or rng is None or rng.random() >= dropout)
            ]
            if not possible:
                break
            _, place = min(possible)
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        return [self._ids[part] for part in parts]


def clip_pieces() -> Pieces:
    """CLIP's pieces: 49,406 of them, with its ids."""
    return Pieces(read_merges())


def learned_pieces(captions: Iterable[str], vocab_size: int) -> Pieces:
    """Learn merges from captions with the ``tokenizers`` library."""
    if vocab_size < NUM_BYTES:
        raise ValueError(f"the number of pieces must be at least {NUM_BYTES}, one for each byte, got {vocab_size}")
    from tokenizers import Tokenizer, models, trainers

    words = (word for caption in captions for word in default_tokenizer().words(caption))
    learned = Tokenizer(models.BPE(end_of_word_suffix=END_OF_WORD))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, end_of_word_suffix=END_OF_WORD, initial_alphabet=byte_symbols(), show_progress=False
    )  # pyright: ignore[reportCallIssue]
    learned.train_from_iterator(words, trainer)
    merges: list[tuple[str, str]] = [tuple(pair) for pair in json.loads(learned.to_str())["model"]["merges"]]
    return Pieces(merges[: vocab_size - NUM_BYTES])


def piece_lines(pieces: Pieces, caption: str) -> list[str]:
    r"""List the pieces of a caption: place, number and text, with a plus if the word continues in the next piece.

    Texts are in quotation marks; parts of a character are bytes.

    >>> print("\n".join(piece_lines(Pieces([("r", "e"), ("re", "d</w>")]), "Red bé")))
        1     513  'red'
        2      65  'b' +
        3     127  b'\xc3' +
        4     358  b'\xa9'
    """
    lines: list[str] = []
    for place, piece in enumerate(pieces(caption), 1):
        symbol = pieces.symbol(piece)
        lines.append(
            f"{place:>5} {piece:>7}  {_text(bytes_of(symbol))!r}{'' if symbol.endswith(END_OF_WORD) else ' +'}"
        )
    return lines


def _text(part: bytes) -> str | bytes:
    try:
        return part.decode()
    except UnicodeDecodeError:  # part of a character
        return part
