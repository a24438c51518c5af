"""Gradients through both towers: those of transformers' model, and the same where layers are computed again."""

from dataclasses import replace

import pytest
import torch
from weighted_clip.encoder.config import TextConfig, VisionConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.text_model import TextModel
from weighted_clip.encoder.vision_model import VisionModel

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=64, projection_dim=32)
VISION = VisionConfig(
    image_size=28, patch_size=14, hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=64, projection_dim=32
)


def gradients(model: TextModel | VisionModel, given: torch.Tensor, *masks: torch.Tensor) -> dict[str, torch.Tensor]:
    model.requires_grad_(True).zero_grad()
    output = model(given, *masks)
    output.projected.square().sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("tower", ["text", "vision", "masked text"])
def test_layers_that_are_computed_again_give_the_same_gradients_and_keep_less(tower: str) -> None:
    generator = torch.Generator().manual_seed(0)
    masks = [torch.rand(2, 20, generator=generator) < 0.5] if tower == "masked text" else []
    for mask in masks:
        mask[:, 0] = True
    if tower == "vision":
        model, given = seeded_vision_model(VISION), torch.randn(2, 3, 28, 28, generator=generator)
    else:
        model, given = seeded_text_model(replace(TEXT)), torch.randint(49406, (2, 20), generator=generator)
    plain = gradients(model, given, *masks)
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: sizes.append(saved.numel()) or saved, lambda saved: saved
    ):
        model(given, *masks)
    kept = sum(sizes)
    model.encoder.is_checkpointed = True
    again = gradients(model, given, *masks)
    assert plain.keys() == again.keys()
    for name, gradient in plain.items():
        assert torch.equal(gradient, again[name]), name
    sizes.clear()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: sizes.append(saved.numel()) or saved, lambda saved: saved
    ):
        model(given, *masks)
    assert sum(sizes) < kept / 2


def test_a_shorter_batch_has_the_gradients_of_the_full_length() -> None:
    """Nothing after EOS affects what is before it, so training computes no padding."""
    model = seeded_text_model(TEXT).double()
    ids = torch.full((3, 77), 49407)
    ids[:, 0] = 49406
    ids[:, 1:9] = torch.randint(49406, (3, 8), generator=torch.Generator().manual_seed(1))
    ids[1, 5:] = 49407
    full, short = gradients(model, ids), gradients(model, ids[:, :10])
    for name, gradient in full.items():
        assert (gradient - short[name]).abs().max() <= 1e-12 * max(1.0, gradient.abs().max().item()), name
