"""Word maps of a CONDITIONING: which words are watched, and what their maps say after a sampling.

Source: docs/places.md, "Word maps".
"""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ....encoder.quoting import quote
from ....weighting.phrases.words import Words, names_in
from ....weighting.placing.fields import means
from ....weighting.placing.word_maps import MAX_WATCHED, NUM_WATCHED
from ....weighting.text.phrases import without_commas
from ....weighting.text.problems import Problem, refused
from ....weighting.text.prompt import shortened
from ..attention.attention import with_watch
from ..attention.marker import regions_of
from ..attention.recorder import AS_DAAM, Watch
from ..attention.words import WORDS, Carried, absent
from ..types import Conditioning
from .placements import all_rows_of
from .upstream import Prompts

SCALES = ("one for all", "each its own")
"""Scales of maps: one for all words, from 0 to the largest share; or from each word's least share to its largest."""


def watch_words(conditioning: Conditioning, words: str, every: int, layers: str) -> tuple[Conditioning, Watch]:
    """Let the words of a conditioning be watched when it is sampled.

    Args:
        conditioning: Conditioning of our encode nodes.
        words: Words or phrases, one a line; none for the first ones of the prompt.
        every: Steps from one that is recorded to the next.
        layers: One of `LAYERS`.

    Returns:
        A copy of the conditioning, and the watch.

    Raises:
        ValueError: If a phrase is absent, its rows cannot be told, there are more than `MAX_WATCHED`, or ``layers``
            does not go with several prompts.
    """
    check_every(every)
    check_number(words)
    typed = lines_of(words)
    prompt_words = () if typed else names_in(_all_words(conditioning))
    names = typed or prompt_words[:NUM_WATCHED]
    note = ""
    if len(prompt_words) > len(names):
        note = f"the first {len(names)} of {len(prompt_words)} words; for others, name them in Watch Words"
    by_entry = [[all_rows_of(name, rows, values) for name in names or [""]] for rows, values in conditioning]
    if not names:
        raise ValueError(NO_WORDS)
    for name, word_rows in zip(names, zip(*by_entry, strict=True), strict=True):
        if not any(word_rows):
            raise ValueError(absent(name))
    lengths: tuple[int, ...] = ()
    if layers == AS_DAAM:
        if len(by_entry) > 1:
            raise ValueError(_of_one_prompt(len(by_entry)))
        lengths = tuple(map(len, by_entry[0]))
        by_entry = [[(row,) for rows_of_word in by_entry[0] for row in rows_of_word]]
    watch = Watch(names, every, layers, lengths, note=note)
    return with_watch(conditioning, watch, by_entry), watch


def lines_of(words: str) -> list[str]:
    """Words or phrases, one a line, each once."""
    return list(dict.fromkeys(" ".join(without_commas(line).split()) for line in words.splitlines() if line.strip()))


def check_number(words: str) -> None:
    """Refuse more words than can be watched, with a ValueError that says how many they are."""
    if (number := len(lines_of(words))) > MAX_WATCHED:
        raise ValueError(f"At most {MAX_WATCHED} words can be watched at a time, got {number:,}: take some out.")


def check_every(every: int) -> None:
    """Refuse a number of steps that is none, with a ValueError that quotes it."""
    if every < 1:
        raise ValueError(f"every must be 1 or above, got {every}.")


NO_WORDS = "The prompt has no words to watch."


def _of_one_prompt(number: int) -> str:
    return f"Watch Words records as DAAM does for one prompt only; these are {number}."


def words_problems(words: str, layers: str, prompts: Prompts) -> Iterator[Problem]:
    """Problems of the words to watch in some prompts: what `watch_words` refuses, as far as it is known."""
    names = watched_names(words, prompts)
    yield from refused("words", check_number, words)
    if prompts.refusal is not None:
        yield Problem(prompts.refusal(names[0] if names else ""), "conditioning")
        return
    if not names and prompts.is_whole:
        yield Problem(NO_WORDS, "conditioning")
    yield from (Problem(absent(name), "words") for name in names if not prompts.has(name))
    if layers == AS_DAAM and prompts.num_entries > 1:
        yield Problem(_of_one_prompt(prompts.num_entries), "layers")


