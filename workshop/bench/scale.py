"""Scale of the measurements: full, or just enough to see that the command works."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...encoder.models.config import VisionConfig
    from ...encoder.models.text_model import TextModel

SEED = 0
UNET = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 320,
    "num_res_blocks": [2, 2, 2, 2],
    "channel_mult": [1, 2, 4, 4],
    "transformer_depth": [1, 1, 1, 1, 1, 1, 0, 0],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [1] * 9 + [0] * 3,
    "num_heads": 8,
    "use_spatial_transformer": True,
    "use_linear_in_transformer": False,
    "use_temporal_attention": False,
    "adm_in_channels": None,
    "legacy": False,
}
"""Sizes of Stable Diffusion 1.5's U-Net, by ComfyUI's names."""
TINY_UNET = UNET | {
    "model_channels": 32,
    "num_res_blocks": [1, 1],
    "channel_mult": [1, 2],
    "transformer_depth": [1, 1],
    "transformer_depth_output": [1, 1, 1, 1],
}
TINY = {"hidden_dim": 64, "num_heads": 1, "num_layers": 2, "mlp_dim": 128}

GPU_SAMPLINGS = {
    "Stable Diffusion 1.5": {"sides": [64, 128], "sizes": {}},
    "Flux": {"sides": [128, 256], "sizes": {}},
}
_TINY_FLUX = {"hidden_size": 64, "num_heads": 2, "axes_dim": [8, 12, 12], "context_in_dim": 64}
TINY_SAMPLINGS = {
    "Stable Diffusion 1.5": {"sides": [8], "sizes": TINY_UNET},
    "Flux": {"sides": [8], "sizes": {**_TINY_FLUX, "depth": 1, "depth_single_blocks": 1}},
}


@dataclass(frozen=True)
class BenchScale:
    """Sizes and counts; the defaults are those of the page."""

    repetitions: int = 15
    """Rounds, unless another field overrides it."""
    parse_lengths: tuple[int, int, int] = (300, 10_000, 100_000)
    """Characters; growth is from the second to the third length."""
    parse_seconds: float = 0.1
    """Minimum time for each text."""
    parse_repetitions: int = 3
    """Minimum repetitions for each text."""
    token_repetitions: int = 200
    token_inner: int = 20
    """Calls per round."""
    num_prompts: int = 64
    """Prompts in a grid."""
    grid_repetitions: int = 5
    """Rounds for grids, each of which takes many seconds."""
    batches: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
    """Batch sizes, of which the peer's best is used."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the text encoder that differ from CLIP-L's."""
    gpu_repetitions: int = 50
    gpu_samplings: dict[str, dict[str, Any]] = field(default_factory=lambda: GPU_SAMPLINGS)
    """Models that are sampled on a GPU, with sides of their latents and sizes of their own."""
    gpu_steps: int = 10
    gpu_rounds: int = 5
    image_batch: int = 8
    """Images for timing."""
    num_images: int = 32
    """Images for measuring memory."""
    image_side: int = 512
    """Side of an image, in pixels."""
    image_repetitions: int = 5
    vision_sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the image encoder that differ from CLIP-L's."""
    sampling_repetitions: int = 3
    latent_side: int = 64
    """Side of the sampled latent, in positions of 8 x 8 pixels."""
    unet_sizes: dict[str, Any] = field(default_factory=lambda: UNET)

    def model(self) -> TextModel:
        """A text tower of these sizes, in float32; the peers share its tensors."""
        from ...encoder.files.checkpoint import seeded_text_model
        from ...encoder.models.config import TextConfig

        return seeded_text_model(TextConfig(**self.sizes), seed=SEED)  # pyright: ignore[reportArgumentType]

    def vision(self) -> VisionConfig:
        """Configuration of the image encoder."""
        from ...encoder.models.config import VisionConfig

        return VisionConfig(**self.vision_sizes)  # pyright: ignore[reportArgumentType]


FULL = BenchScale()
QUICK = BenchScale(
    repetitions=2,
    parse_lengths=(30, 100, 300),
    parse_seconds=0.0,
    parse_repetitions=1,
    token_repetitions=2,
    token_inner=1,
    num_prompts=4,
    grid_repetitions=1,
    batches=(1, 4),
    sizes=TINY,
    gpu_repetitions=2,
    gpu_samplings=TINY_SAMPLINGS,
    gpu_steps=2,
    gpu_rounds=1,
    image_batch=3,
    num_images=6,
    image_side=64,
    image_repetitions=2,
    vision_sizes={**TINY, "image_size": 56, "projection_dim": 32},
    sampling_repetitions=1,
    latent_side=8,
    unet_sizes=TINY_UNET,
)
