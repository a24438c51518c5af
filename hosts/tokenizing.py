"""A host's tokenizer as a tokenize function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..encoder.tokenizer import TokenSpan, with_places, without_surrogates

T = TypeVar("T")


@dataclass(frozen=True)
class HostTokenize(Generic[T]):
    """A host's tokenizer as a tokenize function; equal for equal owners, so that what is made of it is kept.

    Ids are the host's. Places in the text are those of our own tokenizer; should the ids ever differ, every token gets
    the whole text as its place.
    """

    owner: T
    """The host's object, or a weak reference to it."""
    ids_of: Callable[[T, str], Sequence[int]]
    """From the owner and a text without surrogates to ids, without BOS and EOS."""

    def __call__(self, text: str) -> list[TokenSpan]:
        """The tokens of a text."""
        text = without_surrogates(text)
        return with_places(self.ids_of(self.owner, text), text)
