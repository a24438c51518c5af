"""DALL·E as something ComfyUI can manage: its memory, progress bar and interrupts are the host's, its arithmetic ours.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...dalle.dalle import DALLE, load_dalle
from ...dalle.sampling import MEMORY_BUDGET, SampleOptions, bytes_per_image
from ...dalle.tokens import ImageTokens
from .contract import host
from .dvae import HostedDVAE
from .native import managed
from .types import ModelPatcher

if TYPE_CHECKING:
    from PIL import Image

PREVIEW_SECONDS = 1.0
"""Time between two previews of the images that are being drawn."""
PREVIEW_SHARE = 0.1
"""Part of the time that previews may take; where decoding is slow, there are fewer."""
MAX_PREVIEWED = 16
"""Images that a preview shows."""
PREVIEW_SIZE = 512
"""Pixels along the longer side of a preview, as ComfyUI's own by default."""


class Prefix(NamedTuple):
    """What images begin with."""

    image: Tensor
    """``[h, w, channels]``, float, 0..1, of the size of the model's images."""
    rows: int
    """Rows of tokens, from the top."""


@dataclass(frozen=True)
class HostedDalle:
    """What a WEIGHTED_CLIP_DALLE link carries."""

    dalle: DALLE
    """The model."""
    patcher: ModelPatcher
    """The host's ModelPatcher round it."""

    @property
    def dvae(self) -> HostedDVAE:
        """Its discrete VAE, which shares its memory."""
        return HostedDVAE(self.dalle.dvae, self.patcher)


def load_hosted_dalle(path: str, *, dtype: torch.dtype, device: str) -> HostedDalle:
    """Read a DALL·E and hand its memory to the host.

    Args:
        path: A safetensors file.
        dtype: Type of the weights and of the arithmetic.
        device: ``auto`` for the host's choice of device for diffusion models, or ``cpu``.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    dalle = load_dalle(path, dtype=dtype)
    return HostedDalle(dalle, managed(dalle, device, "diffusion_model"))


def sample_images(
    hosted: HostedDalle,
    caption: str,
    seeds: Sequence[int],
    options: SampleOptions,
    prefix: Prefix | None = None,
) -> tuple[ImageTokens, Tensor]:
    """Draw images of a caption, with the host's progress bar and previews; ends when the host interrupts.

    Args:
        hosted: The model; its memory is asked of the host.
        caption: What the images shall show.
        seeds: One for each image.
        options: How tokens are drawn.
        prefix: An image whose top all of them begin with.

    Returns:
        The tokens; and a host's IMAGE of them, ``[n, h, w, 3]``, float32, on the CPU.

    Raises:
        ValueError: If the caption has too many pieces, or the image to begin with does not fit.
    """
    model_management = host("comfy.model_management")

    dalle, check = hosted.dalle, model_management.throw_exception_if_processing_interrupted
    dalle.text(caption)  # what cannot be drawn is refused before room is made for the model
    if prefix is not None:
        _check_fits(dalle, prefix)
    memory = min(MEMORY_BUDGET, len(seeds) * bytes_per_image(dalle.prior))
    # whole: where the host loads a part of a model, it does so by layers of its own, which these are not
    model_management.load_models_gpu([hosted.patcher], memory_required=memory, force_full_load=True)
    given = None
    if prefix is not None:
        pixels = prefix.image[..., :3].movedim(-1, 0).expand(3, -1, -1)
        given = dalle.prefix(pixels, prefix.rows, check)
    length = dalle.prior.config.num_image_tokens
    bar = host("comfy.utils").ProgressBar(len(seeds) * length)
    previews = _Previews(dalle, PREVIEW_SECONDS)

    def show(count: int, picture: Image.Image | None) -> None:
        bar.update_absolute(count, preview=None if picture is None else ("JPEG", picture, PREVIEW_SIZE))

    def on_token(finished: int, tokens: Tensor) -> None:
        check()
        show(finished * length + tokens.numel(), previews(tokens))

    ids = dalle.tokens(caption, seeds, options, prefix=given, on_token=on_token)
    images = dalle.images(ids, check).float()
    show(len(seeds) * length, _side_by_side(images[:MAX_PREVIEWED], dalle.size[0]))  # it stays on the node
    config = dalle.dvae.config
    return ImageTokens(ids, config.downsampling, config.vocab_size), images.movedim(1, -1).contiguous()


def _check_fits(dalle: DALLE, prefix: Prefix) -> None:
    """Refuse what cannot be an image's top, in words for people at a graph of nodes."""
    most = dalle.prior.config.rows
    if not 1 <= prefix.rows <= most:
        raise ValueError(
            f"prefix_rows must be from 1 to {most}, the rows of tokens that this model's images have; got {prefix.rows}"
        )
    (height, width), (given_height, given_width) = dalle.size, prefix.image.shape[:2]
    if (given_height, given_width) != (height, width):
        raise ValueError(
            f"prefix_image has {given_width} x {given_height} pixels; this model draws {width} x {height}. Put the "
            f"node Upscale Image (ImageScale) before it, with width {width} and height {height}"
        )


class _Previews:
    """Pictures of images that are being drawn, a row of tokens after the other, from time to time."""

    def __init__(self, dalle: DALLE, seconds: float) -> None:
        self._dalle, self._seconds, self._due = dalle, seconds, 0.0

    def __call__(self, tokens: Tensor) -> Image.Image | None:
        """A picture of the rows that are there; None where a row has just begun or the last picture is recent.

        Args:
            tokens: ``[n, k]``.
        """
        columns = self._dalle.prior.config.columns
        start = monotonic()
        if tokens.shape[1] % columns or start < self._due:
            return None
        images = self._dalle.images(tokens[:MAX_PREVIEWED].unflatten(1, (-1, columns)))
        picture = _side_by_side(images.float().cpu(), self._dalle.size[0])
        end = monotonic()
        self._due = end + max(self._seconds, (end - start) / PREVIEW_SHARE)
        return picture


def _side_by_side(images: Tensor, height: int) -> Image.Image:
    """Images in a square, as far as they are drawn.

    Args:
        images: ``[n, 3, h, w]``, 0..1: the top of each.
        height: Of the whole ones, in pixels; what is missing is grey.
    """
    from PIL import Image

    count, _, top, width = images.shape
    across = isqrt(count - 1) + 1
    down = ceil(count / across)
    cells = torch.full((down * across, 3, height, width), 0.5)
    cells[:count, :, :top] = images
    # [down, across, 3, height, width] -> [down, height, across, width, 3]
    pixels = cells.unflatten(0, (down, across)).permute(0, 3, 1, 4, 2).reshape(down * height, across * width, 3)
    return Image.fromarray(pixels.mul(255).round().byte().numpy())
