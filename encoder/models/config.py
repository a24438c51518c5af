"""Sizes and constants of CLIP's text and image encoders, and the model families that use them.

Defines the numbers that distinguish encoders. Knows nothing of weights or files; ``checkpoint.py`` infers a config from
a file's shapes.

Source: docs/lecture.md Definition 5.10; the released ``config.json`` of openai/clip-vit-large-patch14; for the OpenCLIP
encoders ``model_configs/ViT-H-14.json`` and ``ViT-bigG-14.json`` of open_clip 3.3.0, which also has the others; for
the smallest clip skip and the final layer norm of families ``backend/diffusion_engine`` of Forge 2.0.1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from ..quoting import quote

Activation = Literal["quick_gelu", "gelu"]
ACTIVATIONS: tuple[str, ...] = (*get_args(Activation), "gelu_tanh")
"""Non-linearities of an MLP; the last one is the approximation used by GPT-2 and ru-DALL-E, but by no CLIP."""

Positions = Literal["learned", "rotary"]
POSITIONS: tuple[Positions, ...] = get_args(Positions)
"""Kinds of positions in a text tower, default first: a learned vector for each position, as in every released CLIP; or
rotation of queries and keys (``layers.py``)."""
MAX_POSITIONS = 16384
"""Maximum number of positions of a text or of patches in a file. The longest in use have 248 and 577."""

Crop = Literal["center", "letterbox", "stretch"]
CROPS: tuple[Crop, ...] = get_args(Crop)
"""Ways of making an image square, default first: cropped at both ends of its long side; padded with bars; squeezed."""

Library = Literal["transformers", "open_clip", "diffusers"]
LIBRARIES: tuple[Library, ...] = get_args(Library)
"""Libraries for which a CLIP can be written as a folder."""

KERNEL_SIZE = 11
"""Kernel size of the convolutional mask in rows and columns, in DALL·E and ru-DALL-E."""

MaskVariant = Literal["dalle", "rudalle-v2", "rudalle-v3"]
MASK_VARIANTS: tuple[MaskVariant, ...] = get_args(MaskVariant)
"""Variants of the convolutional mask and the order of layers: the paper's, or those of ru-DALL-E's weights, version 2
or 3."""

HEAD_DIM = 64
"""Width of one attention head in every released CLIP text encoder."""


@dataclass(frozen=True)
class TextConfig:
    """Sizes of one CLIP text encoder. The defaults are CLIP ViT-L/14, the text encoder of Stable Diffusion 1.x.

    Raises:
        ValueError: If a size is not positive, ``hidden_dim`` is not a multiple of ``num_heads``, or rotary positions
            are used with heads of odd width.
    """

    vocab_size: int = 49408
    """V: number of token ids."""
    context_length: int = 77
    """L: positions in one chunk, including BOS and EOS."""
    hidden_dim: int = 768
    """d: width of a token's hidden state."""
    num_heads: int = 12
    """h: attention heads in each layer."""
    num_layers: int = 12
    """N: encoder layers."""
    mlp_dim: int = 3072
    """d_mlp: inner width of the per-position MLP."""
    activation: Activation = "quick_gelu"
    """Non-linearity of the MLP."""
    layer_norm_eps: float = 1e-5
    """epsilon added to the variance in every LayerNorm."""
    projection_dim: int | None = None
    """Width of the projected pooled vector; None if the checkpoint has no text projection."""
    bos_id: int = 49406
    """Begin-of-sentence token id."""
    eos_id: int = 49407
    """End-of-sentence token id."""
    pad_id: int = 49407
    """Token id after EOS: EOS itself for CLIP-L, 0 for OpenCLIP encoders."""
    positions: Positions = "learned"
    """Kind of positions. ``rotary`` occurs only in towers trained with it by ``train``."""

    def __post_init__(self) -> None:
        _check_sizes(self, "vocab_size", "context_length")
        if self.context_length < 2:
            raise ValueError(f"context_length must hold BOS and EOS, so at least 2, got {self.context_length}")
        if self.positions not in POSITIONS:
            raise ValueError(f"positions must be {' or '.join(map(repr, POSITIONS))}, got {quote(self.positions)}")
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(f"rotary positions need heads of even width, and these are {self.head_dim} wide")

    @property
    def head_dim(self) -> int:
        """d_h: width of one attention head."""
        return self.hidden_dim // self.num_heads


def _check_sizes(config: TextConfig | VisionConfig, *more: str) -> None:
    """Raise ValueError for a size below 1, heads that do not fit, or an unknown activation."""
    for name in (*more, "hidden_dim", "num_heads", "num_layers", "mlp_dim"):
        value = getattr(config, name)
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if config.hidden_dim % config.num_heads:
        raise ValueError(f"hidden_dim {config.hidden_dim} is not a multiple of num_heads {config.num_heads}")
    if config.activation not in ("quick_gelu", "gelu"):
        raise ValueError(f"activation must be 'quick_gelu' or 'gelu', got {quote(config.activation)}")


