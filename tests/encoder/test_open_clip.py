"""Files that open_clip writes against open_clip itself, at the widths of the released encoders."""

from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.config import TOWERS
from weighted_clip.encoder.files.checkpoint import load_text_models

from ..libraries import library
from .conftest import random_ids
from .files import write

SMALL_IMAGE_TOWER = {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}
"""Irrelevant for texts, but required by a model of open_clip."""


class TextStates(NamedTuple):
    """Output of open_clip's text tower."""

    hidden_states: list[Tensor]
    """H_0 to H_N, each ``[b, s, d]``, none of them normed."""
    projected: Tensor
    """``[b, p]``: final layer norm at EOS, times the text projection."""


def open_clip() -> ModuleType:
    """The library. A test that wants it is skipped without it."""
    return library("open_clip", "3")


def text_model(name: str, num_layers: int, *, is_apart: bool = False) -> nn.Module:
    """A model with the text tower of one of open_clip's configs, cut to a few layers; LayerNorms are spread.

    Args:
        name: Name of the config, e.g. ``ViT-H-14``.
        num_layers: Layers of the text tower.
        is_apart: Whether the text tower is a module of its own, as in CustomTextCLIP, or part of the model, as in CLIP.

    Returns:
        The model, in evaluation mode without gradients. Weights are of open_clip's own choice, with a seed.
    """
    library = open_clip()
    config: dict[str, Any] = library.get_model_config(name)
    text_config = config["text_cfg"] | {"layers": num_layers}
    torch.manual_seed(0)
    kind = library.CustomTextCLIP if is_apart else library.CLIP
    model = kind(config["embed_dim"], SMALL_IMAGE_TOWER, text_config, quick_gelu=config.get("quick_gelu", False))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.2)
            nn.init.normal_(module.bias, 0.0, 0.1)
        elif isinstance(module, nn.Linear | nn.MultiheadAttention):
            bias = module.bias if isinstance(module, nn.Linear) else module.in_proj_bias
            nn.init.normal_(bias, 0.0, 0.1)
    return model.eval().requires_grad_(False)


def encode(model: Any, ids: Tensor) -> TextStates:
    """Run the text tower of `text_model` on ids ``[b, s]``."""
    blocks = getattr(model, "text", model).transformer.resblocks
    states: list[Tensor] = []
    hooks = [blocks[0].register_forward_pre_hook(lambda _, given: states.append(given[0]))]
    hooks += [block.register_forward_hook(lambda _, __, result: states.append(result)) for block in blocks]
    try:
        return TextStates(states, model.encode_text(ids))
    finally:
        for hook in hooks:
            hook.remove()


# --- texts


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
    theirs = text_model(name, num_layers, is_apart=is_apart)
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
    theirs = text_model("ViT-L-14", 2)
    path = write(tmp_path / "open_clip.safetensors", theirs.state_dict())
    ids = random_ids(1, pad_id=0)
    expected = encode(theirs, ids).projected
    chosen, assumed = load_text_models(path, activation="gelu")[0], load_text_models(path)[0]
    torch.testing.assert_close(chosen["clip_l"](ids).projected, expected, rtol=0, atol=TOLERANCE)
    assert not torch.allclose(assumed["clip_l"](ids).projected, expected, rtol=0, atol=100 * TOLERANCE)
