"""Nodes of DALL·E: images of a caption, token by token."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..dalle.dalle import DALLE
from ..dalle.dvae import DVAE
from ..dalle.pieces import piece_lines
from ..dalle.sampling import SampleOptions
from ..hosts.comfy.dalle import Prefix, load_hosted_dalle, sample_images
from ..hosts.comfy.models import Hosted
from ..weighting.view import counted
from . import common
from .common import Node, Out
from .dvae import DVAE_TYPE, TOKENS_TYPE
from .load import Loader
from .results import shown_result

DALLE_TYPE = "WEIGHTED_CLIP_DALLE"
"""Type name of a link that carries a DALL·E."""
MAX_SEED = 2**64 - 1


class WeightedCLIPLoadDalle(Loader):
    """Loads a DALL·E, a model that draws an image of a caption token by token: the pieces of its captions, the
    transformer that writes tokens, and the dVAE that makes an image of them, all in one file.
    """

    title = "Load DALL·E"
    aliases = "dall-e, dalle, autoregressive, text to image, prior, dvae"
    outputs = (
        Out(DALLE_TYPE, "dalle", "The model, for DALL·E Sample."),
        Out(DVAE_TYPE, "dvae", "Its dVAE alone, for Image to Tokens and Tokens to Image."),
    )
    folders = ("checkpoints",)
    suffix = ".safetensors"
    file_tooltip = (
        "A .safetensors file of a DALL·E in the checkpoints folder, as the command python run.py dalle train writes it."
    )
    dtype_tooltip = "Type of the weights and the arithmetic. In others than fp32 some tokens differ."
    device_tooltip = "auto: where the host runs diffusion models."

    def load(self, file: str, dtype: str, device: str) -> tuple[Hosted[DALLE], Hosted[DVAE]]:
        """Read the file."""
        hosted = load_hosted_dalle(**self.checked(file, dtype, device))
        return hosted, Hosted(hosted.model.dvae, hosted.patcher)


class WeightedCLIPDalleSample(Node):
    """Draws images of a caption, one token after the other from the top left, and shows them as they grow. Rerank by
    CLIP then finds the best of many.
    """

    title = "DALL·E Sample"
    aliases = "dall-e, dalle, text to image, autoregressive, generate, sampler"
    outputs = (
        Out("IMAGE", "images", "The images, in the order of their seeds."),
        Out(TOKENS_TYPE, "tokens", "The tokens they are made of, for Tokens to Image."),
        Out("STRING", "report", "The seeds, how tokens were drawn, and the pieces the caption was split into."),
    )
    FUNCTION = "sample"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "dalle": common.make_input(DALLE_TYPE, "A DALL·E, from Load DALL·E."),
                "text": common.make_input(
                    "STRING",
                    "The caption. It has no weights: brackets and numbers are text like any other. "
                    f"{common.COMMENTS_AND_CHOICES}",
                    {"multiline": True, "dynamicPrompts": True},
                ),
                "count": common.make_input(
                    "INT", "How many images to draw of it.", {"default": 4, "min": 1, "max": 4096}
                ),
                "seed": common.make_input(
                    "INT",
                    "The seed of the first image; each one after it has the next number. The same seed draws the "
                    "same image, "
                    "however many are drawn with it.",
                    {"default": 0, "min": 0, "max": MAX_SEED, "control_after_generate": True},
                ),
                "temperature": common.make_input(
                    "FLOAT",
                    "1: tokens are as probable as the model says. Below: likely ones still more so. 0: always the "
                    "likeliest.",
                    {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.05},
                ),
                "top_k": common.make_input(
                    "INT",
                    "Only this many of the likeliest tokens can be drawn each time. 0: all of them.",
                    {"default": 0, "min": 0, "max": 65536},
                ),
                "top_p": common.make_input(
                    "FLOAT",
                    "Only the likeliest tokens can be drawn that together are this probable. 1: all of them.",
                    {"default": 1.0, "min": 0.01, "max": 1.0, "step": 0.01},
                ),
            },
            "optional": {
                "prefix_image": common.make_input(
                    "IMAGE",
                    "An image of the size that the model draws; every image begins with its top. Of a batch, the "
                    "first.",
                ),
                "prefix_rows": common.make_input(
                    "INT",
                    "With prefix_image: how many rows of its tokens are kept, from the top. The model draws the rest.",
                    {"default": 4, "min": 1, "max": 1024},
                ),
            },
        }

    def sample(
        self,
        dalle: Hosted[DALLE],
        text: str,
        count: int,
        seed: int,
        temperature: float,
        top_k: int,
        top_p: float,
        prefix_image: Tensor | None = None,
        prefix_rows: int = 4,
    ) -> dict[str, Any]:
        """Draw images, and report the settings."""
        options = SampleOptions(temperature, top_k, top_p)
        seeds = [(seed + index) % (MAX_SEED + 1) for index in range(count)]
        prefix, notes = None, list[str]()
        if prefix_image is not None:
            if not len(prefix_image):
                raise ValueError("there is no image to begin with: the batch of prefix_image is empty")
            prefix = Prefix(prefix_image[0], prefix_rows)
            if len(prefix_image) > 1:
                notes.append(f"of the {len(prefix_image)} images of prefix_image only the first is used")
        if temperature == 0 and count > 1:
            notes.append("at temperature 0 nothing is left to chance: all images are the same")
        tokens, images = sample_images(dalle, text, seeds, options, prefix)
        config, (height, width) = dalle.model.prior.config, dalle.model.size
        lines = piece_lines(dalle.model.pieces, text)
        by = f"seed {seeds[0]}" if count == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
        report = [
            f"{counted(count, 'image')} of {width} x {height} pixels, drawn by {by}",
            f"temperature {temperature:g}, top_k {top_k}, top_p {top_p:g}",
            *([f"{prefix_rows} of {config.rows} rows of tokens are those of prefix_image"] if prefix else []),
            *notes,
            f"caption: {counted(len(lines), 'piece')}, of at most {config.text_length}",
            *lines,
        ]
        return shown_result((images, tokens, "\n".join(report)), notes)