CLIP_L = TextConfig()
"""CLIP ViT-L/14: the text encoder of Stable Diffusion 1.x and the first one of SDXL."""

OPENCLIP_H = TextConfig(
    hidden_dim=1024, num_heads=16, num_layers=24, mlp_dim=4096, activation="gelu", projection_dim=1024, pad_id=0
)
"""OpenCLIP ViT-H/14: the text encoder of Stable Diffusion 2.x.

Source: ``ViT-H-14.json`` and ``tokenizer.py``, which pads with 0, of open_clip 3.3.0.
"""

OPENCLIP_BIGG = TextConfig(
    hidden_dim=1280, num_heads=20, num_layers=32, mlp_dim=5120, activation="gelu", projection_dim=1280, pad_id=0
)
"""OpenCLIP ViT-bigG/14: the second text encoder of SDXL, and the only one of its refiner.

Source: ``ViT-bigG-14.json`` and ``tokenizer.py`` of open_clip 3.3.0.
"""

TOWERS = {"clip_l": CLIP_L, "clip_g": OPENCLIP_BIGG, "clip_h": OPENCLIP_H}
"""Released text towers by ComfyUI's names, in the order in which models join their rows."""


@dataclass(frozen=True)
class Family:
    """Use of text towers by a model family."""

    name: str
    """Name known to users."""
    towers: tuple[str, ...]
    """Its towers, by ComfyUI's names, in the order in which their rows are joined."""
    min_clip_skip: int
    """Layer it was trained on: 1 = last, 2 = penultimate. A smaller clip skip counts as this one."""
    final_norm: bool
    """Whether that layer passes the final layer norm."""
    projected: bool
    """Whether pooled vectors are projected, if the tower has a text projection. SDXL's are those of ``clip_g``."""


FAMILIES = (
    Family("SD 1.x", ("clip_l",), min_clip_skip=1, final_norm=True, projected=False),
    Family("SD 2.x", ("clip_h",), min_clip_skip=2, final_norm=True, projected=True),
    Family("SDXL", ("clip_l", "clip_g"), min_clip_skip=2, final_norm=False, projected=True),
    Family("SDXL refiner", ("clip_g",), min_clip_skip=2, final_norm=False, projected=True),
)
"""Families that condition on CLIP text towers only."""


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of one CLIP image encoder. The defaults are CLIP ViT-L/14.

    Raises:
        ValueError: If a size is not positive, ``hidden_dim`` is not a multiple of ``num_heads``, or ``image_size`` of
            ``patch_size``.
    """

    image_size: int = 224
    """Side of the square image, in pixels."""
    patch_size: int = 14
    """Side of a patch, in pixels."""
    hidden_dim: int = 1024
    """d: width of a patch's hidden state."""
    num_heads: int = 16
    """h: attention heads in each layer."""
    num_layers: int = 24
    """N: encoder layers."""
    mlp_dim: int = 4096
    """Inner width of the per-patch MLP."""
    activation: Activation = "quick_gelu"
    """Non-linearity of the MLP."""
    layer_norm_eps: float = 1e-5
    """epsilon added to the variance in every LayerNorm."""
    projection_dim: int | None = 768
    """Width of the projected pooled vector; None if the checkpoint has no projection."""

    def __post_init__(self) -> None:
        _check_sizes(self, "image_size", "patch_size")
        if self.image_size % self.patch_size:
            raise ValueError(f"image_size {self.image_size} is not a multiple of patch_size {self.patch_size}")

    @property
    def grid(self) -> int:
        """Patches along each side."""
        return self.image_size // self.patch_size


_BASE = VisionConfig(hidden_dim=768, num_heads=12, num_layers=12, mlp_dim=3072, projection_dim=512)

VISION_TOWERS = {
    "B/32": replace(_BASE, patch_size=32),
    "B/16": replace(_BASE, patch_size=16),
    "L/14": VisionConfig(),
    "L/14@336": VisionConfig(image_size=336),
    "H/14": VisionConfig(hidden_dim=1280, num_layers=32, mlp_dim=5120, activation="gelu", projection_dim=1024),
    "g/14": VisionConfig(hidden_dim=1408, num_layers=40, mlp_dim=6144, activation="gelu", projection_dim=1024),
    "bigG/14": VisionConfig(hidden_dim=1664, num_layers=48, mlp_dim=8192, activation="gelu", projection_dim=1280),
}
"""Released image encoders by their usual names. B and L are OpenAI's; H, g and bigG are OpenCLIP's."""


def sizes_of(config: TextConfig | VisionConfig) -> dict[str, int]:
    """Sizes of a tower by Hugging Face's names."""
    return {
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
    }
