"""Sizes of a discrete VAE.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, appendix A.1; the released weights, as read by the
package ``dall-e`` 0.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

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
            raise ValueError(f"architecture must be one of {', '.join(ARCHITECTURES)}, got {self.architecture!r:.80}")
        for name, value, least, most in (
            ("vocab_size", self.vocab_size, 2, MAX_VOCAB_SIZE),
            ("hidden_dim", self.hidden_dim, 4, MAX_WIDTH),
            ("num_blocks", self.num_blocks, 1, MAX_BLOCKS),
            ("init_dim", self.init_dim, 1, MAX_WIDTH),
        ):
            if type(value) is not int or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r:.80}")
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
