"""Nodes that show where in the picture each word was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..hosts.comfy.types import Conditioning
from ..hosts.comfy.watching import LAYERS, Watch
from ..hosts.comfy.word_maps import (
    MAX_PICTURES,
    SCALES,
    check_every,
    check_watched,
    maps_of,
    message_of,
    scaled,
    table_of,
    watch_words,
    watched_names,
    words_problems,
)
from ..weighting.problems import Problem, refused
from .checks import Known
from .node import CATEGORY, WATCH, Node, Out, checked, make_input, number, watch_input, words_input
from .results import saved_preview, to_image, to_picture

if TYPE_CHECKING:
    from PIL import Image

PREVIEW_SIDE = 512
"""Longest side of a picture that the node shows."""


class WeightedCLIPWatch(Node):
    """Records where in the picture each word of a prompt is read while it is sampled, for Word Maps. The picture stays
    the same to the last bit. For all models that Weigh Attention knows, with prompts that our nodes have encoded.
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
        "words": words_input("Words or phrases of the prompt, one a line. Empty: each word.", multiline=True),
        "every": make_input("INT", "Record every so many steps. 1: all. More is faster.", **number(1, 1, 1000)),
        "layers": make_input(
            LAYERS,
            "all: the mean of all attention layers. fine: those that see the picture in the most cells, so edges. "
            "coarse: the others, so the layout. as DAAM: as that program does, for comparison (Stable Diffusion 1, 2, "
            "XL). Models with one grid, such as Flux, have the same layers in coarse and fine.",
        ),
    }

    @classmethod
    def problems(cls, known: Known) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        if known.has("every"):
            yield from refused("every", check_every, known.values["every"])
        if known.has("words", "layers"):
            yield from words_problems(known.values["words"], known.values["layers"], known.prompts("conditioning"))

    @classmethod
    def words(cls, known: Known) -> Iterator[list[str]]:
        """Words of its prompts."""
        return known.typed_words("conditioning")

    def watch(self, conditioning: Conditioning, words: str, every: int, layers: str) -> tuple[Conditioning, Watch]:
        """Let the words be watched."""
        return watch_words(conditioning, words, every, checked("layers", layers, LAYERS))


class WeightedCLIPWordMaps(Node):
    """Shows where in the picture each watched word was read: as masks, for inpainting or Place Phrase, and as pictures.
    It takes the LATENT as the sampler gives it, by which it knows which sampling is meant.
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
        "watch": watch_input("From Watch Words."),
        "latent": make_input("LATENT", "The sampler's output as it is, sampled with Watch Words' CONDITIONING."),
        "scale": make_input(
            SCALES,
            "one for all: 1 is the largest share of all words, so words that are hardly read stay dark. each its own: "
            "from the word's least share to its largest.",
        ),
        "word": words_input("The word whose masks and overlays to give. Empty: all, one after the other."),
    }
    optional = {"image": make_input("IMAGE", "The decoded picture, for the overlay and the size.")}

    @classmethod
    def problems(cls, known: Known) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        names = cls._names(known)
        if names is not None and known.has("word"):
            yield from refused("word", check_watched, known.values["word"], names)

    @classmethod
    def words(cls, known: Known) -> Iterator[list[str]]:
        """Words that are watched."""
        yield cls._names(known) or []

    @staticmethod
    def _names(known: Known) -> list[str] | None:
        """Names of the words that are watched; None if they are not known."""
        watch = known.sources.get("watch")
        if watch is None or watch.kind != WeightedCLIPWatch.__name__:
            return None
        words, prompts = watch.values.get("words"), known.prompts_of(watch.links.get("conditioning"))
        if not isinstance(words, str) or not (words.strip() or prompts.is_whole):
            return None
        return watched_names(words, prompts)

    def show(
        self, watch: Watch, latent: dict[str, Any], scale: str, word: str, image: Tensor | None = None
    ) -> dict[str, Any]:
        """Show the maps."""
        from ..web.pictures import draw_heat, draw_word_maps

        checked("scale", scale, SCALES)
        check_watched(word, watch.names)
        found = maps_of(watch, latent["samples"], image)
        maps = scaled(found, scale)
        names = {one.word.casefold(): one for one in maps}
        key = " ".join(word.split()).casefold()
        shown = [names[key]] if key else maps
        pictures = [None if image is None else to_picture(image[index]) for index in range(len(found[0].shares))]
        note = f"scale: {scale}; 1 is {max(float(one.shares.max()) for one in found):.2%} of the attention"
        grids = [
            draw_word_maps([(one.word, one.shares[index].numpy()) for one in maps], note, picture)
            for index, picture in enumerate(pictures)
        ]
        overlays = [
            to_image(draw_heat(one.shares[index].numpy(), picture))
            for one in shown
            for index, picture in enumerate(pictures)
        ]
        report = table_of(found)
        masks = torch.cat([one.shares for one in shown])
        result = masks, torch.cat([to_image(grid) for grid in grids]), torch.cat(overlays), report
        previews = [None if one is None else _preview(one) for one in pictures[:MAX_PICTURES]]
        message = {**message_of(found, is_one_scale=scale == SCALES[0]), "previews": previews}
        return {"ui": {"text": report.splitlines()[:1], "weighted_clip": [message]}, "result": result}


def _preview(picture: Image.Image) -> dict[str, str]:
    small = picture.copy()
    small.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
    return saved_preview(small)
