"""Files that we write: the keys of transformers' own model, and read back unchanged."""

from pathlib import Path

import pytest
import torch
from weighted_clip.encoder.clip import load_full_clip
from weighted_clip.encoder.config import TextConfig, VisionConfig
from weighted_clip.encoder.files.checkpoint import (
    hugging_face_tensors,
    load_text_models,
    seeded_text_model,
    seeded_vision_model,
)

from ..libraries import library
from .files import write

TEXT = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=64, projection_dim=32)
VISION = VisionConfig(
    image_size=28, patch_size=14, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32
)


def test_a_whole_clip_has_the_keys_and_shapes_of_transformers_and_is_read_back_to_the_bit(tmp_path: Path) -> None:
    transformers = library("transformers")
    text, vision = seeded_text_model(TEXT), seeded_vision_model(VISION)
    tensors = {**hugging_face_tensors(text), **hugging_face_tensors(vision), "logit_scale": torch.tensor(3.5)}
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2, "intermediate_size": 64}
    seen = {"hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 2, "intermediate_size": 64}
    reference = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**sizes, "vocab_size": 49408},
            vision_config={**seen, "image_size": 28, "patch_size": 14},
            projection_dim=32,
        )
    )
    shapes = {key: tuple(value.shape) for key, value in reference.state_dict().items() if "position_ids" not in key}
    assert {key: tuple(value.shape) for key, value in tensors.items()} == shapes
    reference.load_state_dict(tensors, strict=False)

    clip = load_full_clip(write(tmp_path / "clip.safetensors", tensors))
    assert clip.logit_scale == pytest.approx(torch.tensor(3.5).exp().item(), rel=1e-6)
    for ours, read in ((text, clip.text), (vision, clip.vision)):
        for name, parameter in ours.named_parameters():
            assert torch.equal(parameter, read.get_parameter(name)), name

    ids = torch.tensor([[49406, 320, 2368, 49407], [49406, 736, 49407, 49407]])
    pixels = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    reference.eval()
    reference.text_model.eos_token_id = 49407
    with torch.no_grad():
        theirs = reference(input_ids=ids, pixel_values=pixels)
    assert (clip.text_features(ids.tolist()) - theirs.text_embeds).abs().max() < 1e-5
    assert (clip.image_features(pixels) - theirs.image_embeds).abs().max() < 1e-5


def test_a_text_encoder_alone_is_read_back_with_other_parameters(tmp_path: Path) -> None:
    model = seeded_text_model(TEXT)
    doubled = {name: parameter * 2 for name, parameter in model.named_parameters()}
    tensors = hugging_face_tensors(model, doubled)
    assert "text_model.encoder.layers.1.self_attn.q_proj.weight" in tensors
    models, report = load_text_models(write(tmp_path / "text.safetensors", tensors))
    assert report.ignored == ()
    for name, parameter in models["clip_l"].named_parameters():
        assert torch.equal(parameter, doubled[name]), name
