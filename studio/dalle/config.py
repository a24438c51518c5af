"""Sizes of the discrete VAE and of the prior, the transformer over text and image tokens.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.2, appendices A.1 and B.1; the released
weights of the discrete VAE, as read by the package ``dall-e`` 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from ...encoder.models.config import ACTIVATIONS, KERNEL_SIZE, MASK_VARIANTS, MaskVariant
from ...encoder.quoting import quote

Architecture = Literal["dall-e", "small"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
"""OpenAI's published one, and the small recipe, which learns coloured shapes on a laptop (docs/dalle.md)."""

MAX_VOCAB_SIZE = 65536
MAX_WIDTH = 4096
MAX_BLOCKS = 16


@dataclass(frozen=True)
class DVAEConfig:
    """Sizes of a discrete VAE. The defaults are those of the published model.

    Raises:
        ValueError: If the architecture is unknown, or a size is out of range.
    """

    architecture: Architecture = "dall-e"
    vocab_size: int = 8192
    """K: number of values a token can have."""
    hidden_dim: int = 256
    """Feature maps at the resolution of the image, and eight times as many at that of the tokens; in the small
    architecture, at that of the tokens."""
    num_blocks: int = 2
    """Residual blocks at each resolution; in the small architecture, at that of the tokens only."""
    init_dim: int = 128
    """Width of a token's vector in the decoder; the small architecture has ``hidden_dim``."""

    def __post_init__(self) -> None:
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {quote(self.architecture)}")
        for name, value, least, most in (
            ("vocab_size", self.vocab_size, 2, MAX_VOCAB_SIZE),
            ("hidden_dim", self.hidden_dim, 4, MAX_WIDTH),
            ("num_blocks", self.num_blocks, 1, MAX_BLOCKS),
            ("init_dim", self.init_dim, 1, MAX_WIDTH),
        ):
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}, got {quote(value)}")
        if self.hidden_dim % 4:
            raise ValueError(f"hidden_dim must be a multiple of 4, got {self.hidden_dim}")

    @property
    def downsampling(self) -> int:
        """Pixels along each side of a token: 8, or 4 in the small architecture."""
        return 8 if self.architecture == "dall-e" else 4

    @property
    def has_scale(self) -> bool:
        """Whether the decoder also predicts ln b, its uncertainty about each pixel."""
        return self.architecture == "dall-e"


PUBLISHED = DVAEConfig()
"""OpenAI's model: 53.8 million parameters in the encoder, 43.8 million in the decoder."""
SMALL = DVAEConfig("small", vocab_size=128, hidden_dim=64)
"""Model of the small recipe: 0.23 million parameters."""


MAX_LENGTH = 5120
"""Maximum number of positions, text and image together."""
MAX_SIZE = 2**17
MAX_LAYERS = 256
START_PIECE = 2
"""Piece that version 2 of ru-DALL-E puts before the text."""


@dataclass(frozen=True)
class PriorConfig:
    """Sizes of a prior. The defaults are the paper's: 12 billion parameters.

    Raises:
        ValueError: If a size is out of range, or ``hidden_dim`` is not a multiple of ``num_heads``.
    """

    text_vocab_size: int = 16384
    """Number of text pieces, without the padding tokens."""
    text_length: int = 256
    """T: text positions."""
    rows: int = 32
    """Height of the grid of image tokens."""
    columns: int = 32
    """Width of the grid of image tokens."""
    image_vocab_size: int = 8192
    """K: number of values an image token can have."""
    hidden_dim: int = 3968
    """d: width of a position's state."""
    num_heads: int = 62
    """h: attention heads in each layer."""
    num_layers: int = 64
    """N: layers."""
    mlp_dim: int = 15872
    """Inner width of the per-position MLP."""
    activation: str = "quick_gelu"
    """Non-linearity of the MLP, one of `ACTIVATIONS`."""
    layer_norm_eps: float = 1e-5
    """epsilon added to the variance in every LayerNorm."""
    kernel_size: int = KERNEL_SIZE
    """Kernel size of the convolutional mask in the last layer, in rows and columns."""
    variant: MaskVariant = "dalle"
    """Layout: the paper's, or that of ru-DALL-E's weights, version 2 or 3. Both have their own masks, norms on residual
    branches, and a second norm before the heads. Version 2 also puts `START_PIECE` before the text, which shifts all
    positions by one against the masks: the last text piece is where they have the first image token."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, most = getattr(self, field.name), MAX_LAYERS if field.name == "num_layers" else MAX_SIZE
            if field.type == "int" and (type(value) is not int or not 1 <= value <= most):
                raise ValueError(f"{field.name} must be a whole number from 1 to {most}, got {quote(value)}")
        if self.length > MAX_LENGTH:
            raise ValueError(
                f"{self.text_length} positions of text and {self.rows} x {self.columns} image tokens are "
                f"{self.length:,} together, at most {MAX_LENGTH:,} are allowed"
            )
        if self.hidden_dim % self.num_heads:
            raise ValueError(f"hidden_dim {self.hidden_dim} is not a multiple of num_heads {self.num_heads}")
        if type(self.layer_norm_eps) is not float or not 0 < self.layer_norm_eps < 1:
            raise ValueError(f"layer_norm_eps must be a number between 0 and 1, got {quote(self.layer_norm_eps)}")
        if self.activation not in ACTIVATIONS:  # a file may contain anything, even a list
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {quote(self.activation)}")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be an odd number, so that it has a middle, got {self.kernel_size}")
        most = max(KERNEL_SIZE, 2 * max(self.grid) - 1)
        if self.kernel_size > most:
            raise ValueError(
                f"kernel_size must be at most {most} for {self.rows} x {self.columns} image tokens, got "
                f"{self.kernel_size}"
            )
        if self.variant not in MASK_VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(MASK_VARIANTS)}, got {quote(self.variant)}")
        if self.has_start and self.text_vocab_size <= START_PIECE:
            raise ValueError(f"{self.variant} needs a text_vocab_size above {START_PIECE}, got {self.text_vocab_size}")

    @property
    def num_image_tokens(self) -> int:
        """Number of tokens in an image."""
        return self.rows * self.columns

    @property
    def is_rudalle(self) -> bool:
        """Whether the layout is one of ru-DALL-E's."""
        return self.variant != "dalle"

    @property
    def has_start(self) -> bool:
        """Whether the text is preceded by a start piece."""
        return self.variant == "rudalle-v2"

    @property
    def first_image_position(self) -> int:
        """Number of positions before the image tokens."""
        return self.text_length + self.has_start

    @property
    def length(self) -> int:
        """Number of positions, text and image together."""
        return self.text_length + self.num_image_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of image tokens."""
        return self.rows, self.columns
