"""open_clip, for tests that compare with it: models of its own classes, and what they compute."""

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..libraries import library

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
