"""Nodes that show where in the picture each word was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..hosts.comfy.attention.memory_estimate import keep_free
from ..hosts.comfy.attention.recorder import FINE, LAYERS, Watch
from ..hosts.comfy.consumers import HIDDEN, is_used
from ..hosts.comfy.placing import word_maps
from ..hosts.comfy.types import Conditioning
from ..weighting.text.phrases import without_commas
from ..weighting.text.problems import Problem, refused
from .base.node import CATEGORY, MAPS, MARK, WATCH, DrawingNode, Node, Out, checked, make_input, number, words_input
from .base.node_state import NodeState
from .base.results import NOTHING, saved_preview, to_image, to_picture

if TYPE_CHECKING:
    from PIL import Image

FLOAT = torch.float32.itemsize
PREVIEW_SIDE = 512
"""Longest side of a picture that the node shows."""


class WeightedCLIPWatch(Node):
    """Records where in the picture each word of a prompt is read while it is sampled, for Word Maps. The picture stays
    the same to the last bit. For all models that Attention Weights supports, with prompts that our nodes have encoded.
    """

    title = "Watch Words"
    aliases = "word maps, attention maps, daam, heat map, cross attention, where, watch, explain, interpret"
    CATEGORY = f"{CATEGORY}/look"
    outputs = (
        Out("CONDITIONING", "CONDITIONING", "The same prompt, watched: for the sampler."),
        Out(WATCH, "watch", "For Word Maps, together with the sampler's LATENT."),
    )
    FUNCTION = "watch"
    required = {
        "conditioning": make_input("CONDITIONING", "A prompt from one of our encode nodes; negative prompts too."),
        "words": words_input(
            "Words or phrases of the prompt, one per line, 50 at most. Empty: its first twelve words.", multiline=True
        ),
        "every": make_input("INT", "Record every Nth step (1 = every step). Higher is faster.", **number(2, 1, 1000)),
        "layers": make_input(
            LAYERS,
            "fine: the layers with the most cells, whose maps lie best on their things. coarse: the others. all: the "
            "mean of all attention layers. as DAAM: the layers that DAAM uses, for comparison (Stable Diffusion 1, 2, "
            "XL). Models with one grid, such as Flux, have the same layers in the first three.",
            default=FINE,
        ),
    }

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        if state.has("every"):
            yield from refused("every", word_maps.check_every, state.values["every"])
        if state.has("words", "layers"):
            yield from word_maps.words_problems(
                state.values["words"], state.values["layers"], state.prompts("conditioning")
            )

    @classmethod
    def words(cls, state: NodeState) -> Iterator[list[str]]:
        """Words of its prompts."""
        return state.typed_words("conditioning")

    def watch(self, conditioning: Conditioning, words: str, every: int, layers: str) -> tuple[Conditioning, Watch]:
        """Let the words be watched."""
        return word_maps.watch_words(conditioning, words, every, checked("layers", layers, LAYERS))


class WeightedCLIPWordMaps(DrawingNode, Node):
    """Shows where in the picture each watched word was read: as masks, for inpainting or Place Phrase, and as pictures.
    Connect the sampler's LATENT unchanged; it identifies the run.
    """

    title = "Word Maps"
    aliases = "attention maps, daam, heat map, cross attention, word mask, segment, where, explain, interpret"
    CATEGORY = f"{CATEGORY}/look"
    outputs = (
        Out("MASK", "masks", "Map of each word from 0 to 1; for a batch or a video, word by word all pictures."),
        Out("IMAGE", "grid", "All maps with titles, a grid for each picture."),
        Out("IMAGE", "overlay", "The picture, in colour where the word was read; in the order of the masks."),
        Out("STRING", "report", "Share of the attention, centre and spread of each word."),
    )
    FUNCTION = "show"
    OUTPUT_NODE = True
    required = {
        "watch": (WATCH, {MARK: MAPS, "tooltip": "From Watch Words."}),
        "latent": make_input("LATENT", "The sampler's output, unchanged, sampled with Watch Words' CONDITIONING."),
        "scale": make_input(
            word_maps.SCALES,
            "one for all: 1 is the largest share of all words, so words that are hardly read stay dark. each its own: "
            "from the word's smallest share to its largest.",
        ),
        "word": words_input("The word to output masks and overlays for. Empty: all words, one after the other."),
    }
    optional = {"image": make_input("IMAGE", "The decoded picture, for the overlay and the size.")}

    drawn = (0, 1, 2)
    hidden = HIDDEN

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        names = cls._names(state)
        if names is not None and state.has("word"):
            yield from refused("word", word_maps.check_watched, state.values["word"], names)

    @classmethod
    def words(cls, state: NodeState) -> Iterator[list[str]]:
        """Words that are watched."""
        yield cls._names(state) or []

    @staticmethod
    def _names(state: NodeState) -> list[str] | None:
        """Names of the words that are watched; None if they are not known."""
        watch = state.sources.get("watch")
        if watch is None or watch.kind != WeightedCLIPWatch.__name__:
            return None
        words, prompts = watch.values.get("words"), state.prompts_of(watch.links.get("conditioning"))
        if not isinstance(words, str) or not (words.strip() or prompts.is_whole):
            return None
        return word_maps.watched_names(words, prompts)

    def show(
        self,
        watch: Watch,
        latent: dict[str, Any],
        scale: str,
        word: str,
        image: Tensor | None = None,
        prompt: Any = None,
        unique_id: str | None = None,
    ) -> dict[str, Any]:
        """Show the maps."""
        checked("scale", scale, word_maps.SCALES)
        word_maps.check_watched(word, watch.names)
        maps = word_maps.maps_of(watch, latent["samples"], image)
        numbers = {word_map.word.casefold(): number for number, word_map in enumerate(maps)}
        key = " ".join(without_commas(word).split()).casefold()
        used = [is_used(slot, prompt, unique_id) for slot in self.drawn]
        num_words = word_maps.most_words(maps, FLOAT * (used[0] + 3 * used[2]))
        chosen = [numbers[key]] if key else [*range(num_words)]
        places = word_maps.places_of(maps)
        largest = max(place.largest for word_places in places for place in word_places)
        pictures = _Pictures(maps, places, largest, scale, image)
        num_pictures = len(maps[0].shares)
        lines = [watch.note] if watch.note else []
        if not key and num_words < len(maps):
            lines.append(f"masks and overlays: the first {num_words} of {len(maps)} words; word gives another")
        if num_pictures > word_maps.MAX_PICTURES:
            lines.append(f"grids: the first {word_maps.MAX_PICTURES} of {num_pictures} pictures or frames")
        note = f"scale: {scale}; 1 is {largest:.2%} of the attention"
        report = "\n".join([*lines, word_maps.table_of([word_map.word for word_map in maps], places)])
        masks, grid, overlays = torch.zeros(1, 1, 1), NOTHING, NOTHING
        height, width = maps[0].at(0).shape
        num_maps = len(chosen) * num_pictures
        keep_free(FLOAT * num_maps * height * width * (used[0] + 3 * used[2]))
        if used[0]:
            masks = concatenated((num_maps, height, width), pictures.masks(chosen))
        if used[1]:
            grids = [pictures.grid(index, note) for index in range(min(num_pictures, word_maps.MAX_PICTURES))]
            grid = torch.cat(grids)
        if used[2]:
            overlays = concatenated((num_maps, height, width, 3), pictures.overlays(chosen))
        previews = [pictures.preview(index) for index in range(min(num_pictures, word_maps.MAX_PICTURES))]
        message = {**word_maps.message_of(maps, is_one_scale=scale == word_maps.SCALES[0]), "previews": previews}
        result = masks, grid, overlays, report
        return {"ui": {"text": report.splitlines()[:1], "weighted_clip": [message]}, "result": result}


class _Pictures(NamedTuple):
    """Pictures of maps, made one at a time."""

    maps: Sequence[word_maps.WordMap]
    places: Sequence[Sequence[word_maps.MapSummary]]
    """Summary of each word's map of each picture."""
    largest: float
    """Largest share of all."""
    scale: str
    image: Tensor | None
    """The pictures themselves."""

    def values(self, word: int, index: int) -> Tensor:
        """Map of a word in a picture, from 0 to 1: ``[height, width]``."""
        return word_maps.scaled(self.maps[word].at(index), self.places[word][index], self.largest, self.scale)

    def picture(self, index: int) -> Image.Image | None:
        return None if self.image is None else to_picture(self.image[index])

    def masks(self, words: Sequence[int]) -> Iterator[Tensor]:
        """Maps of some words, word by word all pictures."""
        return (self.values(word, index) for word in words for index in range(len(self.places[word])))

    def overlays(self, words: Sequence[int]) -> Iterator[Tensor]:
        """The same over the pictures: ``[height, width, 3]``."""
        from ..web.pictures import draw_heat

        for word in words:
            for index in range(len(self.places[word])):
                yield to_image(draw_heat(self.values(word, index).numpy(), self.picture(index)))[0]

    def grid(self, index: int, note: str) -> Tensor:
        """All maps of a picture: ``[1, height, width, 3]``."""
        from ..web.pictures import draw_word_maps, tile_size

        small = tile_size(*self.maps[0].at(0).shape)
        tiles = self._replace(maps=[word_map._replace(size=small) for word_map in self.maps])
        maps = ((word_map.word, tiles.values(word, index).numpy()) for word, word_map in enumerate(self.maps))
        return to_image(draw_word_maps(maps, note, self.picture(index)))

    def preview(self, index: int) -> dict[str, str] | None:
        picture = self.picture(index)
        if picture is None:
            return None
        picture.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
        return saved_preview(picture)


def concatenated(shape: tuple[int, ...], parts: Iterable[Tensor]) -> Tensor:
    """A tensor whose first axis is filled with parts, one at a time."""
    result = torch.empty(shape)
    for place, part in zip(result, parts, strict=True):
        place.copy_(part)
    return result
