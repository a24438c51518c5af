"""The discrete VAE for its users: images to tokens and tokens to images, in bounded memory.

Notation: b images, h and w pixels along the sides, f pixels along each side of a token, K token values.

>>> dvae = DVAE(DVAEConfig("small", vocab_size=16, hidden_dim=8))
>>> tokens = dvae.tokens(torch.rand(2, 3, 48, 32))
>>> tuple(tokens.shape), tuple(dvae.images(tokens).shape)
((2, 12, 8), (2, 3, 48, 32))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import PUBLISHED, DVAEConfig
from .layers import GROUPS, DVAEDecoder, DVAEEncoder, SmallDecoder, SmallEncoder

MAX_PIXELS = 512 * 512
"""Pixels the published encoder and decoder process at once: some 2 GiB in float32. Narrower models process more."""
_CORE = 384  # pixels of a tile without its halo

Check = Callable[[], None]


class DVAE(nn.Module):
    """A discrete VAE: an encoder and a decoder."""

    def __init__(self, config: DVAEConfig = PUBLISHED) -> None:
        super().__init__()
        self.config = config
        is_small = config.architecture == "small"
        self.encoder = SmallEncoder(config) if is_small else DVAEEncoder(config)
        self.decoder = SmallDecoder(config) if is_small else DVAEDecoder(config)

    @property
    def halo(self) -> int:
        """Receptive field of encoder and decoder: tokens on each side that affect a token."""
        config = self.config
        if config.architecture == "small":
            return 2 * config.num_blocks + 1  # two convolutions a block; halving ones reach into the next token
        reach = 3 + 3 * config.num_blocks * (2**GROUPS - 1)  # pixels: the first convolution, three in each block
        return -(-reach // config.downsampling)

    @torch.no_grad()
    def tokens(self, images: Tensor, check: Check | None = None) -> Tensor:
        """Tokens of images: at each position the likeliest one, without noise.

        Large images are computed in overlapping tiles, each with everything that affects it.

        Args:
            images: ``[b, 3, h, w]``, float in 0..1, on any device; h and w multiples of f. Values outside are cut off.
            check: Called before each part. An exception it raises ends the work, e.g. when a user cancels.

        Returns:
            ``[b, h / f, w / f]``, int64, 0 to K - 1, on the images' device.

        Raises:
            ValueError: If the images have another shape or type.
        """
        self._check_images(images)
        f = self.config.downsampling

        def run(part: Tensor) -> Tensor:
            pixels = map_pixels(part.to(self._weight).clamp(0, 1))
            return self.encoder(pixels).argmax(1).to(images.device)

        return self._in_parts(images, run, f, 1, check)

    @torch.no_grad()
    def images(self, tokens: Tensor, check: Check | None = None) -> Tensor:
        """Decode tokens to images.

        Args:
            tokens: ``[b, h / f, w / f]``, whole numbers from 0 to K - 1, on any device.
            check: As in `tokens`.

        Returns:
            ``[b, 3, h, w]``, in 0..1, in the dtype of the weights, on the device of the tokens.

        Raises:
            ValueError: If the tokens have another shape or type, or one is out of range.
        """
        self._check_tokens(tokens)
        f, size = self.config.downsampling, self.config.vocab_size

        def run(part: Tensor) -> Tensor:
            one_hot = functional.one_hot(part.to(self._weight.device).long(), size)
            outputs = self.decoder(one_hot.permute(0, 3, 1, 2).to(self._weight))
            return unmap_pixels(torch.sigmoid(outputs[:, :3])).to(tokens.device)

        return self._in_parts(tokens, run, 1, f, check)

    def num_parts(self, count: int, rows: int, columns: int) -> int:
        """Number of parts images are processed in, i.e. how often ``check`` is called.

        Args:
            count: Images.
            rows: Tokens from top to bottom.
            columns: Tokens from left to right.
        """
        together, core = self._division(rows, columns)
        return -(-count // together) * -(-rows // core) * -(-columns // core)

    def _division(self, rows: int, columns: int) -> tuple[int, int]:
        """Number of images computed at once, and the most tokens along each side of a tile of them."""
        f, most_pixels = self.config.downsampling, MAX_PIXELS * max(1, PUBLISHED.hidden_dim // self.config.hidden_dim)
        together = most_pixels // (rows * columns * f**2)
        return (together, max(rows, columns)) if together else (1, max(1, _CORE // f))

    @property
    def _weight(self) -> Tensor:
        return next(self.parameters())

    def _in_parts(
        self,
        images_or_tokens: Tensor,
        run: Callable[[Tensor], Tensor],
        unit: int,
        result_unit: int,
        check: Check | None,
    ) -> Tensor:
        """Process images, or tokens, part by part, or a single one tile by tile.

        They are ``[b, ..., rows * unit, columns * unit]``; results have ``result_unit`` instead of ``unit``.
        """
        halo, rows, columns = self.halo, images_or_tokens.shape[-2] // unit, images_or_tokens.shape[-1] // unit
        together, core = self._division(rows, columns)
        parts: list[Tensor] = []
        for batch in images_or_tokens.split(together):
            bands: list[Tensor] = []
            for top, bottom in _spans(rows, core):
                tiles: list[Tensor] = []
                for left, right in _spans(columns, core):
                    if check is not None:
                        check()
                    first, start = max(0, top - halo), max(0, left - halo)
                    tile = batch[..., first * unit : (bottom + halo) * unit, start * unit : (right + halo) * unit]
                    down = slice((top - first) * result_unit, (bottom - first) * result_unit)
                    along = slice((left - start) * result_unit, (right - start) * result_unit)
                    tiles.append(run(tile)[..., down, along])
                bands.append(torch.cat(tiles, -1))
            parts.append(torch.cat(bands, -2))
        return torch.cat(parts)

    def _check_images(self, images: Tensor) -> None:
        f = self.config.downsampling
        is_right = images.ndim == 4 and images.shape[1] == 3 and 0 not in images.shape and images.is_floating_point()
        if not is_right:
            raise ValueError(f"images must be float [images, 3, height, width] in 0..1, got {_form(images)}")
        if images.shape[2] % f or images.shape[3] % f:
            raise ValueError(
                f"images of {images.shape[3]} x {images.shape[2]} pixels: both sides must be multiples of {f}"
            )

    def _check_tokens(self, tokens: Tensor) -> None:
        size = self.config.vocab_size
        is_whole = not (tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool)
        if tokens.ndim != 3 or 0 in tokens.shape or not is_whole:
            raise ValueError(f"tokens must be whole numbers [images, rows, columns], got {_form(tokens)}")
        wrong = tokens[(tokens < 0) | (tokens >= size)]
        if wrong.numel():
            raise ValueError(f"token {int(wrong[0])}: this dVAE has tokens from 0 to {size - 1}")


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _spans(count: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Divide a length into parts of about equal size.

    >>> list(_spans(10, 4))
    [(0, 3), (3, 6), (6, 10)]
    """
    number = -(-count // max_size)
    for index in range(number):
        yield count * index // number, count * (index + 1) // number


EPS = 0.1
"""ε: the likelihood is defined between 0 and 1, both excluded, so pixels are first scaled into [ε, 1 - ε].

Source: A. Ramesh et al., 2021, equation 3; ``map_pixels`` and ``unmap_pixels`` of ``dall-e`` 0.1, bit-identical.
"""


def map_pixels(images: Tensor) -> Tensor:
    """Scale pixels from [0, 1] to [ε, 1 - ε].

    >>> map_pixels(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.1000, 0.5000, 0.9000])
    """
    return (1 - 2 * EPS) * images + EPS


def unmap_pixels(mapped: Tensor) -> Tensor:
    """Scale pixels back to [0, 1] and clamp them."""
    return torch.clamp((mapped - EPS) / (1 - 2 * EPS), 0, 1)


def cropped(images: Tensor, multiple: int) -> Tensor:
    """Crop the centre of images to the largest multiple that fits on each side, as ComfyUI does for a VAE.

    Args:
        images: ``[..., h, w]``.
        multiple: Pixels along each side of a token.

    Returns:
        A view of them, or the images themselves if they need no cropping.

    Raises:
        ValueError: If a side is shorter than one token.

    >>> tuple(cropped(torch.zeros(1, 3, 21, 16), 8).shape)
    (1, 3, 16, 16)
    """
    height, width = images.shape[-2:]
    if min(height, width) < multiple:
        raise ValueError(f"images of {width} x {height} pixels: no side may be shorter than a token, {multiple} pixels")
    for dim, size in ((-2, height), (-1, width)):
        images = images.narrow(dim, size % multiple // 2, size - size % multiple)
    return images
