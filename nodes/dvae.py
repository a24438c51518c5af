"""Nodes of DALL·E's discrete VAE: an image as tokens, and an image from tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dalle.dvae import DVAE
from ..dalle.tokens import ImageTokens, read_swaps, read_tokens, swapped, write_tokens
from ..hosts.comfy.dalle import decode_tokens, encode_tokens, load_hosted_dvae
from ..hosts.comfy.models import Hosted
from ..weighting.view import counted
from . import common
from .common import Node, Out
from .load import Loader
from .results import shown_result, to_image, to_picture, with_preview

DVAE_TYPE = "WEIGHTED_CLIP_DVAE"
"""Type name of a link that carries a discrete VAE."""
TOKENS_TYPE = "WEIGHTED_CLIP_DVAE_TOKENS"
"""Type name of a link that carries the tokens of images."""
MAX_GRIDS = 16
"""Maximum number of images in a batch whose grids are drawn."""

DVAE_INPUT = common.make_input(DVAE_TYPE, "A discrete VAE, from Load dVAE.")


class WeightedCLIPLoadDVAE(Loader):
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
    dtype_tooltip = "Type of the weights and the arithmetic. fp32: as OpenAI's; in others some tokens differ."
    device_tooltip = "auto: where the host runs VAEs."

    def load(self, file: str, dtype: str, device: str) -> tuple[Hosted[DVAE]]:
        """Read the file."""
        return (load_hosted_dvae(**self.checked(file, dtype, device)),)


class WeightedCLIPImageToTokens(Node):
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

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "dvae": DVAE_INPUT,
                "image": common.make_input(
                    "IMAGE",
                    "The images. Sides that are not a multiple of a token's (8 pixels in DALL-E) are cropped at "
                    "both ends, as VAE Encode does; the report says so.",
                ),
            }
        }

    def encode(self, dvae: Hosted[DVAE], image: Tensor) -> dict[str, Any]:
        """Encode and draw."""
        from ..web.pictures import draw_token_grid

        tokens, pixels = encode_tokens(dvae, image)
        count, rows, columns = tokens.ids.shape
        grids = [
            draw_token_grid(to_picture(one.movedim(0, -1)), ids.tolist())
            for one, ids in zip(pixels[:MAX_GRIDS], tokens.ids[:MAX_GRIDS], strict=True)
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


class WeightedCLIPTokensToImage(Node):
    """Turns tokens into images: those from Image to Tokens, or numbers that you type. Tokens can be swapped first."""

    title = "Tokens to Image"
    aliases = "dvae decode, image tokens, swap tokens, vq decode, dall-e"
    outputs = (
        Out("IMAGE", "image", "The images."),
        Out(TOKENS_TYPE, "tokens", "The tokens they were made from, including the swapped ones."),
        Out("STRING", "report", "What was swapped, with the numbers that were there before."),
    )
    FUNCTION = "decode"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "dvae": DVAE_INPUT,
                "swap": common.make_input(
                    "STRING",
                    "Tokens to replace, one per line: row, column = number, such as 3, 5 = 12. "
                    "Several rows or columns: 2-4, 7-9 = 12. Rows and columns are counted from 1, as in the grid. "
                    "In a batch, this applies to every image.",
                    {"multiline": True, "default": ""},
                ),
            },
            "optional": {
                "tokens": common.make_input(TOKENS_TYPE, "The tokens, from Image to Tokens."),
                "numbers": common.make_input(
                    "STRING",
                    "Tokens as text, instead of the input tokens: one row of the grid per line, with an empty line "
                    "between images, as Image to Tokens gives them.",
                    {"multiline": True, "default": ""},
                ),
            },
        }

    def decode(
        self, dvae: Hosted[DVAE], swap: str, tokens: ImageTokens | None = None, numbers: str = ""
    ) -> dict[str, Any]:
        """Swap and decode."""
        config = dvae.model.config
        is_typed = bool(numbers.strip())
        if tokens is None and not is_typed:
            raise ValueError("there are no tokens: connect those of Image to Tokens, or type some into numbers")
        if tokens is not None and is_typed:
            raise ValueError(
                "tokens are connected, and typed into numbers as well: disconnect the link or empty numbers"
            )
        if tokens is None:
            tokens = ImageTokens(read_tokens(numbers, config.vocab_size), config.downsampling, config.vocab_size)
        tokens.check_fits(config)
        _, rows, columns = tokens.ids.shape
        ids, notes = swapped(tokens.ids, read_swaps(swap, rows, columns, config.vocab_size))
        changed = ImageTokens(ids, config.downsampling, config.vocab_size)
        images = decode_tokens(dvae, changed)
        return shown_result((images, changed, "\n".join(notes) or "nothing swapped"), notes)
