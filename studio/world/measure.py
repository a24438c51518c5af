"""Effects of weights on the small world's pictures: prompts drawn at several weights, and judged by their pixels.

All points of a question draw the same prompts from the same noise, so pictures are compared one by one. A point is
written as soon as it is judged; what a folder holds is not drawn again.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...encoder.foreign_text import parse_json
from ...encoder.regular_file import read_regular
from ...weighting.attention import PLAIN, WAYS, effect_of, way_of
from ...weighting.encoders import EncodedTowers, Encoders
from ...weighting.guidance import GUIDANCE, predictions
from ...weighting.options import EncodeOptions
from ...weighting.padding import PADDINGS
from ...weighting.phrases.words import words_of_towers
from ...weighting.placing.areas import area_mask, read_area
from ...weighting.placing.fields import weights_by_place
from ...weighting.placing.word_maps import key_rows
from ...weighting.schemes import SCHEMES
from ...weighting.syntax import parse
from ...weighting.text.chunks import plain_id
from ..output.files import write_text
from .judge import Found, assigned
from .model import (
    CELLS,
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
from .scenes import KINDS, SIDE, TEXTURES, Scene, Thing, random_scene
from .unet import Regions, Text
from .watched_maps import (
    ALL,
    COARSE,
    EARLY,
    FINE,
    LATE,
    LAYERS,
    PARTS,
    STEPS,
    Mapped,
    Selection,
    mapped,
    mean_maps,
    watched,
)

WEIGHTS = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
FEW_WEIGHTS = (0.0, 0.5, 1.0, 1.5)
SEEDS = 8
"""Pictures of each prompt at each weight, at most."""
FIRST_SEED = 20_000
BATCH = 64
"""Pictures drawn together."""
FORMAT = "weighted-clip-measured-world-4"
FIRST_GUIDANCE = 3.0
"""Guidance of points that do not tell it."""
MAX_POINT_BYTES = 16 * 2**20
"""Maximum size of a point's file; the largest has some 0.2 MiB."""

Drawable = Text | Regions | Timed
"""A text as the network reads it."""


class Places(NamedTuple):
    """Places of the things, in their order."""

    of: str
    """Parts of a text that have them: ``phrases`` of the caption, by Place Phrase; ``regions``, each thing's words read
    alone, by Regional Prompt; or ``predictions``, by Conditioning (Set Mask)."""
    areas: tuple[str, ...] = ("left half", "right half")
    """Areas; together they fill the picture."""
    until: float = 1.0
    """Part of the steps after which the caption is read everywhere."""
    blend: bool = False
    """Whether all regions are read everywhere in every second block, where text and picture share an attention."""


class Way(NamedTuple):
    """A way of weighting, or of placing."""

    name: str
    options: Mapping[str, Any] = {}
    """Fields of `EncodeOptions`."""
    how: str = ""
    """Attention Weights's way, for weights that act in the U-Net."""
    binds: bool = False
    """Whether the phrases of the prompt are bound."""
    places: Places | None = None
    """Places of the things; the weight is that of their phrases inside."""
    maps: Selection | None = None
    """Word maps that are compared with the things, instead of judging the pictures."""


class Question(NamedTuple):
    """Prompts and weights by which ways are compared."""

    name: str
    title: str
    ways: tuple[Way, ...]
    weights: tuple[float, ...] = FEW_WEIGHTS
    part: str = "phrase"
    """Part of a thing's words that is weighted: ``phrase``, ``color`` or ``kind``; none where things are placed."""
    num_things: int = 2
    num_prompts: int = 13
    """Prompts, of ``num_seeds`` pictures each."""
    num_seeds: int = SEEDS
    answers: tuple[str, ...] = ("present", "right", "others", "leaked", "sureness", "moved", "area")
    """Names of the answers that are told."""
    kinds: tuple[str, ...] = KINDS
    """Kinds of its things."""
    num_skipped: int = 0
    """First prompts that are left out."""
    sitting: Callable[[Painter, Question], Sitting] | None = None
    """Makes and judges its pictures; None for `Sitting`."""

    @property
    def prompts(self) -> list[Prompt]:
        """Prompts about things of different colours; the weighted one is the first, and every other time the last."""
        rng = random.Random(f"{self.num_things}/prompts")
        choices = {"colors_differ": True, "kinds": self.kinds}
        scenes = [random_scene(rng, self.num_things, **choices) for _ in range(self.num_skipped + self.num_prompts)]
        prompts = [Prompt(scene, -(index % 2) % self.num_things) for index, scene in enumerate(scenes)]
        return prompts[self.num_skipped :]


