"""OpenAI's own package and towers called by themselves as references, and small models with random weights."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.models.clip import FullClip
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.training import dalle_demo
from weighted_clip.studio.dalle.config import DVAEConfig, PriorConfig
from weighted_clip.studio.dalle.dvae import DVAE, map_pixels
from weighted_clip.studio.dalle.full_model import DALLE
from weighted_clip.studio.dalle.pieces import learned_pieces
from weighted_clip.studio.dalle.prior import Prior
from weighted_clip.studio.world import shapes
from weighted_clip.studio.world.shapes import combinations
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.towers import layout_of

TINY = DVAEConfig(vocab_size=512, hidden_dim=64, num_blocks=1, init_dim=8)
"""The smallest sizes that OpenAI's package takes."""
TINY_SMALL = DVAEConfig("small", vocab_size=16, hidden_dim=16)


def dall_e() -> ModuleType:
    """OpenAI's package ``dall-e`` 0.1, which is in no requirements, as it wants mypy and pytest."""
    return pytest.importorskip(
        "dall_e", reason="compares with dall-e 0.1, which is not installed: pip install --no-deps dall-e attrs requests"
    )


def seeded(config: DVAEConfig, seed: int = 0) -> DVAE:
    """With biases, so that no sum lacks a part, and no token that always wins; without gradients."""
    model = DVAE(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 100
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * (2 / fan_in) ** 0.5)
    logits = model.encoder(map_pixels(pictures(2, 32, 32, seed + 1)))
    *_, bias = model.encoder.parameters()
    bias -= logits.mean((0, 2, 3))
    return model


COLORS = 5
"""Levels of red, green and blue that `palette_dvae` knows."""


def palette() -> torch.Tensor:
    """``[125, 3]``: the colour of each token of `palette_dvae`; red is the slowest to change."""
    levels = torch.linspace(0, 1, COLORS)
    return torch.cartesian_prod(levels, levels, levels)


def palette_dvae() -> DVAE:
    """A dVAE whose tokens are known: the nearest of 125 colours to the mean of 4 x 4 pixels; decoded, that colour."""
    colors = palette()
    model = DVAE(DVAEConfig("small", vocab_size=len(colors), hidden_dim=8)).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.zero_()
    same = torch.eye(3)
    for conv in (model.encoder.input, model.encoder.down):  # means of 2 x 2, kept above 0 for the ReLUs
        conv.weight[:3, :3, 1:3, 1:3] = same[:, :, None, None] / 4
    model.encoder.input.bias[:3] = 2
    # what comes out is 4 * (0.1 + 0.8 * colour - 0.3) + 2; of |c - p|², |c|² is the same for every p
    shown = 4 * (0.8 * colors - 0.2) + 2
    model.encoder.output.weight[:, :3, 0, 0] = 2 * shown
    model.encoder.output.bias.copy_(-shown.square().sum(1))
    model.decoder.input.weight[:3, :, 0, 0] = torch.logit(map_pixels(colors)).T + 3
    for conv in (model.decoder.up, model.decoder.output):
        conv.weight[:3, :3, 1:3, 1:3] = same[:, :, None, None]
    model.decoder.output.bias.fill_(-3)
    return model


def nearest_colors(images: torch.Tensor) -> torch.Tensor:
    """Expected result of `palette_dvae`, computed differently: ``[b, 3, h, w]`` to ``[b, h / 4, w / 4]``."""
    means = nn.functional.avg_pool2d(images.double(), 4).movedim(1, -1)
    return torch.cdist(means.flatten(0, 2), palette().double()).argmin(1).view(means.shape[:3])


def reference(config: DVAEConfig) -> tuple[nn.Module, nn.Module]:
    """OpenAI's encoder and decoder of these sizes."""
    theirs = dall_e()
    shared = {"n_hid": config.hidden_dim, "n_blk_per_group": config.num_blocks, "vocab_size": config.vocab_size}
    return theirs.Encoder(**shared), theirs.Decoder(n_init=config.init_dim, **shared)


def pictures(count: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Random pictures with large and small structures."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, height // 4, width // 4, generator=generator)
    fine = torch.rand(count, 3, height, width, generator=generator)
    return 0.8 * nn.functional.interpolate(coarse, (height, width), mode="bilinear") + 0.2 * fine


def set_by_formula(model: nn.Module) -> None:
    """Weights that any program can repeat: sin(0.37 i + p) for element i of parameter p, smaller for more inputs."""
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            fan_in = parameter[0].numel() if parameter.ndim > 1 else 100
            values = torch.sin(0.37 * torch.arange(parameter.numel(), dtype=torch.float64) + number)
            parameter.copy_((values * (2 / fan_in) ** 0.5).view(parameter.shape))


def formula_picture() -> torch.Tensor:
    """``[1, 3, 16, 24]``, in 0..1."""
    return (torch.sin(0.1 * torch.arange(3 * 16 * 24, dtype=torch.float64)) / 2 + 0.5).view(1, 3, 16, 24).float()


PRIOR = PriorConfig(
    text_vocab_size=530,
    text_length=12,
    rows=3,
    columns=4,
    image_vocab_size=16,
    hidden_dim=16,
    num_heads=2,
    num_layers=3,
    mlp_dim=32,
    kernel_size=3,
)
"""Fits `TINY_SMALL`."""


def tiny_dalle(config: PriorConfig = PRIOR) -> DALLE:
    """A whole model with random weights, whose images differ with caption and seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        prior = Prior(config).eval().requires_grad_(False)
    return DALLE(prior, seeded(TINY_SMALL), learned_pieces([shape.caption for shape in combinations()], 530))


def shrink_demo(patch: pytest.MonkeyPatch) -> None:
    """Let the demo train narrow models on few pictures, each with an accelerator of its own."""
    from accelerate.state import AcceleratorState

    narrow = {"train-vae": ["--width", "16"], "train": ["--width", "32", "--heads", "2", "--layers", "3"]}
    real, write = dalle_demo._command, shapes.write_shapes

    def command(given: list[str]) -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        real([*given, *narrow.get(given[1], [])])

    patch.setattr(dalle_demo, "_command", command)
    patch.setattr(shapes, "write_shapes", lambda folder: write(folder, copies=(1, 1)))


def cosines_of(towers: FullClip, caption: str, images: Tensor) -> Tensor:
    """Cosines of a caption and images ``[images, 3, height, width]``, from the towers called by themselves."""
    layout = layout_of(towers.text.config)
    [chunk] = read_prompt(caption, EncodeOptions(syntax="none"), default_tokenizer(), layout).chunks
    size = towers.vision.config.image_size
    features = towers.image_features(preprocess(images.movedim(1, -1), size))
    return (features @ towers.text_features([chunk.plain_ids]).T)[:, 0]
