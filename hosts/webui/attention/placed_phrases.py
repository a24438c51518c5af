"""Phrases placed in the picture and in time: weights by place in the cross attention of Forge's U-Net.

While an image is sampled, hooks give the cross attention weights as a mask.

Source: docs/reference/attention.md, "Places and times"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ....weighting.phrases.words import Words, words_of
from ....weighting.placing.areas import area_mask
from ....weighting.placing.fields import acts_at, levels_of_steps, logarithms, means, weights_by_place
from ....weighting.placing.places import PlacedPhrase
from ....weighting.reading.view import counted
from ....weighting.syntax import parse
from ....weighting.text.prompt import shortened
from ..engines import Generation, WebUIError
from .cross_attention import AttentionHooks
from .known_texts import RecognizedText, SampledText, Texts

LEVELS = "get_sigmas"
"""Method by which the host's sampler makes the noise levels of its steps."""
STEP = "callback_state"
"""Method by which the host's sampler is told of each step, after the first call of the U-Net in it."""


Fields = tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
"""For each image of a call, the number of each phrase that acts there, with its keys."""


class _Pass:
    """Steps of a sampling, counted from 0."""

    def __init__(self, title: str, num_places: int) -> None:
        self.title = title
        self.steps: set[int] = set()
        self.of_places: list[set[int]] = [set() for _ in range(num_places)]
        """Steps in which each placed phrase acted."""


class _PlacedBias:
    """Weights by place in calls of the U-Net that read the same rows of the same size."""

    def __init__(self, num_keys: int, fields: Sequence[Sequence[tuple[list[int], Tensor]]]) -> None:
        """Store the number of keys made of the rows, and the fields of each picture.

        A field is the keys it is for and their weights by place, ``[height, width]``.
        """
        self._num_keys, self._fields = num_keys, fields
        self._by_grid: dict[tuple[tuple[int, int], torch.dtype], Tensor] = {}

    def bias(self, grid: tuple[int, int], query: Tensor) -> Tensor:
        """Bias of each key's logit at each query of a grid: ``[batch, 1, queries, keys]``, like the query."""
        key = grid, query.dtype
        if key not in self._by_grid:
            bias = torch.zeros(len(self._fields), 1, math.prod(grid), self._num_keys)
            for picture, fields in zip(bias, self._fields, strict=True):
                for keys, weights in fields:
                    picture[0, :, keys] += logarithms(weights, grid)[:, None]
            self._by_grid[key] = bias.to(query)
        return self._by_grid[key]