class Prompt(NamedTuple):
    """A scene, and the number of the thing in it whose words are weighted."""

    scene: Scene
    target: int

    def text(self, weight: float = 1.0, part: str = "phrase") -> str:
        """The caption with a weight, in ComfyUI's syntax.

        >>> Prompt(Scene((Thing("red", "circle"), Thing("blue", "square"))), 1).text(0.5, "color")
        'a red circle and a (blue:0.5) square'
        """
        if not part:
            return self.scene.caption
        phrases = [thing.phrase for thing in self.scene.things]
        thing = self.scene.things[self.target]
        word = getattr(thing, part)
        phrases[self.target] = thing.phrase.replace(word, f"({word}:{weight:g})")
        return " and ".join(phrases)


class Judged(NamedTuple):
    """The judge's answers for one picture."""

    present: bool
    """There is a thing of the target's colour."""
    right: bool
    """It is of the target's kind, too."""
    others: bool
    """All other things are there, with colour and kind."""
    leaked: bool
    """A thing that nobody asked for has the colour of one of the prompt's things and the kind of another."""
    moved: float
    """Mean change of a channel, 0..1, outside the target here and at weight 1."""
    sureness: float
    """Mean overlap of what is there with shapes; 0 for an empty picture."""
    area: int
    """Pixels of the target."""
    placed: bool
    """All things are there, the middle of the first one in the left half and those of the others in the right."""
    kinds: float
    """Share of the things that are there with their kind."""


Point = Sequence[Sequence[Any]]
"""Answers by prompt and seed, in a named tuple such as `Judged`."""


