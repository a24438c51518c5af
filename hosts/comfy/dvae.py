"""A discrete VAE as a model that ComfyUI can manage: memory is the host's, computation is ours.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...dalle.dvae import DVAE, Check
from ...dalle.files import load_dvae
from ...dalle.pixels import cropped
from ...dalle.tokens import ImageTokens
from .native import Hosted, managed, working


def load_hosted_dvae(path: str, *, dtype: torch.dtype, device: str) -> Hosted[DVAE]:
    """Read a discrete VAE and let the host manage its memory.

    Args:
        path: A safetensors file.
        dtype: Type of the weights and of the computation.
        device: ``auto`` for the host's choice of device for VAEs, or ``cpu``.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    dvae = load_dvae(path, dtype=dtype)
    return Hosted(dvae, managed(dvae, device, "vae"))


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
    total, done = hosted.model.num_parts(*shape), 0
    show, check_interrupt = working(hosted.patcher, total)

    def check() -> None:
        nonlocal done
        check_interrupt()
        show(done)
        done += 1

    result = work(check)
    show(total)
    return result