class PlaceHooks(AttentionHooks):
    """Placed phrases of a generation."""

    name, otherwise = "Places", "leave Places empty"

    def __init__(self, places: Sequence[PlacedPhrase], texts: Texts) -> None:
        """Store the phrases, and the texts that they are in."""
        super().__init__(texts)
        self._places = places
        self._rows: dict[SampledText, list[tuple[int, ...]]] = {}
        """Rows of each placed phrase in each text."""
        self._passes: list[_Pass] = []
        self._levels: list[float] | None = None
        self._waiting: tuple[float, set[int]] | None = None
        """Noise level of the last calls, and the phrases that acted in them."""
        self._calls: dict[object, _PlacedBias] = {}
        self._weights: dict[int, Tensor] = {}
        """Weights by place of each phrase in the pass that is going on, as far as they were needed."""
        self._call: _PlacedBias | None = None

    # Before an image is sampled

    def check_phrases(self, words: Sequence[Words], all_texts: Callable[[], Iterable[str]], syntax: str) -> None:
        """Raise if a phrase is in no text.

        Args:
            words: Words of the texts that are to be encoded now.
            all_texts: Makes all texts of the generation.
            syntax: Their syntax.
        """
        missing = {
            place.phrase: place
            for place in self._places
            if not any(text_words.numbers_of(place.phrase) for text_words in words)
        }
        if not missing:
            return
        more = [words_of(parse(text, syntax).parts) for text in dict.fromkeys(all_texts())]
        for phrase, place in missing.items():
            if not any(text_words.numbers_of(phrase) for text_words in more):
                raise WebUIError(absent_phrase(place))

    def find(self) -> None:
        """Find the phrases in the texts that are noted; raise if one has no rows that can be placed."""
        self._rows = {text: [self._rows_of(place.phrase, text) for place in self._places] for text in self._positive()}

    def _positive(self) -> Iterator[SampledText]:
        return (text for text in self._texts if not text.is_negative)

    def _rows_of(self, phrase: str, text: SampledText) -> tuple[int, ...]:
        if text.unknown:
            self.refuse_unknown(text.unknown)
        phrase_rows = text.rows_of(phrase)
        if not text.taken_away.isdisjoint(phrase_rows):
            raise WebUIError(
                f"“{shortened(phrase)}” has a weight below 0, which takes it away in the attention: it cannot be "
                "placed. Take a weight of 0 or above, or its line out of Places."
            )
        return phrase_rows

    # While an image is sampled

    @contextmanager
    def acting(self, p: Generation) -> Iterator[None]:
        """Place the phrases for the duration of the context."""
        self._passes.clear()
        self._waiting = self._call = None
        with super().acting(p):
            yield

    def begin_pass(self, p: Any, latent: Tensor) -> None:
        """Note the size of the latent that is to be sampled, and let the sampler tell of its steps."""
        super().begin_pass(p, latent)
        is_second = bool(getattr(p, "is_hr_pass", False))
        if len(self._passes) <= is_second:  # the host tells its second pass twice
            self._passes.append(_Pass(" of hires. fix" if is_second else "", len(self._places)))
        self._levels = None
        self._calls.clear()
        self._weights.clear()
        self._after(p.sampler, LEVELS, self._note_levels)
        self._after(p.sampler, STEP, self._end_step)

    def _after(self, sampler: Any, name: str, note: Callable[[Any, Any], None]) -> None:
        """Let a method of the host's sampler tell its last argument and its result; undone when sampling ends."""
        inner = getattr(sampler, name, None)
        if inner is None or name in vars(sampler):
            return

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            note(args[-1] if args else None, result)
            return result

        setattr(sampler, name, noted)
        self._undone.callback(vars(sampler).pop, name, None)

    def _note_levels(self, _: Any, levels: Tensor) -> None:
        self._levels = levels.tolist()

    def _end_step(self, state: Mapping[str, Any], _: Any) -> None:
        """Count the last calls to a step."""
        if self._waiting is not None:
            self._passes[-1].steps.add(state["i"])
            for index in self._waiting[1]:
                self._passes[-1].of_places[index].add(state["i"])

    def _begin(self, p: Any, latent: Tensor, context: Tensor, options: Mapping[str, Any]) -> torch.Size | None:
        """Prepare a call of a U-Net."""
        acting_fields = self.fields(p, latent, options, lambda: self._known(context, options))
        if acting_fields is None:
            return None
        fields, weights = acting_fields
        key = context.shape, fields
        if key not in self._calls:
            by_picture = [[(list(keys), weights[index]) for index, keys in image_fields] for image_fields in fields]
            self._calls[key] = _PlacedBias(context.shape[1] // self._texts.pair, by_picture)
        self._call = self._calls[key]
        return context.shape

    def fields(
        self,
        p: Any,
        latent: Tensor,
        options: Mapping[str, Any],
        texts_read: Callable[[], Sequence[RecognizedText | None]],
    ) -> tuple[Fields, dict[int, Tensor]] | None:
        """Fields that act in a call of the model, and weights by place of each phrase; None without any.

        ``texts_read`` tells the text that each image of the call reads, if any.
        """
        sigma = float(options["sigmas"].flatten()[0])
        if self._waiting is None or self._waiting[0] != sigma:  # prompt and negative prompt may have calls of their own
            self._waiting = sigma, set()
        acted = self._waiting[1]
        acting = [
            index
            for index, place in enumerate(self._places)
            if not place.is_neutral and acts_at(sigma, *self._range_of(p, place))
        ]
        if not acting:
            return None
        image_keys = [self._keys_in(text_read) for text_read in texts_read()]
        fields = tuple(
            tuple((index, place_keys[index]) for index in acting if place_keys[index]) for place_keys in image_keys
        )
        acted |= {index for image_fields in fields for index, _ in image_fields}
        if not any(fields):
            return None
        self._check_call(latent, options)
        for index in acting:
            if index not in self._weights:
                self._weights[index] = self._weights_of(p, self._places[index])
        return fields, {index: self._weights[index] for index in acting}

    def _keys_in(self, text_read: RecognizedText | None) -> Sequence[tuple[int, ...]]:
        """Keys of each placed phrase in a text that the U-Net reads."""
        if text_read is None or text_read.text.is_negative:
            return [()] * len(self._places)
        return [text_read.keys(phrase_rows) for phrase_rows in self._rows[text_read.text]]

    def _range_of(self, p: Any, place: PlacedPhrase) -> tuple[float, float]:
        """Noise levels of a place's start and end."""
        if not place.in_steps:
            convert = p.sd_model.forge_objects.unet.model.predictor.percent_to_sigma
            return convert(place.start), convert(place.end)
        if self._levels is None:
            raise WebUIError(
                f"“{shortened(place.line)}” counts steps, but the sampler {getattr(p, 'sampler_name', '')} does not "
                "say at which noise its steps are: write the time in parts of the way, such as 0-0.4, or take another "
                "sampler."
            )
        num_steps = _state().sampling_steps  # img2img leaves out the first ones
        return levels_of_steps(int(place.start), int(place.end), self._levels[-num_steps - 1 :])

    def _weights_of(self, p: Any, place: PlacedPhrase) -> Tensor:
        """Weights of a phrase at the latent's places, ``[height, width]``."""
        assert self._cells is not None
        height, width = self._cells
        mask = torch.ones(height, width)
        if place.area is not None:
            try:
                mask = _mask_of(p, place, (height, width))
            except ValueError as error:
                raise WebUIError(f"Places, “{shortened(place.line)}”: {error}") from error
        return weights_by_place(mask, place.inside, place.outside)

    def _hooked(self, attention: nn.Module) -> Iterator[RemovableHandle]:
        yield attention.register_forward_pre_hook(self._give_bias, with_kwargs=True)

    def _give_bias(self, module: nn.Module, args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
        """Give a cross attention its mask."""
        if self._shape is None:
            return None
        assert self._call is not None
        query = args[0]
        self._check_layer(query.shape[1], inputs.get("context"))
        return args, {**inputs, "mask": self._call.bias(self._grid, query)}

    # Afterwards

    def report(self) -> Iterator[str]:
        """A line about each placed phrase: in which texts it is, and in how many steps it acted."""
        texts = [self._rows[text] for text in self._positive()]
        for index, place in enumerate(self._places):
            name = f"“{shortened(place.line)}”"
            if place.is_neutral:
                yield f"{name} changes nothing: its weight is 1 everywhere."
                continue
            num_found = sum(bool(text_rows[index]) for text_rows in texts)
            if not num_found:
                yield f"{name} is in none of the texts of these images."
                continue
            where = f" is in {num_found} of {counted(len(texts), 'text')} and" if num_found < len(texts) else ""
            counts = [
                (len(sampling_pass.of_places[index]), len(sampling_pass.steps), sampling_pass.title)
                for sampling_pass in self._passes
                if sampling_pass.steps
            ]
            acted = " and ".join(f"in {num} of {counted(total, 'step')}{title}" for num, total, title in counts)
            if any(num for num, _, _ in counts):
                yield f"{name}{where} acted {acted}."
            elif counts:
                yield f"Warning: {name}{where} acted {acted}: no step is in its time."


def absent_phrase(place: PlacedPhrase) -> str:
    """Message about a phrase that is in no prompt."""
    return (
        f"Places, “{shortened(place.line)}”: “{shortened(place.phrase)}” is in none of the prompts. Write words as "
        "they stand there, without weights; negative prompts do not count."
    )


def _mask_of(p: Any, place: PlacedPhrase, cells: tuple[int, int]) -> Tensor:
    """Share of each cell of the latent that lies in the area of a place.

    In img2img with “Only masked” the latent is a part of the picture.
    """
    assert place.area is not None
    pasted, pictures = getattr(p, "paste_to", None), getattr(p, "overlay_images", None)
    if not pasted or not pictures:
        return area_mask(place.area, cells, (p.height, p.width))
    left, top, width, height = pasted
    size = pictures[0].height, pictures[0].width
    mask = area_mask(place.area, size, size)
    return means(mask[top : top + height, left : left + width], cells).float()


def _state() -> Any:
    """The host's state of the generation."""
    from modules import shared  # pyright: ignore[reportMissingImports]

    return shared.state
