"""Prompts drawn with a small world, weighted and placed by the pack's own code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...weighting.attention import PLAIN, effect_of, way_of
from ...weighting.encoders import EncodedTowers, Encoders
from ...weighting.guidance import GUIDANCE, predictions
from ...weighting.options import EncodeOptions
from ...weighting.phrases.words import words_of_towers
from ...weighting.placing.areas import area_mask, read_area
from ...weighting.placing.fields import weights_by_place
from ...weighting.placing.word_maps import key_rows
from ...weighting.schemes import SCHEMES
from ...weighting.syntax import parse
from ...weighting.text.chunks import plain_id
from .model import (
    CELLS,
    CFG,
    PIECES,
    Timed,
    World,
    check_words,
    known_ids,
    noise_of,
    pieces_of,
    places_of_pieces,
    sampled,
    to_pictures,
)
from .questions import JOINT_HOWS, Places, Prompt, Way
from .scenes import COLORS, SIDE
from .unet import Regions, Text
from .watched_maps import (
    ALL,
    LAYERS,
    PARTS,
)

BATCH = 64
"""Pictures drawn together."""
Drawable = Text | Regions | Timed
"""A text as the network reads it."""


class Painter:
    """Draws prompts with a world of CLIP and a U-Net, weighted by the pack's own code."""

    guidance: float = CFG
    layers: tuple[str, ...] = LAYERS
    """Selections of layers whose maps differ."""

    def __init__(self, world: World) -> None:
        self.network, self.things_in = world.network, world.things_in
        self._set_up(world)

    def _set_up(self, world: Any) -> None:
        self.encoders = Encoders.of_models({"clip_l": world.whole_text()})

    @cached_property
    def empty(self) -> Text:
        """The empty prompt, for guidance."""
        return self.text("", Way(""))

    def drawable(self, prompt: Prompt, way: Way, weight: float = 1.0, part: str = "phrase") -> Drawable:
        """A prompt with a weight, as the network reads it."""
        if way.how == GUIDANCE:
            return self.guided(prompt.text(weight, part), way)
        phrases = [thing.phrase for thing in prompt.scene.things]
        (text, phrase_rows), places = self.read(prompt.text(weight, part), way, phrases), way.places
        if places is None:
            return text
        areas = [area_mask(area, CELLS, (SIDE, SIDE)) for name in places.areas if (area := read_area(name))]
        if places.of == "phrases":
            rows = key_rows(phrase_rows, text.rows.shape[1])[:, None]
            weights = [weights_by_place(area, weight, 0.0) for area in areas]
            placed: Text | Regions = text._replace(fields=tuple(zip(weights, rows, strict=True)))
        else:
            alone = tuple(self.text(phrase, way, phrases) for phrase in phrases)
            placed = self._regions(text, alone, areas, places)
        return placed if places.until == 1.0 else Timed(placed, text, places.until)

    def guided(self, prompt: str, way: Way) -> Text | Regions:
        """A prompt weighted by guidance: the texts of its predictions, and their shares."""
        options = EncodeOptions(**way.options)
        mixed = predictions(prompt, options)
        texts = tuple(
            self.text("".join(fragment.text for fragment in parse(form.text, options.syntax).fragments), Way(""))
            for form in mixed
        )
        if len(mixed) == 1:
            return texts[0]
        shares = torch.tensor([form.share for form in mixed])[:, None, None].expand(-1, *CELLS)
        return Regions(texts, shares, are_predicted=True)

    def _regions(self, base: Text, alone: tuple[Text, ...], areas: Sequence[Tensor], places: Places) -> Regions:
        """Texts in their places; the base has none."""
        del base
        return Regions(alone, torch.stack(list(areas)), places.of == "predictions")

    def text(self, prompt: str, way: Way, phrases: Iterable[str] = ()) -> Text:
        """Rows of a prompt, and what its weights do where they are read."""
        return self.read(prompt, way, phrases)[0]

    def read(self, prompt: str, way: Way, phrases: Iterable[str]) -> tuple[Text, list[tuple[int, ...]]]:
        """The same, and the rows of each phrase; none of one that is not there."""
        options, phrases = EncodeOptions(**way.options), list(phrases)
        if way.how:
            options = replace(options, scheme=way_of(way.how).scheme)
        if way.binds:
            colors = [color for color in COLORS if color in prompt]
            options = replace(options, bind="\n".join(phrases), bind_words=",".join(colors))
            if options.bind_hide == "cutoff":  # its phrases are parts between commas
                prompt = prompt.replace(" and ", ", ")
        [encoded] = self.encoders.prepare([prompt], options).run()
        text = _read_with_weights(encoded, way)
        towers = words_of_towers(encoded.prompts)
        assert towers is not None  # captions have no blends
        phrase_rows = [towers["clip_l"].rows_of(phrase) for phrase in phrases]
        return _with_words(text, phrase_rows, way), phrase_rows

    def check(self, prompt: str, options: EncodeOptions) -> None:
        """Raise WorldError for a prompt with words that the world does not know."""
        ids = set(known_ids())
        for chunk in self.encoders.read(prompt, options)["clip_l"].chunks:
            unknown = [token.at for token in chunk.content if plain_id(token.id) not in ids]
            check_words(prompt, [(span.start, span.end) for span in unknown])

    def pictures(self, texts: Sequence[Drawable], seeds: Sequence[Sequence[int]]) -> Tensor:
        """Pictures of each text from each of its seeds, ``[texts, seeds, 3, 32, 32]`` in 0..1, in 8-bit steps."""
        drawn: list[Tensor] = []
        for group in alike(texts, max(1, BATCH // len(seeds[0]))):
            group_seeds = seeds[len(drawn) : len(drawn) + len(group)]
            counts = [len(text_seeds) for text_seeds in group_seeds]
            noise = noise_of([seed for text_seeds in group_seeds for seed in text_seeds])
            *_, latents = sampled(self.network, noise, _stacked(group, counts), self.empty, guidance=self.guidance)
            check_finite(latents)
            drawn += ((to_pictures(latents) * 255).round() / 255).split(counts)
        return torch.stack(drawn)


def check_finite(latents: Tensor) -> None:
    """Raise ValueError for latents with values that are NaN or infinite, which too large a guidance gives."""
    if not bool(latents.isfinite().all()):
        raise ValueError("the pictures are not finite: choose a lower --guidance")


def _stands_at(place: int, phrase: str, caption: str) -> bool:
    """Whether a phrase of whole words stands at a place in a caption."""
    end = place + len(phrase)
    around = caption[max(0, place - 1) : place] + caption[end : end + 1]
    return caption[place:end] == phrase and not any(map(str.isalnum, around))


class JointPainter(Painter):
    """Draws prompts with a world of Qwen 3 and joint attention.

    The scheme ``comfy`` moves the rows of weighted words from those of the empty prompt, as ComfyUI does with T5's: of
    equal number, or its last. ``scaled`` multiplies them.
    """

    layers = (ALL,)

    def _set_up(self, world: Any) -> None:
        self.world = world

    def _regions(self, base: Text, alone: tuple[Text, ...], areas: Sequence[Tensor], places: Places) -> Regions:
        if places.of == "predictions":
            return Regions(alone, torch.stack(list(areas)), True)
        # the base is there, too: the host counts places of text from its first row
        none = torch.zeros_like(areas[0])
        return Regions((base, *alone), torch.stack([none, *areas]), blend=places.blend)

    def check(self, prompt: str, options: EncodeOptions) -> None:
        """As in `Painter`."""
        fragments = parse(prompt, options.syntax).fragments
        positions = [position for fragment in fragments for position in fragment.positions]
        caption = "".join(fragment.text for fragment in fragments)
        cut = zip(pieces_of(caption), places_of_pieces(caption), strict=True)
        unknown = [span for piece, span in cut if span is not None and piece not in PIECES]
        places = [(positions[span.start], positions[span.end - 1] + 1) for span in unknown]
        check_words(prompt, places, self.world.words)

    def read(self, prompt: str, way: Way, phrases: Iterable[str]) -> tuple[Text, list[tuple[int, ...]]]:
        """As in `Painter`."""
        fragments = parse(prompt, way.options.get("syntax", "comfy")).fragments
        caption = "".join(fragment.text for fragment in fragments)
        weight_at = [fragment.weight for fragment in fragments for _ in fragment.text]
        spans = places_of_pieces(caption)
        weights = [1.0 if span is None else weight_at[span.start] for span in spans]
        rows = self.world.read([caption]).rows
        if SCHEMES[way_of(way.how or JOINT_HOWS[0]).scheme].is_weighing:
            raise ValueError(f"{way.how} works on CLIP's rows: in the joint world there are {', '.join(JOINT_HOWS)}")
        if way.how:
            effects = [effect_of(weight, way.how) for weight in weights]
            bias, factor = (torch.tensor([part]) for part in zip(*effects, strict=True))
            is_plain = all(effect == PLAIN for effect in effects)
            text = Text(rows) if is_plain else Text(rows, bias, factor)
        elif any(weight != 1.0 for weight in weights):
            by_row = torch.tensor(weights)[:, None]
            none = self.empty.rows[0]
            origin = 0.0
            if way.options.get("scheme") != "scaled":
                origin = none[torch.arange(len(weights)).clamp(max=len(none) - 1)]
            text = Text(torch.where(by_row == 1.0, rows, origin + by_row * (rows - origin)))
        else:
            text = Text(rows)
        phrase_rows: list[tuple[int, ...]] = []
        for phrase in phrases:
            starts = (at for at in range(len(caption)) if _stands_at(at, phrase, caption))
            start = next(starts, len(caption))
            within = range(start, start + len(phrase))
            phrase_rows.append(
                tuple(row for row, span in enumerate(spans) if span is not None and span.start in within)
            )
        return _with_words(text, phrase_rows, way), phrase_rows


def painter_of(world: World) -> Painter:
    """The painter of a world."""
    return {"unet": Painter, "joint": JointPainter}[world.name](world)


def _with_words(text: Text, phrase_rows: Sequence[Sequence[int]], way: Way) -> Text:
    """A text with the words whose maps are asked for: the first of each phrase, whose rows are given."""
    if way.maps is None:
        return text
    words = [rows[number : number + 1] for rows in phrase_rows for number in range(len(PARTS))]
    return text._replace(words=key_rows(words, text.rows.shape[1])[None])


def _read_with_weights(encoded: EncodedTowers, way: Way) -> Text:
    """Rows of an encoded prompt, and what its weights do where they are read."""
    rows, tower_prompt = encoded.hidden, encoded.prompts["clip_l"]
    effects = [PLAIN] * rows.shape[1]
    if way.how:
        effects = [effect_of(token.weight, way.how) for chunk in tower_prompt.read.chunks for token in chunk.tokens]
    elif tower_prompt.signs:
        effects = [PLAIN._replace(factor=sign) for sign in tower_prompt.signs]
    if all(effect == PLAIN for effect in effects):
        return Text(rows)
    bias, factor = zip(*effects, strict=True)
    return Text(rows, torch.tensor([bias]), torch.tensor([factor]))


def alike(texts: Sequence[Drawable], max_size: int) -> Iterator[list[Drawable]]:
    """Texts in order, at most so many together, with equal numbers of rows."""
    group: list[Drawable] = []
    for text in texts:
        if group and (len(group) == max_size or _lengths(text) != _lengths(group[0])):
            yield group
            group = []
        group.append(text)
    if group:
        yield group


def _lengths(text: Drawable) -> tuple[int, ...]:
    """Numbers of rows of a text's parts."""
    if isinstance(text, Timed):
        return *_lengths(text.first), *_lengths(text.later)
    return tuple(part.rows.shape[1] for part in (text.texts if isinstance(text, Regions) else [text]))


def _stacked(texts: Sequence[Drawable], counts: Sequence[int]) -> Drawable:
    """One text for each picture, of texts of one way."""
    timed = [text for text in texts if isinstance(text, Timed)]
    if timed:
        first, later = [text.first for text in timed], [text.later for text in timed]
        return timed[0]._replace(first=_stacked_at_once(first, counts), later=_stacked_at_once(later, counts))
    return _stacked_at_once([text for text in texts if not isinstance(text, Timed)], counts)


def _stacked_at_once(texts: Sequence[Text | Regions], counts: Sequence[int]) -> Text | Regions:
    regions = [text for text in texts if isinstance(text, Regions)]
    if regions:
        parts = zip(*(text.texts for text in regions), strict=True)
        return regions[0]._replace(texts=tuple(_stacked_rows(part, counts) for part in parts))
    return _stacked_rows([text for text in texts if isinstance(text, Text)], counts)


def _stacked_rows(texts: Sequence[Text], counts: Sequence[int]) -> Text:
    times = torch.tensor(counts)
    rows = torch.cat([text.rows for text in texts]).repeat_interleave(times, 0)
    fields = tuple(
        (weights, torch.cat([text.fields[index][1] for text in texts]).repeat_interleave(times, 0))
        for index, (weights, _) in enumerate(texts[0].fields)
    )
    word_rows = [text.words for text in texts if text.words is not None]
    words = torch.cat(word_rows).repeat_interleave(times, 0) if word_rows else None
    if all(text.bias is None for text in texts):
        return Text(rows, fields=fields, words=words)
    none = torch.zeros(1, rows.shape[1])
    biases = torch.cat([none if text.bias is None else text.bias for text in texts])
    factors = torch.cat([none + 1 if text.factor is None else text.factor for text in texts])
    return Text(rows, biases.repeat_interleave(times, 0), factors.repeat_interleave(times, 0), fields, words)
