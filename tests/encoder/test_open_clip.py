"""Files that open_clip writes against open_clip itself, at the widths of the released encoders."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import TOWERS, VISION_TOWERS

from ..libraries import library
from .conftest import random_ids
from .files import write

SMALL = {
    "vision": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
    "text": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
}
"""Towers that a test does not look at, but that a model of open_clip has to have."""


class TextStates(NamedTuple):
    """Output of open_clip's text tower."""

    hidden_states: list[Tensor]
    """H_0 to H_N, each ``[b, s, d]``, none of them normed."""
    projected: Tensor
    """``[b, p]``: final layer norm at EOS, times the text projection."""


def open_clip() -> ModuleType:
    """The library. A test that wants it is skipped without it."""
    return library("open_clip", "3")


def seeded_model(name: str, num_layers: int, *, tower: str = "text", is_apart: bool = False) -> nn.Module:
    """A model with one tower of one of open_clip's configs, cut to a few layers, and a small other one.

    Args:
        name: Name of the config, e.g. ``ViT-H-14``.
        num_layers: Layers of the tower.
        tower: ``text`` or ``vision``.
        is_apart: Whether the text tower is a module of its own, as in CustomTextCLIP, or part of the model, as in CLIP.

    Returns:
        The model, in evaluation mode without gradients. Weights are of open_clip's own choice, with a seed; LayerNorms
        and biases are spread.
    """
    library = open_clip()
    config: dict[str, Any] = library.get_model_config(name)
    towers = SMALL | {tower: config[f"{tower}_cfg"] | {"layers": num_layers}}
    torch.manual_seed(0)
    kind = library.CustomTextCLIP if is_apart else library.CLIP
    quick_gelu = config.get("quick_gelu", False)
    model = kind(config["embed_dim"], towers["vision"], towers["text"], quick_gelu=quick_gelu)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.1)
        elif isinstance(module, nn.Linear | nn.MultiheadAttention):
            bias = module.bias if isinstance(module, nn.Linear) else module.in_proj_bias
            nn.init.normal_(bias, 0.0, 0.1)
    return model.eval().requires_grad_(False)


def encode(model: Any, ids: Tensor) -> TextStates:
    """Run the text tower of `seeded_model` on ids ``[b, s]``."""
    blocks = getattr(model, "text", model).transformer.resblocks
    states: list[Tensor] = []
    hooks = [blocks[0].register_forward_pre_hook(lambda _, given: states.append(given[0]))]
    hooks += [block.register_forward_hook(lambda _, __, result: states.append(result)) for block in blocks]
    try:
        return TextStates(states, model.encode_text(ids))
    finally:
        for hook in hooks:
            hook.remove()


TOLERANCE = 1e-5
"""For numbers of order 1, in float32; 6e-6 was measured."""


@pytest.mark.parametrize(
    ("name", "tower", "num_layers", "is_apart"),
    [
        ("ViT-L-14-quickgelu", "clip_l", 4, False),
        ("ViT-H-14", "clip_h", 3, False),
        ("ViT-H-14", "clip_h", 2, True),
        ("ViT-bigG-14", "clip_g", 2, False),
    ],
)
def test_equals_open_clip_after_loading_its_file(
    tmp_path: Path, name: str, tower: str, num_layers: int, is_apart: bool
) -> None:
    theirs = seeded_model(name, num_layers, is_apart=is_apart)
    models, report = load_text_models(write(tmp_path / "open_clip.safetensors", theirs.state_dict()))
    assert list(models) == [tower]
    ours, config = models[tower], TOWERS[tower]
    assert (ours.config.hidden_dim, ours.config.num_heads) == (config.hidden_dim, config.num_heads)
    assert (ours.config.mlp_dim, ours.config.activation) == (config.mlp_dim, config.activation)
    assert ours.config.projection_dim == config.hidden_dim
    assert all(key == "logit_scale" or key.startswith("visual.") for key in report.ignored)
    for batch in (1, 3):
        ids = random_ids(batch, seed=batch, pad_id=0)  # open_clip pads every tower's texts with 0
        with torch.no_grad():
            expected, found = encode(theirs, ids), ours(ids)
        assert len(expected.hidden_states) == len(found.hidden_states) == num_layers + 1
        for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(found.projected, expected.projected, rtol=0, atol=TOLERANCE)
        assert 0.3 < expected.hidden_states[-1].std() < 3
        assert 0.3 < expected.projected.std() < 3


def test_the_activation_of_open_clips_own_vit_l_has_to_be_said(tmp_path: Path) -> None:
    theirs = seeded_model("ViT-L-14", 2)
    path = write(tmp_path / "open_clip.safetensors", theirs.state_dict())
    ids = random_ids(1, pad_id=0)
    expected = encode(theirs, ids).projected
    chosen, assumed = load_text_models(path, activation="gelu")[0], load_text_models(path)[0]
    torch.testing.assert_close(chosen["clip_l"](ids).projected, expected, rtol=0, atol=TOLERANCE)
    assert not torch.allclose(assumed["clip_l"](ids).projected, expected, rtol=0, atol=100 * TOLERANCE)


@pytest.mark.parametrize(
    ("name", "tower"),
    [
        ("ViT-B-32-quickgelu", "B/32"),
        ("ViT-B-16-quickgelu", "B/16"),
        ("ViT-L-14-quickgelu", "L/14"),
        ("ViT-H-14", "H/14"),
        ("ViT-g-14", "g/14"),
        ("ViT-bigG-14", "bigG/14"),
    ],
)
def test_image_towers_equal_open_clip_after_loading_its_file(tmp_path: Path, name: str, tower: str) -> None:
    theirs = seeded_model(name, 3, tower="vision")
    clip = load_full_clip(write(tmp_path / "open_clip.safetensors", theirs.state_dict()))
    assert clip.vision.config == replace(VISION_TOWERS[tower], num_layers=3)
    assert clip.text.config.activation == clip.vision.config.activation
    assert clip.logit_scale == pytest.approx(float(theirs.logit_scale.exp()))
    size = clip.vision.config.image_size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs.encode_image(images)
        found = clip.vision(images).projected
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.1
