"""A host's tokenizer as a tokenize function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..encoder.tokenizer import CleaningTokenize, TokenSpan, default_tokenizer, without_surrogates

T = TypeVar("T")


@dataclass(frozen=True)
class HostTokenize(Generic[T]):
    """A host's tokenizer as a tokenize function; equal for equal owners, so that results are cached.

    Ids are the host's. Positions in the text are those of our own tokenizer, with cleaning if that gives the host's
    ids; if the ids differ either way, every token gets the whole text as its position.
    """

    owner: T
    """The host's object, or a weak reference to it."""
    ids_of: Callable[[T, str], Sequence[int]]
    """Function from the owner and a text without surrogates to ids, without BOS and EOS."""

    def __call__(self, text: str) -> Sequence[tuple[int, int, int]]:
        """Tokens of a text."""
        text = without_surrogates(text)
        ids = list(self.ids_of(self.owner, text))
        for tokenize in (default_tokenizer(), CleaningTokenize(default_tokenizer())):
            ours = tokenize(text)
            if [token_id for token_id, _, _ in ours] == ids:
                return ours
        return [TokenSpan(token_id, 0, len(text)) for token_id in ids]
