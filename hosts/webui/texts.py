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

from ...weighting.pipeline import EncodedPrompt
from ...weighting.words import Words, rows_in_towers, words_of_towers
from .conditioning import Run
from .engines import Model, Watched, WebUIError


@dataclass(frozen=True, eq=False)
class Text:
    """A text as it is sampled."""

    rows: Tensor
    """``[rows, dim]``, in pairs if they are to be read in pairs."""
    num_rows: int
    """Number of its rows, pairs counted once."""
    prompts: Mapping[str, EncodedPrompt]
    """The text as encoded by each tower."""
    is_negative: bool
    """Whether it is of a negative prompt."""

    def words(self) -> Mapping[str, Words] | None:
        """Its words, as read by each tower; None if its rows are a blend of several prompts."""
        return words_of_towers(self.prompts)

    def rows_of(self, phrase: str, words: Mapping[str, Words]) -> tuple[int, ...]:
        """Rows of a phrase among its words, counted from 0; none if it is absent."""
        try:
            return rows_in_towers(words, phrase, self.num_rows)
        except ValueError as error:
            raise WebUIError(str(error)) from error


class Known(NamedTuple):
    """A text known again in what the U-Net reads."""

    text: Text
    starts: range
    """Its first key, and those of its repetitions."""

    def keys(self, rows: Sequence[int]) -> tuple[int, ...]:
        """Keys of some of its rows."""
        return tuple(start + row for start in self.starts for row in rows)


class Texts:
    """Texts of a generation."""

    def __init__(self, *, in_pairs: bool) -> None:
        """Know no text yet; ``in_pairs`` is whether rows are in pairs of key and value."""
        self.pair = 2 if in_pairs else 1
        """Number of rows for each key."""
        self._texts: dict[tuple[bool, bool], list[Text]] = {}
        """Texts by what they belong to, as in `watched`."""
        self._known: dict[tuple[int, torch.dtype], dict[bytes, tuple[Text, int]]] = {}
        """Texts by what identifies their rows, each with the number after which they repeat; by number and type."""

    def __iter__(self) -> Iterator[Text]:
        return (text for some in self._texts.values() for text in some)

    def watched(self, model: Model, run: Run, kind: tuple[bool, bool]) -> Watched:
        """A model whose texts are noted when it encodes them.

        Args:
            model: The host's.
            run: Encodings that are made meanwhile.
            kind: Whether the texts are those of a negative prompt, and of hires. fix; those noted before are forgotten.
        """
        noted = self._texts[kind] = []
        self._known.clear()

        def encode(texts: Sequence[str]) -> Any:
            result = model.get_learned_conditioning(texts)
            rows = result["crossattn"] if isinstance(result, Mapping) else result
            for own, prompts in zip(rows, run.encoded_by_tower(texts), strict=True):
                noted.append(Text(own, len(own) // self.pair, prompts, kind[0]))
            return result

        return Watched(model, encode)

    def known(self, rows: Tensor) -> Known | None:
        """The text that rows on the CPU are, as the U-Net reads them; None if it is unknown."""
        key = len(rows), rows.dtype
        if key not in self._known:
            self._known[key] = dict(_identified(list(self), *key))
        text, period = self._known[key].get(_digest(rows), (None, 0))
        return text and Known(text, range(0, len(rows) // self.pair, period // self.pair))


def _identified(texts: Sequence[Text], num_rows: int, dtype: torch.dtype) -> Iterator[tuple[bytes, tuple[Text, int]]]:
    """Texts by what identifies their rows once the host has made them ``num_rows``.

    It fills those of a batch up with copies of their last row, and repeats those of prompt and negative prompt.
    """
    for text in sorted(texts, key=lambda text: not text.is_negative):  # a prompt counts before an equal negative one
        rows = text.rows.detach().cpu()
        for period in range(len(rows), num_rows + 1):
            if num_rows % period == 0:
                filled = torch.cat([rows, rows[-1:].expand(period - len(rows), -1)])
                yield _digest(filled.repeat(num_rows // period, 1).to(dtype)), (text, period)


def _digest(rows: Tensor) -> bytes:
    return blake2b(rows.contiguous().view(torch.uint8).numpy().tobytes()).digest()