class Painter:
    """Draws prompts with a world of CLIP and a U-Net, weighted by the pack's own code."""

    layers: tuple[str, ...] = LAYERS
    """Selections of layers whose maps differ."""

    def __init__(self, world: World) -> None:
        self.network, self.things_in, self.guidance = world.network, world.things_in, world.guidance
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
            options = replace(options, bind="\n".join(phrases))
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
        for group in _alike(texts, max(1, BATCH // len(seeds[0]))):
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


JOINT_HOWS = tuple(name for name, way in WAYS.items() if not SCHEMES[way.scheme].is_weighing)
"""Ways of Attention Weights in the joint world."""


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


def _alike(texts: Sequence[Drawable], max_size: int) -> Iterator[list[Drawable]]:
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


Watched = tuple[list[list[list[Found | None]]], dict[tuple[str, str], Tensor]]
"""The things of each prompt and seed, None for one that is not right; the maps of each thing's `PARTS` by layers and
steps, ``[prompts, seeds, words, 16, 16]``."""


class Sitting:
    """One question's prompts and their pictures without weights, with which all other pictures are compared."""

    @staticmethod
    def answers(way: Way) -> type[Any]:
        """Class of the answers for a way."""
        return Judged if way.maps is None else Mapped

    def point(self, way: Way, weight: float) -> Point:
        """Answers for all prompts."""
        return self.judge(self.draw(way, weight)) if way.maps is None else self.compare(way, weight)

    def __init__(self, painter: Painter, question: Question) -> None:
        self.painter, self.question, self.prompts = painter, question, question.prompts
        numbers = range(len(self.prompts))
        seeds = range(question.num_seeds)
        self.seeds = [[FIRST_SEED + number * SEEDS + seed for seed in seeds] for number in numbers]
        self._last: tuple[tuple[Way, float], Watched] | None = None

    @cached_property
    def plain_texts(self) -> list[Text]:
        """Texts of the prompts at weight 1."""
        return [self.painter.text(prompt.text(), Way("comfy")) for prompt in self.prompts]

    @cached_property
    def plain(self) -> tuple[Tensor, list[list[list[Found]]]]:
        """Pictures at weight 1, and the things in them."""
        pictures = self.painter.pictures(self.plain_texts, self.seeds)
        return pictures, [self.painter.things_in(of_prompt) for of_prompt in pictures]

    def draw(self, way: Way, weight: float) -> Tensor:
        """Pictures of all prompts; those whose text is that of weight 1 are not drawn again."""
        texts = [self.painter.drawable(prompt, way, weight, self.question.part) for prompt in self.prompts]
        same = [
            isinstance(text, Text) and not (text.fields or text.bias is not None) and torch.equal(text.rows, plain.rows)
            for text, plain in zip(texts, self.plain_texts, strict=True)
        ]
        pictures = self.plain[0].clone()
        changed = [index for index, is_same in enumerate(same) if not is_same]
        if changed:
            pictures[changed] = self.painter.pictures(
                [texts[index] for index in changed], [self.seeds[index] for index in changed]
            )
        return pictures

    def compare(self, way: Way, weight: float) -> Point:
        """Answers for the maps of all prompts, of the weighted things if a part is weighted."""
        assert way.maps is not None
        things, maps = self._watched(way._replace(name="", maps=Selection("")), weight)
        word_maps = maps[way.maps.layers, way.maps.steps][:, :, PARTS.index(way.maps.part) :: len(PARTS)]
        numbers = range(self.question.num_things)
        return [
            [
                mapped(*of_picture, [prompt.target] if self.question.part else numbers)
                for of_picture in zip(prompt_maps, prompt_things, strict=True)
            ]
            for prompt, prompt_maps, prompt_things in zip(self.prompts, word_maps, things, strict=True)
        ]

    def _watched(self, way: Way, weight: float) -> Watched:
        """Things and maps of all prompts; those of the last way are kept."""
        if self._last is not None and self._last[0] == (way, weight):
            return self._last[1]
        things: list[list[list[Found | None]]] = []
        maps: dict[tuple[str, str], list[Tensor]] = {chosen: [] for chosen in product(self.painter.layers, STEPS)}
        texts = [self.painter.drawable(prompt, way, weight, self.question.part) for prompt in self.prompts]
        for group in _alike(texts, BATCH // self.question.num_seeds):
            part = slice(len(things), len(things) + len(group))
            with watched(self.painter.network) as recorded:
                pictures = self.painter.pictures(group, self.seeds[part])
            for prompt, of_prompt in zip(self.prompts[part], pictures, strict=True):
                things.append(
                    [_right(of_picture, prompt.scene.things) for of_picture in self.painter.things_in(of_prompt)]
                )
            for chosen, parts in maps.items():
                parts.append(mean_maps(recorded, *chosen).unflatten(0, (len(group), -1)))
        result = things, {chosen: torch.cat(parts) for chosen, parts in maps.items()}
        self._last = (way, weight), result
        return result

    def judge(self, pictures: Tensor) -> list[list[Judged]]:
        """Answers for pictures of all prompts, ``[prompts, seeds, 3, 32, 32]``."""
        plain, plain_things = self.plain
        return [
            [
                judged(prompt, *four)
                for four in zip(drawn, self.painter.things_in(drawn), plain[index], before, strict=True)
            ]
            for index, (drawn, prompt, before) in enumerate(zip(pictures, self.prompts, plain_things, strict=True))
        ]


def judged(
    prompt: Prompt, picture: Tensor, things: Sequence[Found], plain: Tensor, plain_things: Sequence[Found]
) -> Judged:
    """Answers for a picture ``[3, 32, 32]`` and the things in it, beside the same at weight 1."""
    asked = prompt.scene.things
    assigned_things = assigned(things, asked)
    target, before = assigned_things[prompt.target], assigned(plain_things, asked)[prompt.target]
    is_right = [thing is not None for thing in _right(things, asked)]
    outside = torch.ones(picture.shape[1:], dtype=torch.bool)
    for thing in (target, before):
        if thing is not None:
            outside &= ~thing.area
    return Judged(
        target is not None,
        is_right[prompt.target],
        all(right for index, right in enumerate(is_right) if index != prompt.target),
        _has_leaked(things, asked),
        float((picture - plain).abs().mean(0)[outside].mean()),
        sum(thing.sureness for thing in things) / max(1, len(things)),
        0 if target is None else int(target.area.sum()),
        all(thing is not None and _is_left(thing) == (index == 0) for index, thing in enumerate(assigned_things)),
        sum(is_right) / len(asked),
    )


def _right(things: Sequence[Found], asked: Sequence[Thing]) -> list[Found | None]:
    """Findings for each wanted thing, if they have its kind."""
    pairs = zip(assigned(things, asked), asked, strict=True)
    return [match if match is not None and match.thing.kind == thing.kind else None for match, thing in pairs]


def _is_left(thing: Found) -> bool:
    return float((thing.area.nonzero()[:, 1] + 0.5).mean()) < SIDE / 2


def _has_leaked(things: Sequence[Found], asked: Sequence[Thing]) -> bool:
    pairs = {thing[:2] for thing in asked}
    colors, kinds = {thing.color for thing in asked}, {thing.kind for thing in asked}
    looks = [match.thing for match in things]
    return any(look[:2] not in pairs and look.color in colors and look.kind in kinds for look in looks)


class Interval(NamedTuple):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[Sequence[float]], *, resamples: int = 2000) -> Interval:
    """Mean of values by prompt and seed, with its 95 % interval by bootstrap over prompts, and seeds within them.

    Values that are NaN do not count.
    """
    array = np.asarray(values, float)
    resampled = array[_resampled(*array.shape, resamples)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nothing but NaN, the mean is NaN
        low, high = np.nanquantile(np.nanmean(resampled, (1, 2)), (0.025, 0.975)).tolist()
        return Interval(float(np.nanmean(array)), low, high)


@cache
def _resampled(prompts: int, seeds: int, resamples: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of resampled values, the same for all points."""
    rng = np.random.default_rng(0)
    return (
        rng.integers(prompts, size=(resamples, prompts, 1)),
        rng.integers(seeds, size=(resamples, prompts, seeds)),
    )


def of_point(point: Point, name: str) -> Interval:
    """Mean of one of the answers, with its interval."""
    return interval([[getattr(answers, name) for answers in seeds] for seeds in point])


# ---- the whole measurement

Points = dict[tuple[str, str, float], Point]
"""Points by the names of question and way, and the weight."""


def missing(folder: Path, questions: Sequence[Question]) -> int:
    """Number of pictures that a folder does not hold yet."""
    return sum(
        question.num_prompts * question.num_seeds
        for question in questions
        for way in question.ways
        for weight in question.weights
        if not _path(folder, question, way, weight).exists()
    )


def measure(
    painter: Painter,
    folder: Path,
    questions: Sequence[Question],
    recipe: Mapping[str, Any],
    say: Callable[[int], None] = lambda drawn: None,
) -> Points:
    """Draw and judge what the folder does not hold yet; ``say`` is told the number of pictures of each new point.

    Raises:
        ValueError: If the folder holds points of another world or measurement, or damaged ones.
        OSError: If it cannot be written.
    """
    points = Points()
    for question in questions:
        sitting = (question.sitting or Sitting)(painter, question)
        for way in question.ways:
            for weight in question.weights:
                path = _path(folder, question, way, weight)
                header = {
                    **{"format": FORMAT, "recipe": dict(recipe), "question": question.name, "part": question.part},
                    **{"prompts": [prompt.text() for prompt in sitting.prompts], "seeds": question.num_seeds},
                    **{"way": {**way._asdict(), "options": dict(way.options)}, "guidance": painter.guidance},
                }
                header = json.loads(json.dumps(header))  # as it is read again
                point = _stored(path, header, sitting.answers(way))
                if point is None:
                    point = sitting.point(way, weight)
                    _write(path, header, point)
                    say(len(point) * question.num_seeds)
                points[question.name, way.name, weight] = point
    return points


def _path(folder: Path, question: Question, way: Way, weight: float) -> Path:
    return folder / f"{question.name} {way.name} {weight:g}.json"


def _stored(path: Path, header: Mapping[str, Any], answers: type[Any]) -> Point | None:
    try:
        stored = {"guidance": FIRST_GUIDANCE, **parse_json(read_regular(path, MAX_POINT_BYTES))}
        point = [[answers(*values) for values in seeds] for seeds in stored.pop("judged")]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove it, or choose another folder") from error
    if stored != header or {len(seeds) for seeds in point} != {header["seeds"]} or len(point) != len(header["prompts"]):
        raise ValueError(f"{path} is of another world or another measurement: choose another folder")
    return point


def _write(path: Path, header: Mapping[str, Any], point: Point) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps({**header, "judged": point}))


# ---- the questions

EVERY_WAY = (
    *(Way(name, {"scheme": name}) for name in SCHEMES),
    *(Way(f"attention {how}", how=how) for how in WAYS),
)
"""Every scheme, and every way of Attention Weights."""
_NAMED = {way.name: way for way in EVERY_WAY}
FEW_WAYS = tuple(_NAMED[name] for name in ("comfy", "compel", "masked_blend", "attention bias"))
SOME_WAYS = (*FEW_WAYS, _NAMED["a1111"], _NAMED["attention value"])
"""Ways in charts, grids and smaller tables."""
ABSENCES = tuple(
    Way(f"{law} {method}", {"scheme": "masked_blend", "law": law, "mask_method": method})
    for law in ("nested", "compel")
    for method in ("attention", "token", "remove")
)
KEPT_APART = (
    Way("as always"),
    Way("bind", binds=True),
    Way("bind, rest alone", {"bind_rest": "alone"}, binds=True),
)
PHRASES, REGIONS = Places("phrases"), Places("regions")
PLACED_PADDINGS = ("attend", "drop", "clean EOS too")
CHANGED: Mapping[str, Mapping[str, Any]] = {
    "soft edges": {"areas": ("left half ~0.25", "right half ~0.25")},
    "first 40 %": {"until": 0.4},
}
"""Other places, by name."""
PLACED_ANSWERS = ("placed", "present", "kinds")
WORDS_OF = {"color": "colour", "kind": "kind", "article": "a"}
"""Names of the words whose maps are compared, by part of the phrase."""
SELECTED: Mapping[str, Mapping[str, str]] = {
    "all": {},
    "8 by 8": {"layers": FINE},
    "4 by 4": {"layers": COARSE},
    "first half": {"steps": EARLY},
    "second half": {"steps": LATE},
}
"""Layers, by their cells, or steps whose maps are compared."""
QUESTIONS = (
    Question("phrase", "A whole phrase of two", EVERY_WAY, WEIGHTS, num_prompts=25),
    Question("color", "A colour word", SOME_WAYS, part="color"),
    Question("kind", "A kind word", SOME_WAYS, part="kind"),
    Question("one", "The only phrase", SOME_WAYS, num_things=1),
    Question("three", "A phrase of three", SOME_WAYS, num_things=3),
    Question("absence", "masked_blend: law and mask method", ABSENCES),
    Question("padding", "Padding", tuple(Way(name, {"padding": name}) for name in PADDINGS)),
    Question(
        "apart",
        "Phrases kept apart, and causality",
        (*KEPT_APART, Way("not causal", {"is_causal": False})),
        (1.0,),
        num_prompts=25,
    ),
    *(
        Question(
            f"{name} apart",
            f"{name.title()} phrases kept apart",
            KEPT_APART,
            (1.0,),
            num_things=number,
            answers=("present", "kinds", "leaked"),
        )
        for name, number in (("three", 3), ("four", 4))
    ),
    Question(
        "places",
        "Each phrase placed in its half, by its weight inside",
        (
            *(Way(f"padding {name}", {"padding": name}, places=PHRASES) for name in PLACED_PADDINGS),
            *(Way(name, {"padding": "drop"}, places=PHRASES._replace(**changed)) for name, changed in CHANGED.items()),
        ),
        (1.0, 2.0, 4.0, 10.0),
        "",
        num_prompts=38,
        answers=PLACED_ANSWERS,
    ),
    Question(
        "regions",
        "Prompts of their own in each half",
        (
            *(Way(f"nothing, {name}", {"padding": name}) for name in PLACED_PADDINGS),
            *(Way(f"regions, {name}", {"padding": name}, places=REGIONS) for name in PLACED_PADDINGS),
            *(
                Way(f"regions, drop, {name}", {"padding": "drop"}, places=REGIONS._replace(**changed))
                for name, changed in CHANGED.items()
            ),
            *(Way(f"Set Mask, {name}", {"padding": name}, places=Places("predictions")) for name in PLACED_PADDINGS),
        ),
        (1.0,),
        "",
        num_prompts=38,
        answers=PLACED_ANSWERS,
    ),
    Question(
        "maps",
        "Maps of words",
        tuple(
            Way(f"{name}, {said}", maps=Selection(part, **chosen))
            for part, name in WORDS_OF.items()
            for said, chosen in SELECTED.items()
        ),
        (1.0,),
        "",
        num_prompts=38,
        answers=("favoured", "inside", "covered", "distance", "blank"),
    ),
    Question(
        "maps apart",
        "Maps of words that are kept apart",
        tuple(
            way._replace(name=f"{name}, {way.name}", maps=Selection(part))
            for way in (
                Way("as always"),
                Way("bind", binds=True),
                Way("padding drop", {"padding": "drop"}),
                Way("placed, drop", {"padding": "drop"}, places=PHRASES),
                Way("regions, drop", {"padding": "drop"}, places=REGIONS),
            )
            for part, name in WORDS_OF.items()
            if part != "article"
        ),
        (4.0,),
        "",
        num_prompts=38,
        answers=("favoured", "inside", "covered", "distance", "own_half"),
    ),
    Question(
        "maps weighted",
        "A colour word by its weight",
        tuple(
            way._replace(maps=Selection("color")) for way in (_NAMED["comfy"], *(way for way in SOME_WAYS if way.how))
        ),
        part="color",
        answers=("read",),
    ),
)
"""The whole measurement."""
QUICK = (Question("quick", "A whole phrase of two", FEW_WAYS, num_prompts=6),)
"""A table within two minutes."""

JOINT_WAYS = (
    Way("rows as of T5", {"scheme": "comfy"}),
    Way("rows scaled", {"scheme": "scaled"}),
    *(_NAMED[f"attention {how}"] for how in JOINT_HOWS),
)
"""Every way of weighting in the joint world."""
FEW_JOINT_WAYS = tuple(way for way in JOINT_WAYS if way.name in ("rows as of T5", "attention bias", "attention value"))
_JOINT_CHANGED: Mapping[str, Mapping[str, Any]] = {"all": {}, **CHANGED}
JOINT_QUESTIONS = tuple(
    question._replace(kinds=tuple(TEXTURES))
    for question in (
        Question("phrase", "A whole phrase of two", JOINT_WAYS, WEIGHTS, num_prompts=25),
        Question("color", "A colour word", FEW_JOINT_WAYS, part="color"),
        Question("kind", "A texture word", FEW_JOINT_WAYS, part="kind"),
        Question("one", "The only phrase", FEW_JOINT_WAYS, num_things=1),
        Question("three", "A phrase of three", FEW_JOINT_WAYS, num_things=3),
        Question(
            "places",
            "Each phrase placed in its half, by its weight inside",
            tuple(Way(name, places=PHRASES._replace(**changed)) for name, changed in _JOINT_CHANGED.items()),
            (1.0, 2.0, 4.0, 10.0),
            "",
            num_prompts=38,
            answers=PLACED_ANSWERS,
        ),
        Question(
            "regions",
            "Prompts of their own in each half",
            (
                Way("nothing"),
                *(
                    Way(f"regions, {name}", places=REGIONS._replace(**changed))
                    for name, changed in {**_JOINT_CHANGED, "every other block": {"blend": True}}.items()
                ),
                Way("Set Mask", places=Places("predictions")),
            ),
            (1.0,),
            "",
            num_prompts=38,
            answers=PLACED_ANSWERS,
        ),
        Question(
            "maps",
            "Maps of words",
            tuple(
                Way(f"{name}, {said}", maps=Selection(part, **chosen))
                for part, name in {**WORDS_OF, "kind": "texture"}.items()
                for said, chosen in SELECTED.items()
                if "layers" not in chosen
            ),
            (1.0,),
            "",
            num_prompts=38,
            answers=("favoured", "inside", "covered", "distance", "blank"),
        ),
        Question(
            "maps weighted",
            "A colour word by its weight",
            tuple(way._replace(maps=Selection("color")) for way in FEW_JOINT_WAYS),
            part="color",
            answers=("read",),
        ),
    )
)
"""The whole measurement in the joint world."""
JOINT_QUICK = (Question("quick", "A whole phrase of two", FEW_JOINT_WAYS, num_prompts=6, kinds=tuple(TEXTURES)),)


def questions_of(
    world: World, *, is_quick: bool, max_prompts: int | None = None, num_seeds: int = SEEDS
) -> tuple[Question, ...]:
    """The measurement of a kind of world, with at most so many prompts of each question, and pictures of each."""
    questions = {"unet": (QUESTIONS, QUICK), "joint": (JOINT_QUESTIONS, JOINT_QUICK)}[world.name][is_quick]
    return limited(questions, max_prompts, num_seeds)


def limited(questions: Sequence[Question], max_prompts: int | None, num_seeds: int) -> tuple[Question, ...]:
    """Questions with at most so many prompts of each, and pictures of each prompt."""
    return tuple(
        question._replace(
            num_prompts=min(question.num_prompts, max_prompts or question.num_prompts), num_seeds=num_seeds
        )
        for question in questions
    )
