"""Scale of the measurements: full, or just enough to see that the command works."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...encoder.config import VisionConfig
    from ...encoder.text_model import TextModel

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
DALLE: dict[str, Any] = {
    "sizes": {
        "text_vocab_size": 16384,
        "text_length": 128,
        "rows": 32,
        "columns": 32,
        "image_vocab_size": 8192,
        "hidden_dim": 512,
        "num_heads": 8,
        "num_layers": 4,
        "mlp_dim": 6 * 512,
        "activation": "gelu",
    },
    "images": [1],
    "pairs": 2,
    "steps": 1,
    "repetitions": 3,
    "uncached_repetitions": 1,
    "training_repetitions": 7,
}
"""Sizes for dalle_process.py. The MLP is wide enough to give a layer as many parameters as dalle-pytorch's, which is a
GEGLU of 4 times the width."""
TINY_DALLE: dict[str, Any] = {
    "sizes": DALLE["sizes"]
    | {"text_vocab_size": 50, "text_length": 6, "rows": 4, "columns": 4, "image_vocab_size": 40}
    | {"hidden_dim": 32, "num_heads": 2, "num_layers": 4, "mlp_dim": 6 * 32},
    "images": [1, 2],
    "pairs": 2,
    "steps": 1,
    "repetitions": 2,
    "uncached_repetitions": 1,
    "training_repetitions": 2,
}
PRIOR: dict[str, Any] = {
    "hidden_dim": 64,
    "num_heads": 2,
    "num_layers": 8,
    "activation": "gelu",
    "text_length": 16,
    "pieces": 1024,
    "bpe_dropout": 0.0,
    "size": 24,
    "batch": 8,
    "accumulate": 1,
    "steps": 300,
    "highest_rate": 1.5e-3,
    "warmup": 30,
    "halvings": 0,
    "clip": 1.0,
    "max_second_moment": None,
    "ema": 0.0,
    "is_augmented": False,
}
"""Fields of `PriorOptions`: narrow, as a CPU multiplies float16 slowly, and deep, where gradients vanish."""
TINY_PRIOR: dict[str, Any] = PRIOR | {"hidden_dim": 32, "num_layers": 2, "batch": 4, "steps": 4, "held_out": 8}
TINY = {"hidden_dim": 64, "num_heads": 1, "num_layers": 2, "mlp_dim": 128}


@dataclass(frozen=True)
class Scale:
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
    many: dict[int, int] = field(default_factory=lambda: {100: 5, 1_000: 3, 10_000: 1})
    """Rounds by number of prompts in a file."""
    many_beside: int = 1_000
    """Largest number of these prompts for which the peer is measured."""
    many_tries: int = 2
    """Rounds in which the peer's batch sizes are tried."""
    shard_size: int = 256
    """Prompts in a shard, the default of ``encode --batch``."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes of the text encoder that differ from CLIP-L's."""
    gpu_repetitions: int = 50
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
    training: tuple[int, int, int, int] = (8, 15, 5, 1)
    """Full-size text tower: pairs per batch, rounds, rounds with the image tower, steps per round."""
    small_training: tuple[int, int, int, int] = (64, 30, 30, 5)
    """Small text tower: the same numbers."""
    dalle: dict[str, Any] = field(default_factory=lambda: DALLE)
    prior: dict[str, Any] = field(default_factory=lambda: PRIOR)
    vae_steps: int = 300
    """Steps of the discrete VAE that provides its tokens."""

    def model(self) -> TextModel:
        """A text tower of these sizes, in float32; the peers share its tensors."""
        from ...encoder.config import TextConfig
        from ...encoder.files.checkpoint import seeded_text_model

        return seeded_text_model(TextConfig(**self.sizes), seed=SEED)  # pyright: ignore[reportArgumentType]

    def vision(self) -> VisionConfig:
        """Configuration of the image encoder."""
        from ...encoder.config import VisionConfig

        return VisionConfig(**self.vision_sizes)  # pyright: ignore[reportArgumentType]


FULL = Scale()
QUICK = Scale(
    repetitions=2,
    parse_lengths=(30, 100, 300),
    parse_seconds=0.0,
    parse_repetitions=1,
    token_repetitions=2,
    token_inner=1,
    num_prompts=4,
    grid_repetitions=1,
    batches=(1, 4),
    many={4: 1},
    many_beside=4,
    many_tries=1,
    shard_size=4,
    sizes=TINY,
    gpu_repetitions=2,
    image_batch=3,
    num_images=6,
    image_side=64,
    image_repetitions=2,
    vision_sizes={**TINY, "image_size": 56, "projection_dim": 32},
    sampling_repetitions=1,
    latent_side=8,
    unet_sizes=TINY_UNET,
    training=(3, 2, 1, 1),
    small_training=(4, 2, 1, 2),
    dalle=TINY_DALLE,
    prior=TINY_PRIOR,
    vae_steps=4,
)
