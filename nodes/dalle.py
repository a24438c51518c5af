"""Nodes of DALL·E: an image as tokens, an image from tokens, and images of a caption, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..hosts.comfy.models.dalle import Prefix, decode_tokens, encode_tokens, load_managed, sample_images
from ..hosts.comfy.models.models import Hosted
from ..studio.dalle.dvae import DVAE
from ..studio.dalle.full_model import DALLE, load_dalle
from ..studio.dalle.pieces import piece_lines
from ..studio.dalle.sampling import SampleOptions
from ..studio.dalle.tokens import ImageTokens, read_swaps, read_tokens, swapped, write_tokens
from ..studio.dalle.weight_files import load_dvae
from ..weighting.reading.view import counted
from ..weighting.text.problems import Problem, refused
from .base.node import CATEGORY, COMMENTS_AND_CHOICES, Loader, Node, Out, loading_inputs, make_input, number
from .base.node_state import NodeState
from .base.results import shown_result, to_image, to_picture, with_preview

DVAE_TYPE = "WEIGHTED_CLIP_DVAE"
"""Type name of a link that carries a discrete VAE."""
TOKENS_TYPE = "WEIGHTED_CLIP_DVAE_TOKENS"
"""Type name of a link that carries the tokens of images."""
MAX_GRIDS = 16
"""Maximum number of images in a batch whose grids are drawn."""

DVAE_INPUT = make_input(DVAE_TYPE, "A discrete VAE, from Load dVAE.")


class DalleNode(Node):
    """Base of the nodes of DALL·E."""

    CATEGORY = f"{CATEGORY}/DALL·E"
    EXPERIMENTAL = True


class WeightedCLIPLoadDVAE(DalleNode, Loader):
    """Loads a discrete VAE (dVAE), as DALL-E uses: it turns an image into a grid of tokens (numbers from a fixed list)
    and such a grid into an image. The VAEs of Stable Diffusion and Flux are of another kind.
    """

    title = "Load dVAE"
    aliases = "dall-e, dvae, discrete vae, vq, codebook, image tokenizer"
    outputs = (Out(DVAE_TYPE, "dvae", "The model, for Image to Tokens and Tokens to Image."),)
    folders = ("vae",)
    file_tooltip = (
        "A .safetensors file of a dVAE in the vae folder. Convert OpenAI's encoder.pkl and decoder.pkl first: python "
        "run.py convert-dvae encoder.pkl decoder.pkl dall-e.safetensors"
    )
    required = loading_inputs(
        "Type of the weights and the arithmetic. fp32: as OpenAI's; in others some tokens differ.",
        "auto: where the host runs VAEs.",
    )

    def load(self, file: str, dtype: str, device: str) -> tuple[Hosted[DVAE]]:
        """Read the file."""
        return (load_managed(load_dvae, "vae", **self.checked(file, dtype, device)),)


class WeightedCLIPImageToTokens(DalleNode):
    """Turns images into grids of tokens, each the number of the pattern that a small square of the image resembles
    most, and draws the grid with its numbers over the image.
    """

    title = "Image to Tokens"
    aliases = "dvae encode, tokenize image, image tokens, vq encode, dall-e"
    outputs = (
        Out(TOKENS_TYPE, "tokens", "The tokens, for Tokens to Image."),
        Out(
            "IMAGE", "grid", "Each image with its grid, the numbers of its tokens, and rows and columns counted from 1."
        ),
        Out(
            "STRING",
            "numbers",
            "The tokens as text, one row of the grid per line: edit them and connect them to numbers of Tokens to "
            "Image.",
        ),
        Out("STRING", "report", "How many tokens there are, how many of them are different, and what was cut off."),
    )
    FUNCTION = "encode"
    OUTPUT_NODE = True
    required = {
        "dvae": DVAE_INPUT,
        "image": make_input(
            "IMAGE",
            "The images. Sides that are not a multiple of a token's (8 pixels in DALL-E) are cropped at "
            "both ends, as VAE Encode does; the report says so.",
        ),
    }

    def encode(self, dvae: Hosted[DVAE], image: Tensor) -> dict[str, Any]:
        """Encode and draw."""
        from ..web.pictures import draw_token_grid

        tokens, pixels = encode_tokens(dvae, image)
        count, rows, columns = tokens.ids.shape
        grids = [
            draw_token_grid(to_picture(picture.movedim(0, -1)), ids.tolist())
            for picture, ids in zip(pixels[:MAX_GRIDS], tokens.ids[:MAX_GRIDS], strict=True)
        ]
        issues: list[str] = []
        (_, height, width, _), (inner_height, inner_width) = image.shape, pixels.shape[-2:]
        if (height, width) != (inner_height, inner_width):
            issues.append(
                f"cut from {width} x {height} to {inner_width} x {inner_height} pixels, multiples of "
                f"{tokens.downsampling}, at both ends"
            )
        if count > MAX_GRIDS:
            issues.append(f"of {count} images the grids of the first {MAX_GRIDS} are drawn")
        each = f"{counted(count, 'image')}, each " if count > 1 else ""
        report = [
            f"{each}{rows} x {columns} tokens of {tokens.downsampling} x {tokens.downsampling} pixels",
            f"{counted(len(tokens.ids.unique()), 'different token')} of {tokens.vocab_size}",
            *issues,
        ]
        drawn = torch.cat([to_image(grid) for grid in grids])
        result = (tokens, drawn, write_tokens(tokens.ids), "\n".join(report))
        return with_preview(shown_result(result, issues), grids[0])


class WeightedCLIPTokensToImage(DalleNode):
    """Turns tokens into images: those from Image to Tokens, or numbers that you type. Tokens can be swapped first."""

    title = "Tokens to Image"
    aliases = "dvae decode, image tokens, swap tokens, vq decode, dall-e"
    outputs = (
        Out("IMAGE", "image", "The images."),
        Out(TOKENS_TYPE, "tokens", "The tokens they were made from, including the swapped ones."),
        Out("STRING", "report", "What was swapped, with the numbers that were there before."),
    )
    FUNCTION = "decode"
    required = {
        "dvae": DVAE_INPUT,
        "swap": make_input(
            "STRING",
            "Tokens to replace, one per line: row, column = number, such as 3, 5 = 12. "
            "Several rows or columns: 2-4, 7-9 = 12. Rows and columns are counted from 1, as in the grid. "
            "In a batch, this applies to every image.",
            multiline=True,
            default="",
        ),
    }
    optional = {
        "tokens": make_input(TOKENS_TYPE, "The tokens, from Image to Tokens."),
        "numbers": make_input(
            "STRING",
            "Tokens as text, instead of the input tokens: one row of the grid per line, with an empty line "
            "between images, as Image to Tokens gives them.",
            multiline=True,
            default="",
        ),
    }

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        if state.has("numbers"):
            is_connected = "tokens" in state.sources
            yield from refused("numbers", _check_origin, state.values["numbers"], is_connected=is_connected)

    def decode(
        self, dvae: Hosted[DVAE], swap: str, tokens: ImageTokens | None = None, numbers: str = ""
    ) -> dict[str, Any]:
        """Swap and decode."""
        config = dvae.model.config
        _check_origin(numbers, is_connected=tokens is not None)
        if tokens is None:
            tokens = ImageTokens(read_tokens(numbers, config.vocab_size), config.downsampling, config.vocab_size)
        tokens.check_fits(config)
        _, rows, columns = tokens.ids.shape
        ids, notes = swapped(tokens.ids, read_swaps(swap, rows, columns, config.vocab_size))
        changed = ImageTokens(ids, config.downsampling, config.vocab_size)
        images = decode_tokens(dvae, changed)
        return shown_result((images, changed, "\n".join(notes) or "nothing swapped"), notes)


def _check_origin(numbers: str, *, is_connected: bool) -> None:
    """Refuse tokens that are neither connected nor typed, or both."""
    is_typed = bool(numbers.strip())
    if not is_connected and not is_typed:
        raise ValueError("there are no tokens: connect those of Image to Tokens, or type some into numbers")
    if is_connected and is_typed:
        raise ValueError("tokens are connected, and typed into numbers as well: disconnect the link or empty numbers")


DALLE_TYPE = "WEIGHTED_CLIP_DALLE"
"""Type name of a link that carries a DALL·E."""
MAX_SEED = 2**64 - 1


class WeightedCLIPLoadDalle(DalleNode, Loader):
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
    required = loading_inputs(
        "Type of the weights and the arithmetic. In others than fp32 some tokens differ.",
        "auto: where the host runs diffusion models.",
    )

    def load(self, file: str, dtype: str, device: str) -> tuple[Hosted[DALLE], Hosted[DVAE]]:
        """Read the file."""
        hosted = load_managed(load_dalle, "diffusion_model", **self.checked(file, dtype, device))
        return hosted, Hosted(hosted.model.dvae, hosted.patcher)


class WeightedCLIPDalleSample(DalleNode):
    """Draws images of a caption, one token after the other from the top left, and shows them as they grow. Pick Best
    Images then finds the best of many.
    """

    title = "DALL·E Sample"
    aliases = "dall-e, dalle, text to image, autoregressive, generate, sampler"
    outputs = (
        Out("IMAGE", "images", "The images, in the order of their seeds."),
        Out(TOKENS_TYPE, "tokens", "The tokens they are made of, for Tokens to Image."),
        Out("STRING", "report", "The seeds, how tokens were drawn, and the pieces the caption was split into."),
    )
    FUNCTION = "sample"
    required = {
        "dalle": make_input(DALLE_TYPE, "A DALL·E, from Load DALL·E."),
        "text": make_input(
            "STRING",
            f"The caption. It has no weights: brackets and numbers are text like any other. {COMMENTS_AND_CHOICES}",
            multiline=True,
            dynamicPrompts=True,
        ),
        "count": make_input("INT", "How many images to draw of it.", **number(4, 1, 4096)),
        "seed": make_input(
            "INT",
            "The seed of the first image; each one after it has the next number. The same seed draws the "
            "same image, however many are drawn with it.",
            **number(0, 0, MAX_SEED),
            control_after_generate=True,
        ),
        "temperature": make_input(
            "FLOAT",
            "1: tokens are as probable as the model says. Below: likely ones still more so. 0: always the likeliest.",
            **number(1.0, 0.0, 10.0, 0.05),
        ),
        "top_k": make_input(
            "INT",
            "Only this many of the likeliest tokens can be drawn each time. 0: all of them.",
            **number(0, 0, 65536),
        ),
        "top_p": make_input(
            "FLOAT",
            "Only the likeliest tokens can be drawn that together are this probable. 1: all of them.",
            **number(1.0, 0.01, 1.0, 0.01),
        ),
    }
    optional = {
        "prefix_image": make_input(
            "IMAGE",
            "An image of the size that the model draws; every image begins with its top. Of a batch, the first.",
        ),
        "prefix_rows": make_input(
            "INT",
            "With prefix_image: how many rows of its tokens are kept, from the top. The model draws the rest.",
            **number(4, 1, 1024),
        ),
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
