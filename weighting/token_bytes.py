"""Bytes of tokens that are parts of characters: rare characters, emoji, scripts.

CLIP's tokenizer joins bytes of UTF-8, not characters, so that a token can end within one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..encoder.tokenizer import bytes_of
from .chunks import Token

MAX_GROUP = 64
"""Maximum number of tokens examined for the end of a character."""


class TokenBytes(NamedTuple):
    """Part of a text that a token represents, if characters are split."""

    own: bytes
    """Its bytes."""
    first: int
    """Number of its first byte in the text, counted from 1."""
    text: str
    """The shortest surrounding text that no token splits, as the tokenizer reads it."""

    def __str__(self) -> str:
        """Description, such as ``f0 9f a6: bytes 1 to 3 of 4 of 🦊``."""
        last, total = self.first + len(self.own) - 1, len(self.text.encode())
        places = f"bytes {self.first} to {last}" if last > self.first else f"byte {last}"
        return f"{self.own.hex(' ')}: {places} of {total} of {self.text}"


def token_bytes(tokens: Iterable[Token], symbol: Callable[[int], str]) -> list[TokenBytes | None]:
    r"""Find the tokens that are not whole characters.

    Args:
        tokens: Tokens of a prompt, in order.
        symbol: Function that returns the vocabulary entry of an id, such as `Tokenizer.symbol`.

    Returns:
        Bytes of each token; None if it is whole characters, or no text, such as a vector of an embedding.

    >>> from ..encoder.tokenizer import default_tokenizer
    >>> tokens = [Token(one.id) for one in default_tokenizer()("fox 🦊")]
    >>> [str(one) for one in token_bytes(tokens, default_tokenizer().symbol)]
    ['None', 'f0 9f a6: bytes 1 to 3 of 4 of 🦊', '8a: byte 4 of 4 of 🦊']
    """
    found: list[TokenBytes | None] = []
    group: list[bytes] = []

    def close(text: str) -> None:
        first = 1
        for own in group:
            found.append(TokenBytes(own, first, text) if len(group) > 1 else None)
            first += len(own)
        group.clear()

    for token in tokens:
        if isinstance(token.id, int):
            group.append(bytes_of(symbol(token.id)))
            if not _is_whole(group) and len(group) < MAX_GROUP:
                continue
        close(b"".join(group).decode(errors="replace"))
        if not isinstance(token.id, int):
            found.append(None)
    close(b"".join(group).decode(errors="replace"))
    return found


def _is_whole(group: Iterable[bytes]) -> bool:
    """Whether a character ends with the last of some bytes."""
    try:
        b"".join(group).decode()
    except UnicodeDecodeError:
        return False
    return True
