"""A complete DALL·E: pieces of captions, the prior and the discrete VAE; and its file format.

A file is one safetensors file with the keys of `DALLE`: those of the two parts prefixed with ``prior.`` and ``dvae.``.
Sizes and merges are in its metadata.

>>> from .config import DVAEConfig
>>> prior = PriorConfig(
...     text_vocab_size=512, text_length=8, rows=2, columns=2, image_vocab_size=16,
...     hidden_dim=8, num_heads=2, num_layers=2, mlp_dim=16,
... )
>>> dalle = DALLE(Prior(prior), DVAE(DVAEConfig("small", vocab_size=16, hidden_dim=8)), Pieces([]))
>>> tuple(dalle.images(dalle.tokens("a red", [1, 2, 3])).shape)
(3, 3, 8, 8)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from ...encoder.quoting import quote
from ...encoder.tokenizer import read_merges
from .config import DVAEConfig, PriorConfig
from .dvae import DVAE, Check
from .pieces import Pieces, clip_pieces
from .prior import Prior
from .sampling import OnToken, SampleOptions, sample
from .weight_files import Format, read_sizes, sizes_text

CLIPS = "clip"
"""Metadata value for CLIP's own merges."""


class DALLE(nn.Module):
    """A text-to-image model."""

    def __init__(self, prior: Prior, dvae: DVAE, pieces: Pieces) -> None:
        """Put the parts together.

        Raises:
            ValueError: If they do not fit each other.
        """
        super().__init__()
        self.prior, self.dvae, self.pieces = prior, dvae, pieces
        if prior.config.image_vocab_size != dvae.config.vocab_size:
            raise ValueError(
                f"the prior knows {prior.config.image_vocab_size} image tokens, the dVAE {dvae.config.vocab_size}"
            )
        if prior.config.text_vocab_size < pieces.vocab_size:
            raise ValueError(
                f"the prior knows {prior.config.text_vocab_size} pieces of text, the merges make {pieces.vocab_size}"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images, in pixels."""
        f, config = self.dvae.config.downsampling, self.prior.config
        return config.rows * f, config.columns * f

    def text(self, caption: str) -> Tensor:
        """Encode a caption for the prior, ``[T]``, int64.

        Raises:
            ValueError: If it has more pieces than the prior has positions.
        """
        pieces, length = self.pieces(caption), self.prior.config.text_length
        if len(pieces) > length:
            raise ValueError(
                f"the caption {quote(caption)} has {len(pieces)} pieces: this model reads at most {length}"
            )
        return self.prior.padded([pieces])[0]

    def tokens(
        self,
        caption: str,
        seeds: Sequence[int],
        options: SampleOptions | None = None,
        *,
        prefix: Tensor | None = None,
        on_token: OnToken | None = None,
    ) -> Tensor:
        """Draw tokens of images, ``[n, rows, columns]``, int64; arguments as in `sample`."""
        return sample(self.prior, self.text(caption), seeds, options, prefix=prefix, on_token=on_token)

    def prefix(self, image: Tensor, rows: int, check: Check | None = None) -> Tensor:
        """Tokens of the top of an image that is to be completed.

        Args:
            image: ``[3, h, w]``, in 0..1, of the size of the model's images.
            rows: Number of rows of tokens to take, from the top.
            check: As in `DVAE.tokens`.

        Returns:
            ``[rows * columns]``, int64.

        Raises:
            ValueError: If the image has another size, or there are fewer rows.
        """
        height, width = self.size
        if image.shape != (3, height, width):
            raise ValueError(
                f"an image of {image.shape[-1]} x {image.shape[-2]} pixels cannot be completed: this model draws "
                f"{width} x {height}. Scale or crop it to that"
            )
        if not 0 <= rows <= self.prior.config.rows:
            raise ValueError(f"from 0 to {self.prior.config.rows} rows of an image can be given, got {rows}")
        return self.dvae.tokens(image[None], check)[0, :rows].flatten()

    def images(self, tokens: Tensor, check: Check | None = None) -> Tensor:
        """Decode tokens to images, as `DVAE.images` does."""
        return self.dvae.images(tokens, check)


def _built(metadata: Mapping[str, str]) -> DALLE:
    """The model described by the metadata, without its weights."""
    prior = Prior(read_sizes(metadata["prior"], PriorConfig))
    dvae = DVAE(read_sizes(metadata["dvae"], DVAEConfig))
    return DALLE(prior, dvae, _pieces(metadata["merges"]))


def _described(model: DALLE) -> dict[str, str]:
    merges = model.pieces.merges
    return {
        "prior": sizes_text(model.prior.config),
        "dvae": sizes_text(model.dvae.config),
        "merges": CLIPS if merges == tuple(read_merges()) else "\n".join(map(" ".join, merges)),
    }


def _pieces(text: str) -> Pieces:
    """Read the pieces from the metadata."""
    if text == CLIPS:
        return clip_pieces()
    pairs = [line.split(" ") for line in text.split("\n") if line]
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        raise ValueError(f"its merges have a line that is no pair: {quote(' '.join(wrong[0]))}")
    return Pieces([(left, right) for left, right in pairs])


DALLE_FORMAT = Format(
    name="dalle",
    title="a DALL·E",
    entries=("prior", "dvae", "merges"),
    build=_built,
    describe=_described,
    maker="The command dalle train writes them",
)
save_dalle, load_dalle = DALLE_FORMAT.save, DALLE_FORMAT.load