def watched_names(words: str, prompts: Prompts) -> list[str]:
    """Names of the words that are watched in some prompts."""
    return lines_of(words) or list(names_in(prompts.words)[:NUM_WATCHED])


def check_watched(word: str, names: Sequence[str]) -> None:
    """Refuse a word that is not watched, with a ValueError that names those that are."""
    key = " ".join(without_commas(word).split()).casefold()
    if key and key not in map(str.casefold, names):
        raise ValueError(f"word must be one that is watched: {shortened(', '.join(names), 400)}; got {quote(word)}")


def _all_words(conditioning: Conditioning) -> Iterator[Words]:
    """Words of all prompts."""
    for _, values in conditioning:
        carried: Carried | None
        for carried in (values.get(WORDS), *(region.words for region in regions_of(values))):
            for part in () if carried is None else carried.parts:
                yield from part.values()


class WordMap(NamedTuple):
    """Map of a word."""

    word: str
    shares: Tensor
    """Share of the attention that it got at each place: ``[pictures or frames, height, width]``, float32."""
    size: tuple[int, int] | None = None
    """Height and width of the picture, in pixels; None if it is as large as ``shares``."""

    def at(self, number: int) -> Tensor:
        """Share at each pixel of a picture or frame: ``[height, width]``."""
        shares = self.shares[None, None, number]
        grown = shares if self.size is None else interpolate(shares, self.size, mode="bilinear", align_corners=False)
        return grown[0, 0]


