"""Captions in training: the choice in each epoch, mixing of tags, and token ids.

Every choice depends on a seed, the epoch and the image's name alone, so that a resumed run chooses as an uninterrupted
one would, on any number of processes.
"""

from __future__ import annotations

import math
import random
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ....encoder.models.config import TextConfig
from ....encoder.tokenizer import Tokenizer, default_tokenizer
from ..log import number_of
from ..options import CaptionOptions
from .examples import Example, Examples


def caption_of(example: Example, epoch: int, seed: int, options: CaptionOptions) -> str:
    """Caption of an image in an epoch: one of its captions at random, its tags mixed as requested.

    >>> example = Example("a.png", None, ("red cat, sitting, window, rain",))
    >>> caption_of(example, 0, 0, CaptionOptions())
    'red cat, sitting, window, rain'
    >>> caption_of(example, 4, 0, CaptionOptions(shuffle_tags=True, keep_tags=1))
    'red cat, sitting, rain, window'
    """
    rng = random.Random(f"{seed}/{epoch}/{example.name}")
    caption = rng.choice(example.captions)
    if not options.shuffle_tags and not options.tag_dropout:
        return caption
    tags = [tag.strip() for tag in caption.split(",") if tag.strip()]
    fixed, movable = tags[: options.keep_tags], tags[options.keep_tags :]
    chosen = [tag for tag in movable if rng.random() >= options.tag_dropout]
    if options.shuffle_tags:
        rng.shuffle(chosen)
    return ", ".join([*fixed, *chosen]) or caption  # never an empty caption


@dataclass(frozen=True)
class NewWord:
    """A new word in captions with its own vectors, see `WordVectors` in ``textual_inversion.py``."""

    text: str
    """The word as written in a caption."""
    count: int
    """Number of its vectors."""

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the word, but not within other words."""
        return re.compile(rf"(?<!\w){re.escape(self.text)}(?!\w)")

    def parts_around(self, caption: str) -> list[str]:
        """Split a caption at the word, ignoring it inside other words; the whole caption if it does not occur.

        >>> NewWord("<mine>", 1).parts_around("a photo of <mine>."), NewWord("cat", 1).parts_around("category")
        (['a photo of ', '.'], ['category'])
        """
        return self.pattern.split(caption)


def tokens_of(caption: str, tokenizer: Tokenizer, config: TextConfig, word: NewWord | None = None) -> list[int]:
    """Token ids of a caption; the vectors of a new word have ids from ``config.vocab_size`` on."""
    pieces = [caption] if word is None else word.parts_around(caption)
    ids = [token.id for token in tokenizer(pieces[0])]
    for piece in pieces[1:]:
        ids += range(config.vocab_size, config.vocab_size + (word.count if word else 0))
        ids += [token.id for token in tokenizer(piece)]
    return ids


def token_ids(captions: Sequence[str], tokenizer: Tokenizer, config: TextConfig, word: NewWord | None = None) -> Tensor:
    """Token ids of captions, no longer than the longest of them.

    Nothing after EOS affects what is before it, so padding beyond the longest caption is left out. A caption that
    `is_too_long` is cut.

    Returns:
        ``[captions, s]``, int64: BOS, tokens, EOS, padding.
    """
    max_tokens = config.context_length - 2
    tokens = [tokens_of(caption, tokenizer, config, word)[:max_tokens] for caption in captions]
    ids = torch.full((len(tokens), max(map(len, tokens)) + 2), config.pad_id)
    ids[:, 0] = config.bos_id
    for row, caption_tokens in zip(ids, tokens, strict=True):
        row[1 : 1 + len(caption_tokens)] = torch.tensor(caption_tokens, dtype=torch.long)
        row[1 + len(caption_tokens)] = config.eos_id
    return ids


def is_too_long(caption: str, tokenizer: Tokenizer, config: TextConfig, word: NewWord | None = None) -> bool:
    """Whether a caption is too long for the text tower: over 75 tokens in all released ones."""
    return len(tokens_of(caption, tokenizer, config, word)) > config.context_length - 2


def notes_on_length(examples: Iterable[Example], config: TextConfig, word: NewWord | None = None) -> list[str]:
    """Line that counts and names captions too long for the text tower, if there are any."""
    captions = ((example.name, caption) for example in examples for caption in example.captions)
    cut = [name for name, caption in captions if is_too_long(caption, default_tokenizer(), config, word)]
    return notes_on_cut(cut, config)


def notes_on_cut(cut: Sequence[str], config: TextConfig) -> list[str]:
    """Line about captions that are cut off, given the names of their images."""
    named = f"{', '.join(cut[:3])}{', ...' if len(cut) > 3 else ''}"
    have, are = ("have", "are") if len(cut) != 1 else ("has", "is")
    description = f"{have} more than {config.context_length - 2} tokens, and {are} read up to there"
    return [f"{number_of(len(cut), 'captions')} {description} ({named})"] if cut else []


class Batches:
    """Batches of all steps, each the indices of examples."""

    def __init__(self, repeats: Sequence[float], size: int, seed: int) -> None:
        """Prepare the batches, by the repeats of each example; the last, smaller one of an epoch is dropped."""
        self._repeats, self._size, self._seed = repeats, size, seed
        length = num_in_epoch(repeats)
        self.per_epoch = length // size
        """Steps per epoch."""
        if not self.per_epoch:
            raise ValueError(f"an epoch has {length} pairs, fewer than a batch of {size}")
        self._order = lru_cache(maxsize=2)(self._order_of)  # that of the next epoch is begun before this one ends

    def __call__(self, step: int) -> tuple[int, Sequence[int]]:
        """Epoch of a step, counted from 0, and the indices of its examples."""
        epoch, number = divmod(step, self.per_epoch)
        return epoch, self._order(epoch)[number * self._size : (number + 1) * self._size]

    def _order_of(self, epoch: int) -> Sequence[int]:
        """Order of the pairs in an epoch: all images once, then those that repeat once more, and so on.

        So an image is rarely in a batch twice, where it would be its own negative. Of examples with a fractional
        repeat, that share comes, drawn anew in each epoch.
        """
        rng = random.Random(f"{self._seed}/{epoch}")
        order = array("q")
        for turn in range(math.ceil(max(self._repeats))):
            turn_order = array("q", (index for index, repeats in enumerate(self._repeats) if repeats >= turn + 1))
            for share, indices in _partly(self._repeats, turn).items():
                turn_order.extend(rng.sample(indices, round(share * len(indices))))
            rng.shuffle(turn_order)
            order += turn_order
        return order


def num_in_epoch(repeats: Sequence[float]) -> int:
    """Number of examples in an epoch.

    >>> num_in_epoch([1, 3, 0.5, 0.5, 2.5, 2.5])
    10
    """
    parts = Counter(repeats)
    return sum(count * int(repeats) + round(repeats % 1 * count) for repeats, count in parts.items())


def _partly(repeats: Sequence[float], turn: int) -> dict[float, array[int]]:
    """Indices of the examples that come only in part in a turn, by the fraction of their repeats."""
    by_fraction: dict[float, array[int]] = {}
    for index, number in enumerate(repeats):
        if turn < number < turn + 1:
            by_fraction.setdefault(number % 1, array("q")).append(index)
    return by_fraction


def held_out(examples: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """Split examples at random."""
    out = set(random.Random(f"{seed}/held out").sample(range(len(examples)), count))
    is_out = [
        examples.chosen(index for index in range(len(examples)) if (index in out) == is_held) for is_held in (0, 1)
    ]
    return is_out[0], is_out[1]
