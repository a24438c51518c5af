"""Texts of a generation, known again by their rows when the U-Net reads them.

The rows of each text are noted when they are encoded, and known again by their numbers. So it does not matter what the
host does with them in between: prompt editing, AND, batches, rows repeated to equal lengths.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....encoder.quoting import raising
from ....weighting.attention import RowEffect
from ....weighting.phrases.words import Words, names_in, rows_in_towers, words_of_towers
from ....weighting.pipeline import EncodedPrompt
from ..conditioning import EncodingRun
from ..engines import HostModel, InterceptedModel, WebUIError

BLEND = "as they are a blend of several prompts"
"""Reason why nobody can tell which rows of a text are its words."""


class TextPart(NamedTuple):
    """Rows of a text that stand in sequence, as read by one text encoder or by several side by side."""

    start: int
    """Number of the first of them."""
    num_rows: int
    words: Mapping[str, Words]
    """Words by encoder, with rows counted from the part's first."""


@dataclass(frozen=True, eq=False)
class SampledText:
    """A text as it is sampled."""

    rows: Tensor
    """``[rows, dim]``, in pairs if they are to be read in pairs."""
    num_rows: int
    """Number of its rows, pairs counted once."""
    parts: tuple[TextPart, ...]
    """Its words."""
    is_negative: bool
    """Whether it is of a negative prompt."""
    unknown: str = ""
    """Reason why nobody can tell which rows are its words; empty if they are known."""
    effects: tuple[RowEffect, ...] = ()
    """Effect of weights on each row where it is read; empty for none."""
    taken_away: frozenset[int] = frozenset()
    """Rows with weights below 0, which take them away."""

    @classmethod
    def of_towers(
        cls, rows: Tensor, num_rows: int, prompts: Mapping[str, EncodedPrompt], *, is_negative: bool
    ) -> SampledText:
        """A text as encoded by us for towers whose rows stand side by side."""
        words = words_of_towers(prompts)
        signs = (prompt.signs for prompt in prompts.values() if prompt.signs)
        taken_away = frozenset(row for tower_signs in signs for row, sign in enumerate(tower_signs) if sign < 0)
        parts = () if words is None else (TextPart(0, num_rows, words),)
        unknown = BLEND if words is None else ""
        return cls(rows, num_rows, parts, is_negative, unknown, taken_away=taken_away)

    def names(self) -> tuple[str, ...]:
        """Its words as typed, each once."""
        return names_in(words for part in self.parts for words in part.words.values())

    def rows_of(self, phrase: str) -> tuple[int, ...]:
        """Rows of a phrase, counted from 0; none if it is absent."""
        with raising(WebUIError):
            return tuple(
                part.start + row for part in self.parts for row in rows_in_towers(part.words, phrase, part.num_rows)
            )


class RecognizedText(NamedTuple):
    """A text known again in what the U-Net reads."""

    text: SampledText
    starts: range
    """Number of its first key, and of the first key of each repetition."""

    def keys(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Keys of some of its rows."""
        return tuple(start + row for start in self.starts for row in rows)


class Texts:
    """Texts of a generation."""

    def __init__(self, *, in_pairs: bool) -> None:
        """Know no text yet; ``in_pairs`` is whether rows are in pairs of key and value."""
        self.pair = 2 if in_pairs else 1
        """Number of rows for each key."""
        self._texts: dict[tuple[bool, bool], list[SampledText]] = {}
        """Texts by what they belong to, as in `watched`."""
        self._known: dict[tuple[int, torch.dtype, bool], dict[bytes, list[tuple[SampledText, int]]]] = {}
        """Texts by what identifies their rows, each with the number after which they repeat; by number, type and kind
        of prompt."""

    def __iter__(self) -> Iterator[SampledText]:
        return (text for group in self._texts.values() for text in group)

    def watched(self, model: HostModel, run: EncodingRun, kind: tuple[bool, bool]) -> InterceptedModel:
        """A model whose texts are noted when it encodes them.

        Args:
            model: The host's.
            run: Encodings that are made meanwhile.
            kind: Whether the texts belong to a negative prompt, and to hires. fix; forgets earlier ones of the kind.
        """
        noted = self.begin(kind)

        def encode(texts: Sequence[str]) -> Any:
            result = model.get_learned_conditioning(texts)
            for text_rows, prompts in zip(rows_in(result), run.encoded_by_tower(texts), strict=True):
                num_rows = len(text_rows) // self.pair
                noted.append(SampledText.of_towers(text_rows, num_rows, prompts, is_negative=kind[0]))
            return result

        return InterceptedModel(model, encode)

    def begin(self, kind: tuple[bool, bool]) -> list[SampledText]:
        """A list for texts of a kind, as in `watched`; those noted before are forgotten."""
        self._known.clear()
        noted = self._texts[kind] = []
        return noted

    def known(self, rows: Tensor, *, is_negative: bool) -> list[RecognizedText]:
        """The texts that rows on the CPU are, as the model reads them; none for unknown rows."""
        key = len(rows), rows.dtype, is_negative
        if key not in self._known:
            texts_by_digest = self._known[key] = {}
            kind_texts = [text for text in self if text.is_negative == is_negative]
            for digest, text_and_period in _identified(kind_texts, *key[:2]):
                texts_by_digest.setdefault(digest, []).append(text_and_period)
        by_digest = self._known[key].get(_digest(rows), [])
        return [
            RecognizedText(text, range(0, len(rows) // self.pair, period // self.pair)) for text, period in by_digest
        ]


def rows_in(result: Any) -> Tensor:
    """Rows among what the host's model makes of texts: ``[texts, rows, dim]``."""
    return result["crossattn"] if isinstance(result, Mapping) else result


def _identified(
    texts: Sequence[SampledText], num_rows: int, dtype: torch.dtype
) -> Iterator[tuple[bytes, tuple[SampledText, int]]]:
    """Texts by what identifies their rows once the host has made them ``num_rows``.

    It fills the texts of a batch up with copies of their last row, and repeats the rows of prompt and negative prompt.
    """
    for text in texts:
        rows = text.rows.detach().cpu()
        for period in range(len(rows), num_rows + 1):
            if num_rows % period == 0:
                filled = torch.cat([rows, rows[-1:].expand(period - len(rows), -1)])
                yield _digest(filled.repeat(num_rows // period, 1).to(dtype)), (text, period)


def _digest(rows: Tensor) -> bytes:
    return blake2b(rows.contiguous().view(torch.uint8).numpy().tobytes()).digest()
