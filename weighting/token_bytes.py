"""Which bytes of a character a token is, where a character takes several: rare characters, emoji, scripts.

CLIP's tokenizer joins bytes of UTF-8, not characters, so that a token can end within one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..encoder.tokenizer import bytes_of
from .chunks import Token

MAX_GROUP = 64
"""Tokens that are looked at for the end of a character."""


class TokenBytes(NamedTuple):
    """What a token is of a text whose characters are divided."""

    own: bytes
    """Its bytes."""
    first: int
    """The number of its first byte in the text, from 1."""
    text: str
    """The shortest text around it that tokens do not divide, as the tokenizer reads it."""

    def __str__(self) -> str:
        """In words, such as ``f0 9f a6: bytes 1 to 3 of 4 of 🦊``."""
        last, total = self.first + len(self.own) - 1, len(self.text.encode())
        places = f"bytes {self.first} to {last}" if last > self.first else f"byte {last}"
        return f"{self.own.hex(' ')}: {places} of {total} of {self.text}"


def token_bytes(tokens: Iterable[Token], symbol: Callable[[int], str]) -> list[TokenBytes | None]:
    r"""Find the tokens that are no whole characters.

    Args:
        tokens: Of a prompt, in order.
        symbol: Gives the vocabulary entry of an id, as `Tokenizer.symbol`.

    Returns:
        For each token its bytes; None where it is whole characters, or no text, as a vector of an embedding.

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
