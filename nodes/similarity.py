"""Loader of a complete CLIP, text and image, and the nodes that compare images with texts, or two CLIPs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..encoder.images import best
from ..encoder.models.clip import FullClip
from ..encoder.models.config import CROPS, Crop
from ..encoder.similarity import Over, probabilities, similarity
from ..hosts.comfy.clip.clip import EitherClip
from ..hosts.comfy.clip.difference import encode_by_both
from ..hosts.comfy.models.models import Hosted, encode_images, encode_texts, load_hosted
from ..weighting.options import EncodeOptions
from ..weighting.reading.features import text_options
from ..weighting.syntax import SYNTAXES
from ..weighting.text.problems import Problem, refused
from .base.node import (
    CATEGORY,
    COMMENTS_AND_CHOICES,
    EITHER_CLIP,
    Loader,
    Node,
    Out,
    checked,
    inputs,
    loading_inputs,
    make_input,
    number,
    prompt_input,
)
from .base.node_state import NodeState
from .base.results import merged_reads, node_result, to_image, to_picture, with_preview

if TYPE_CHECKING:
    from PIL import Image

FULL_TYPE = "WEIGHTED_CLIP_FULL"
"""Type name of a link that carries a complete CLIP."""
ACTIVATIONS = {"as released": None, "quick_gelu": "quick_gelu", "gelu": "gelu"}
SOFTMAX: dict[str, Over] = {"none": "none", "over texts": "texts", "over images": "images"}

CLIP_FULL_INPUT = make_input(FULL_TYPE, "A whole CLIP, from Load CLIP (text + image).")
IMAGES_INPUT = make_input("IMAGE", "The images to compare, a batch of any size.")
CROP_INPUT = make_input(
    CROPS,
    "How an image becomes square for CLIP. center: cut at both ends of its long side. letterbox: bars along it. "
    "stretch: squeezed.",
    advanced=True,
)
SYNTAX_INPUT = make_input(
    SYNTAXES,
    "How weights are written in the text. CLIP itself has no weights: they are read and ignored. none: every "
    "character is text.",
    counts=True,
    advanced=True,
)


class WeightedCLIPLoadFull(Loader):
    """Loads a whole CLIP, text and image encoder with their projections, to compare images with texts. Text encoders
    and checkpoints of Stable Diffusion have no image half.
    """

    title = "Load CLIP (text + image)"
    aliases = "clip vision, load clip, image encoder, aesthetic, similarity"
    CATEGORY = f"{CATEGORY}/load"
    outputs = (Out(FULL_TYPE, "clip_full", "The model, for Pick Best Images and Compare Images with Texts."),)
    folders = ("clip_vision", "text_encoders")
    file_tooltip = (
        "A .safetensors file from the clip_vision or text_encoders folder, such as the model.safetensors of "
        "openai/clip-vit-large-patch14."
    )
    required = {
        **loading_inputs("Type of the weights and the arithmetic.", "auto: where the host runs text encoders."),
        "activation": make_input(
            ACTIVATIONS,
            "The model's non-linearity. as released: taken from the config.json next to the file; without one, "
            "quick_gelu for B and L, gelu for H and bigG. OpenCLIP's own B and L mostly want gelu.",
        ),
    }

    def load(self, file: str, dtype: str, device: str, activation: str) -> tuple[Hosted[FullClip]]:
        """Read the file."""
        chosen = ACTIVATIONS[checked("activation", activation, ACTIVATIONS)]
        return (load_hosted(**self.checked(file, dtype, device), activation=chosen),)


class WeightedCLIPRerank(Node):
    """Sorts a batch of images by how well CLIP says they fit a text, and keeps the best. Scores are cosines: only their
    order for one text is meaningful, not their size.
    """

    title = "Pick Best Images"
    aliases = "best of, rerank by clip, clip score, sort images, select images"
    CATEGORY = f"{CATEGORY}/pick pictures"
    outputs = (
        Out("IMAGE", "images", "The best images, best first."),
        Out("STRING", "scores", "All images with their scores, best first; images are counted from 1."),
        Out("IMAGE", "chart", "The images with their scores, best first."),
    )
    FUNCTION = "rerank"
    OUTPUT_NODE = True
    required = {
        "clip_full": CLIP_FULL_INPUT,
        "images": IMAGES_INPUT,
        "text": prompt_input(f"What the images are compared with. {COMMENTS_AND_CHOICES}"),
        "keep": make_input("INT", "How many of the best to keep.", **number(4, 1, 4096)),
        "crop": CROP_INPUT,
        "syntax": SYNTAX_INPUT,
    }

    options = staticmethod(text_options)
    """Options for reading the text."""

    def rerank(
        self, clip_full: Hosted[FullClip], images: Tensor, text: str, keep: int, crop: Crop, syntax: str
    ) -> dict[str, Any]:
        """Score every image and choose."""
        from ..web.pictures import draw_ranking

        crop = checked("crop", crop, CROPS)
        [described] = encode_texts(clip_full, [text], syntax)  # first, as it may be refused
        features = encode_images(clip_full, images, crop)
        scores: list[float] = similarity(described.vector.unsqueeze(0), features)[0].tolist()
        order = best(scores, len(scores))
        lines = [f"{rank}. image {index + 1}: {scores[index]:.4f}" for rank, index in enumerate(order, 1)]
        chart = draw_ranking(_thumbnails(images), scores, order, min(keep, len(order)), text)
        report = "\n".join([*lines, *(issue.line for issue in described.read.issues)])
        return with_preview(node_result((images[order[:keep]], report, to_image(chart)), [described.read]), chart)


class WeightedCLIPSimilarity(Node):
    """Compares every image with every text by CLIP, as a picture and as numbers."""

    title = "Compare Images with Texts"
    aliases = "clip similarity matrix, clip score, cosine, zero-shot, classify"
    CATEGORY = f"{CATEGORY}/pick pictures"
    outputs = (
        Out("IMAGE", "matrix", "The matrix: one row per text, one column per image."),
        Out("STRING", "scores", "The same as text: one line per text, values separated by tabs."),
    )
    FUNCTION = "compare"
    OUTPUT_NODE = True
    required = {
        "clip_full": CLIP_FULL_INPUT,
        "images": IMAGES_INPUT,
        "texts": make_input("STRING", "What to compare them with, one text per line.", multiline=True),
        "softmax": make_input(
            SOFTMAX,
            "none: cosines. over texts: for each image, how probable each text is among these. over images: "
            "the other way round.",
        ),
        "temperature": make_input(
            "FLOAT",
            "With softmax: the smaller, the sharper. 0: as the model was trained, mostly 0.01.",
            **number(0.0, 0.0, 10.0, 0.001),
            advanced=True,
        ),
        "crop": CROP_INPUT,
        "syntax": SYNTAX_INPUT,
    }

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        if state.has("texts"):
            yield from refused("texts", _lines, state.values["texts"])

    def compare(
        self,
        clip_full: Hosted[FullClip],
        images: Tensor,
        texts: str,
        softmax: str,
        temperature: float,
        crop: Crop,
        syntax: str,
    ) -> dict[str, Any]:
        """Compare all with all."""
        from ..web.pictures import draw_similarity

        lines = _lines(texts)
        over = SOFTMAX[checked("softmax", softmax, SOFTMAX)]
        crop = checked("crop", crop, CROPS)
        described = encode_texts(clip_full, lines, syntax)
        features = encode_images(clip_full, images, crop)
        vectors = torch.stack([text_features.vector for text_features in described])
        scale = 1.0 if over == "none" else temperature or 1 / clip_full.model.logit_scale
        values = probabilities(similarity(vectors, features, scale), over)
        picture = draw_similarity(values.tolist(), lines, _thumbnails(images), over=over)
        table = "\n".join(
            "\t".join([line, *(f"{value:.4f}" for value in row)])
            for line, row in zip(lines, values.tolist(), strict=True)
        )
        return with_preview(
            node_result((to_image(picture), table), [text_features.read for text_features in described]), picture
        )


def _lines(texts: str) -> list[str]:
    """Texts, one a line."""
    lines = [line.strip() for line in texts.splitlines() if line.strip()]
    if not lines:
        raise ValueError("there are no texts to compare with: write one per line")
    return lines


def _thumbnails(images: Tensor) -> list[Image.Image]:
    """Images for a picture, with no side longer than 192 pixels."""
    thumbnails: list[Image.Image] = []
    for image in images:
        thumbnails.append(to_picture(image))
        thumbnails[-1].thumbnail((192, 192))
    return thumbnails


class WeightedCLIPDifference(Node):
    """Shows what a LoRA or training has changed in a text encoder: how far each token of a prompt moves between two
    CLIPs. Weights in the prompt are read and not applied.
    """

    title = "CLIP Difference"
    aliases = "compare clip, lora, trained text encoder, finetune, debug"
    CATEGORY = f"{CATEGORY}/look"
    EXPERIMENTAL = True
    outputs = (
        Out("IMAGE", "chart", "For each text encoder the change of each token's row, in length and in direction."),
        Out(
            "STRING",
            "report",
            "The relative change of each token's row, the largest first, of the padding and of the pooled vector; and "
            "every problem.",
        ),
    )
    FUNCTION = "compare"
    OUTPUT_NODE = True
    required = {
        "clip": make_input(EITHER_CLIP, "The original text encoder."),
        "clip_changed": make_input(
            EITHER_CLIP,
            "The changed one: with a LoRA, or trained. It must be of the same family and have the same clip "
            "skip, or different layers would be compared.",
        ),
        **inputs("text", "syntax"),
    }

    @staticmethod
    def options(syntax: str) -> EncodeOptions:
        """Options for reading the text; its weights are not applied."""
        return EncodeOptions(syntax=syntax, scheme="unweighted")

    def compare(self, clip: EitherClip, clip_changed: EitherClip, text: str, syntax: str) -> dict[str, Any]:
        """Encode the text by both and compare the rows."""
        from ..web.difference import difference, difference_report, draw_differences

        pair = encode_by_both(clip, clip_changed, text, self.options(syntax))
        differences = [difference(name, *prompts) for name, prompts in pair.prompts.items()]
        reads = merged_reads(tower.read for tower in differences)
        lines = [difference_report(differences), *(issue.line for parsed in reads for issue in parsed.issues)]
        lines += [f"not compared: {', '.join(pair.left_to_host)}"] if pair.left_to_host else []
        picture = draw_differences(differences)
        return with_preview(node_result((to_image(picture), "\n".join(lines)), reads), picture)