def maps_of(watch: Watch, samples: Tensor, image: Tensor | None = None) -> list[WordMap]:
    """Maps of the watched words in the sampling that had this result.

    Args:
        watch: The watch.
        samples: Samples of the latent.
        image: Its pictures or frames, ``[number, height, width, 3]``, for size and number of the maps; None for the
            size of the picture, and for a video a map for each frame of the latent.

    Returns:
        The words in their order.

    Raises:
        ValueError: If no such sampling is known, or ``image`` has another number of pictures.
    """
    record = watch.record_of(samples)
    maps = record.maps()
    maps = maps.movedim(1, 0).flatten(1, -3)  # [words, pictures or frames, height, width]
    height, width = (side * record.ratio for side in record.size[-2:])
    if image is not None:
        (height, width), number, ratio = image.shape[1:3], len(image), record.frames_ratio
        if number != maps.shape[1]:
            if samples.dim() < 5 or len(samples) > 1 or number != ratio * (maps.shape[1] - 1) + 1:
                raise ValueError(f"image has {number} pictures, but the LATENT has {maps.shape[1]}: give as many.")
            maps = maps[:, [0, *(1 + frame // ratio for frame in range(number - 1))]]
    return [WordMap(name, shares, (height, width)) for name, shares in zip(watch.names, maps, strict=True)]


def scaled(shares: Tensor, place: MapSummary, largest: float, scale: str) -> Tensor:
    """Shares at each pixel from 0 to 1, by one of `SCALES`; ``largest`` is the largest share of all words."""
    if scale == SCALES[0]:
        return shares / (largest or 1.0)
    return (shares - place.smallest) / max(place.largest - place.smallest, 1e-12)


MAX_OUTPUT = 2**30
"""Most bytes of the masks and overlays of several words; one word is always made."""


def most_words(maps: Sequence[WordMap], bytes_by_pixel: int) -> int:
    """Number of words whose masks and overlays are made; each map takes ``bytes_by_pixel`` for each pixel."""
    number, size = len(maps[0].shares), maps[0].size or tuple(maps[0].shares.shape[-2:])
    return max(1, min(len(maps), MAX_OUTPUT // max(1, number * math.prod(size) * bytes_by_pixel)))


MAX_BYTES = 128 * 1024
"""Most bytes of maps in a message to the page, which are a third more as text."""
MAX_PICTURES = 8
"""Most pictures or frames whose maps are sent to the page."""
MAX_CELLS = 64
"""Most cells along a side of a map that is sent."""


def message_of(maps: Sequence[WordMap], *, is_one_scale: bool) -> dict[str, Any]:
    """Maps as plain data that the page draws: `Maps` of web/comfyui/ruler/word_maps.js, without previews.

    Cells are as many as `MAX_BYTES` allow, each a mean over its pixels.
    """
    num_pictures = min(MAX_PICTURES, len(maps[0].shares))
    height, width = maps[0].at(0).shape
    max_side = min(MAX_CELLS, height, width, int((MAX_BYTES / (num_pictures * len(maps))) ** 0.5))
    rows, columns = (max(1, round(side * max_side / max(height, width))) for side in (height, width))
    cells = torch.stack(
        [
            torch.stack([means(word_map.at(number), (rows, columns)) for word_map in maps])
            for number in range(num_pictures)
        ]
    )  # [pictures, words, rows, columns]
    largest = cells.amax((2, 3), keepdim=True)
    levels = (255 * cells / largest.clamp(min=1e-30)).round().byte()
    return {
        "words": [word_map.word for word_map in maps],
        "rows": rows,
        "columns": columns,
        "num_pictures": len(maps[0].shares),
        "largest": largest.flatten(1).tolist(),
        "maps": b64encode(levels.numpy().tobytes()).decode(),
        "is_one_scale": is_one_scale,
    }


class MapSummary(NamedTuple):
    """Summary of a map."""

    mean: float
    """Mean share."""
    largest: float
    across: float
    """Centre, weighted by the shares, from the left (0) to the right (1)."""
    down: float
    """The same from the top."""
    spread: float
    """Root mean square distance from the centre, in parts of the picture's sides; about 0.41 if it is even."""
    smallest: float
    """Smallest share."""


def place_of(shares: Tensor) -> MapSummary:
    """Summary of a map ``[height, width]``."""
    total = shares.double().sum().clamp(min=1e-30)
    down, across = (((torch.arange(side, dtype=torch.float64) + 0.5) / side) for side in shares.shape)
    by_row, by_column = shares.double().sum(1) / total, shares.double().sum(0) / total
    y, x = float(by_row @ down), float(by_column @ across)
    spread = float(by_row @ (down - y) ** 2 + by_column @ (across - x) ** 2) ** 0.5
    return MapSummary(float(shares.mean()), float(shares.max()), x, y, spread, float(shares.min()))


def places_of(maps: Sequence[WordMap]) -> list[list[MapSummary]]:
    """Summary of each word's map of each picture or frame."""
    return [[place_of(word_map.at(number)) for number in range(len(word_map.shares))] for word_map in maps]


def table_of(words: Sequence[str], places: Sequence[Sequence[MapSummary]]) -> str:
    """Table of the words of the first pictures or frames: share, centre and spread, the most read word first."""
    lines: list[str] = []
    num_pictures = len(places[0])
    for number in range(min(num_pictures, MAX_PICTURES)):
        if num_pictures > 1:
            lines.append(f"picture or frame {number + 1}:")
        of_picture = sorted(
            ((word_places[number], word) for word_places, word in zip(places, words, strict=True)), reverse=True
        )
        lines += [
            f"{shortened(word)}: {place.mean:.2%} of the attention, at most {place.largest:.2%}; centre "
            f"{place.across:.0%} from the left, {place.down:.0%} from the top; spread {place.spread:.2f}"
            for place, word in of_picture
        ]
    if num_pictures > MAX_PICTURES:
        lines.append(f"{num_pictures - MAX_PICTURES} more pictures or frames are not listed")
    return "\n".join(lines)
