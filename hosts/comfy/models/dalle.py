"""DALL·E and its discrete VAE as models that ComfyUI manages.

Memory, progress bar and interrupts are the host's, computation is ours.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isqrt
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch
from torch import Tensor

from ....studio.dalle.dvae import DVAE, Check, cropped
from ....studio.dalle.full_model import DALLE
from ....studio.dalle.sampling import MEMORY_BUDGET, SampleOptions, bytes_per_image
from ....studio.dalle.tokens import ImageTokens
from .models import Hosted, Role, managed, working

if TYPE_CHECKING:
    from PIL import Image

Network = TypeVar("Network", DVAE, DALLE)


def load_managed(
    load: Callable[..., Network], role: Role, path: str, *, dtype: torch.dtype, device: str
) -> Hosted[Network]:
    """Read a DALL·E, by `load_dalle`, or a discrete VAE, by `load_dvae`, and let the host manage its memory.

    Args:
        load: Function that reads it.
        role: What the host takes it for, as in `managed`.
        path: A safetensors file.
        dtype: Type of the weights and of the computation.
        device: ``auto`` for the host's choice of device for models of this role, or ``cpu``.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    model = load(path, dtype=dtype)
    return Hosted(model, managed(model, device, role))


def encode_tokens(hosted: Hosted[DVAE], images: Tensor) -> tuple[ImageTokens, Tensor]:
    """Tokens of a host's IMAGE, with the host's progress bar; stops when the host interrupts.

    Args:
        hosted: The model, loaded into memory by the host.
        images: ``[b, h, w, channels]``, float, 0..1. Their centre is encoded, with sides that are multiples of a
            token's.

    Returns:
        The tokens; and the encoded part, ``[b, 3, rows * f, columns * f]``.

    Raises:
        ValueError: If there are no images, or a side is shorter than a token.
    """
    if not len(images):
        raise ValueError("there are no images to encode: the batch is empty")
    config = hosted.model.config
    f = config.downsampling
    pixels = cropped(images[..., :3].movedim(-1, 1).expand(-1, 3, -1, -1), f)
    shape = (len(pixels), pixels.shape[-2] // f, pixels.shape[-1] // f)
    ids = _in_host(hosted, shape, lambda check: hosted.model.tokens(pixels, check))
    return ImageTokens(ids.cpu(), f, config.vocab_size), pixels


def decode_tokens(hosted: Hosted[DVAE], tokens: ImageTokens) -> Tensor:
    """A host's IMAGE from tokens, ``[b, h, w, 3]``, float32, on the CPU; otherwise as `encode_tokens`.

    Raises:
        ValueError: If the tokens belong to another dVAE.
    """
    tokens.check_fits(hosted.model.config)
    images = _in_host(hosted, tuple(tokens.ids.shape), lambda check: hosted.model.images(tokens.ids, check))
    return images.float().movedim(1, -1).contiguous()


def _in_host(hosted: Hosted[DVAE], shape: tuple[int, ...], work: Callable[[Check], Tensor]) -> Tensor:
    """Do some work with the host's memory, progress bar and interrupts; ``shape``: images, rows and columns."""
    total, num_done = hosted.model.num_parts(*shape), 0
    show, check_interrupt = working(hosted.patcher, total)

    def check() -> None:
        nonlocal num_done
        check_interrupt()
        show(num_done)
        num_done += 1

    result = work(check)
    show(total)
    return result


PREVIEW_SECONDS = 1.0
"""Minimum time between two previews of the images being drawn."""
PREVIEW_SHARE = 0.1
"""Maximum share of the time for previews; if decoding is slow, there are fewer."""
MAX_PREVIEWED = 16
"""Maximum number of images in a preview."""
PREVIEW_SIZE = 512
"""Longer side of a preview, in pixels; ComfyUI's default."""


class Prefix(NamedTuple):
    """Beginning of images."""

    image: Tensor
    """``[h, w, channels]``, float, 0..1, of the size of the model's images."""
    rows: int
    """Rows of tokens to take from the top."""


def sample_images(
    hosted: Hosted[DALLE],
    caption: str,
    seeds: Sequence[int],
    options: SampleOptions,
    prefix: Prefix | None = None,
) -> tuple[ImageTokens, Tensor]:
    """Draw images of a caption, with the host's progress bar and previews; stops when the host interrupts.

    Args:
        hosted: The model, loaded into memory by the host.
        caption: Caption of the images.
        seeds: One seed per image.
        options: Sampling options.
        prefix: Image whose top all of them begin with.

    Returns:
        The tokens; and a host's IMAGE from them, ``[n, h, w, 3]``, float32, on the CPU.

    Raises:
        ValueError: If the caption has too many pieces, or the prefix image does not fit.
    """
    dalle = hosted.model
    dalle.text(caption)  # refuse invalid captions before memory is made available for the model
    if prefix is not None:
        _check_fits(dalle, prefix)
    memory = min(MEMORY_BUDGET, len(seeds) * bytes_per_image(dalle.prior))
    length = dalle.prior.config.num_image_tokens
    # completely: the host loads parts of a model only by its own kinds of layers
    update, check = working(hosted.patcher, len(seeds) * length, memory_required=memory, force_full_load=True)
    prefix_tokens = None
    if prefix is not None:
        pixels = prefix.image[..., :3].movedim(-1, 0).expand(3, -1, -1)
        prefix_tokens = dalle.prefix(pixels, prefix.rows, check)
    previews = _Previews(dalle, PREVIEW_SECONDS)

    def show(count: int, picture: Image.Image | None) -> None:
        update(count, preview=None if picture is None else ("JPEG", picture, PREVIEW_SIZE))

    def on_token(finished: int, tokens: Tensor) -> None:
        check()
        show(finished * length + tokens.numel(), previews(tokens))

    ids = dalle.tokens(caption, seeds, options, prefix=prefix_tokens, on_token=on_token)
    images = dalle.images(ids, check).float()
    show(len(seeds) * length, _side_by_side(images[:MAX_PREVIEWED], dalle.size[0]))  # it stays on the node
    config = dalle.dvae.config
    return ImageTokens(ids, config.downsampling, config.vocab_size), images.movedim(1, -1).contiguous()


def _check_fits(dalle: DALLE, prefix: Prefix) -> None:
    """Refuse an unsuitable prefix, in words for users of a graph of nodes."""
    max_rows = dalle.prior.config.rows
    if not 1 <= prefix.rows <= max_rows:
        raise ValueError(
            f"prefix_rows must be from 1 to {max_rows}, the rows of tokens that this model's images have; got "
            f"{prefix.rows}"
        )
    (height, width), (given_height, given_width) = dalle.size, prefix.image.shape[:2]
    if (given_height, given_width) != (height, width):
        raise ValueError(
            f"prefix_image has {given_width} x {given_height} pixels; this model draws {width} x {height}. Put the "
            f"node Upscale Image (ImageScale) before it, with width {width} and height {height}"
        )


class _Previews:
    """Occasional previews of images being drawn, a row of tokens at a time."""

    def __init__(self, dalle: DALLE, seconds: float) -> None:
        self._dalle, self._seconds, self._due = dalle, seconds, 0.0

    def __call__(self, tokens: Tensor) -> Image.Image | None:
        """A picture of the rows so far; None within the first row or soon after the last picture.

        ``tokens`` are the first ones of each image, ``[n, k]``.
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
    """Images in a square, as far as they are drawn: the tops ``[n, 3, h, w]``, 0..1, of images ``height`` pixels high.

    Missing parts are grey.
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
