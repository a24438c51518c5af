"""The image tower against transformers, files of several programs, and what is said of files that are not whole."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import VISION_TOWERS, TextConfig, VisionConfig
from weighted_clip.encoder.models.vision_model import VisionModel

from ..libraries import library
from .conftest import random_ids
from .files import hugging_face, openclip, write

SMALL = VisionConfig(image_size=42, hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=256, projection_dim=32)
SMALL_TEXT = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=256, projection_dim=32)


def random_images(batch: int, size: int) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(batch))


def vision_tensors(model: VisionModel) -> dict[str, Tensor]:
    """Parameters under the names of transformers."""
    renamed = {"pre_layer_norm": "pre_layrnorm", "post_layer_norm": "post_layernorm"}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        for ours, theirs in renamed.items():
            name = name.replace(ours, theirs)
        tensors[name if name.startswith("visual_projection") else f"vision_model.{name}"] = tensor
    return tensors


def transformers_model(model: VisionModel) -> Any:
    library("transformers", "4.46")
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = model.config
    given = CLIPVisionConfig(
        hidden_size=config.hidden_dim,
        intermediate_size=config.mlp_dim,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        image_size=config.image_size,
        patch_size=config.patch_size,
        projection_dim=config.projection_dim,
        hidden_act=config.activation,
        attn_implementation="sdpa",
    )
    with torch.device("meta"):  # no time is spent on weights that are replaced
        theirs = CLIPVisionModelWithProjection(given)
    theirs.load_state_dict(vision_tensors(model), assign=True)
    theirs.vision_model.embeddings.position_ids = torch.arange(config.grid**2 + 1).unsqueeze(0)
    return theirs.eval()


@pytest.mark.parametrize("name", VISION_TOWERS)
def test_equals_transformers_sdpa_bit_for_bit(name: str) -> None:
    config = replace(VISION_TOWERS[name], num_layers=3)
    model = seeded_vision_model(config)
    theirs = transformers_model(model)
    for batch in (1, 3) if name == "B/32" else (2,):
        images = random_images(batch, config.image_size)
        with torch.no_grad():
            expected, found = theirs(images, output_hidden_states=True), model(images)
        assert torch.equal(found.hidden, expected.last_hidden_state)
        assert torch.equal(found.projected, expected.image_embeds)
        assert len(found.hidden_states) == len(expected.hidden_states)
        assert all(map(torch.equal, found.hidden_states, expected.hidden_states))
        assert torch.equal(found.pooled, theirs.vision_model.post_layernorm(expected.last_hidden_state[:, 0]))


def test_files_of_transformers_and_openai_give_both_towers(tmp_path: Path) -> None:
    vision, text = seeded_vision_model(SMALL), seeded_text_model(SMALL_TEXT)
    both = {**vision_tensors(vision), **hugging_face(dict(text.state_dict()), "")}
    ids, images = random_ids(2), random_images(2, 42)
    path = write(tmp_path / "hugging_face.safetensors", both | {"logit_scale": torch.tensor(4.0)})
    clip = load_full_clip(path)
    assert clip.vision.config == SMALL
    assert clip.logit_scale == pytest.approx(54.598, abs=1e-3)
    expected = text(ids).projected, vision(images).projected
    assert expected[0] is not None
    assert expected[1] is not None
    for found, plain in zip((clip.text_features(ids.tolist()), clip.image_features(images)), expected, strict=True):
        torch.testing.assert_close(found, plain / plain.norm(dim=-1, keepdim=True), rtol=0, atol=1e-6)

    openai = {
        "visual.class_embedding": vision.embeddings.class_embedding,
        "visual.conv1.weight": vision.embeddings.patch_embedding.weight,
        "visual.positional_embedding": vision.embeddings.position_embedding.weight,
        "visual.proj": vision.visual_projection.weight.T,
        **{
            f"visual.ln_{place}.{kind}": vision.get_parameter(f"{place}_layer_norm.{kind}")
            for place in ("pre", "post")
            for kind in ("weight", "bias")
        },
        **{
            f"visual.{key}": tensor
            for key, tensor in openclip(
                {name: tensor for name, tensor in vision.state_dict().items() if name.startswith("encoder.")}, ""
            ).items()
        },
        **openclip(dict(text.state_dict()), ""),
    }
    other = load_full_clip(write(tmp_path / "openai.safetensors", openai))
    assert torch.equal(other.image_features(images), clip.image_features(images))
    assert torch.equal(other.text_features(ids.tolist()), clip.text_features(ids.tolist()))


def test_an_image_tower_saved_alone_by_transformers_5_is_found(tmp_path: Path) -> None:
    library("transformers", "5")
    from transformers import CLIPVisionModel

    model = seeded_vision_model(replace(SMALL, projection_dim=None))
    theirs = CLIPVisionModel(transformers_model(seeded_vision_model(SMALL)).config)
    theirs.load_state_dict({k.removeprefix("vision_model."): v for k, v in vision_tensors(model).items()}, strict=False)
    theirs.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="no CLIP text encoder in it"):
        load_full_clip(tmp_path / "model.safetensors")


def test_what_cannot_compare_texts_and_images_is_refused_with_advice(tmp_path: Path) -> None:
    text, vision = seeded_text_model(SMALL_TEXT), seeded_vision_model(SMALL)
    named = hugging_face(dict(text.state_dict()), "")
    alone = write(tmp_path / "text.safetensors", named)
    with pytest.raises(CheckpointError, match=r"without its image half\. .*openai/clip-vit-large-patch14"):
        load_full_clip(alone)
    with pytest.raises(CheckpointError, match=r"without its text half\. .*openai/clip-vit-large-patch14"):
        load_full_clip(write(tmp_path / "image.safetensors", vision_tensors(vision)))
    del named["text_projection.weight"]
    with pytest.raises(CheckpointError, match=r"its text encoder has no projection.*openai/clip-vit-large-patch14"):
        load_full_clip(write(tmp_path / "a.safetensors", named | vision_tensors(vision)))
    other = seeded_vision_model(replace(SMALL, projection_dim=16))
    both = hugging_face(dict(text.state_dict()), "") | vision_tensors(other)
    with pytest.raises(CheckpointError, match="32 wide and its image encoder 16 wide: they are not of one model"):
        load_full_clip(write(tmp_path / "b.safetensors", both))
    both = hugging_face(dict(text.state_dict()), "") | vision_tensors(vision)
    both["vision_model.embeddings.position_embedding.weight"] = torch.zeros(9, 128)
    with pytest.raises(CheckpointError, match="has 9 positions, expected 1 and those of a square"):
        load_full_clip(write(tmp_path / "c.safetensors", both))


def test_an_image_tower_with_values_that_the_wanted_type_cannot_hold_is_refused(tmp_path: Path) -> None:
    named = hugging_face(dict(seeded_text_model(SMALL_TEXT).state_dict()), "")
    vision = seeded_vision_model(SMALL)
    vision.embeddings.class_embedding[5] = 1e6  # float16 ends at 65,504
    path = write(tmp_path / "large.safetensors", named | vision_tensors(vision))
    message = r"'vision_model\.embeddings\.class_embedding' is stored as float32, and 1 of its 128 .* float16 can hold"
    with pytest.raises(CheckpointError, match=rf"large\.safetensors: key {message}"):
        load_full_clip(path, dtype=torch.float16)
    assert load_full_clip(path, dtype=torch.bfloat16).vision.embeddings.class_embedding[5] == 999_424  # nearest to 1e6


def test_no_header_makes_the_reader_crash(tmp_path: Path) -> None:
    """Shapes that no model has: a refusal, never another error."""
    shapes = [[], [0], [1], [128], [1, 1, 1, 1], [128, 3, 14, 14], [10, 128]]
    for first in shapes:
        for second in shapes:
            tensors = {
                "visual.class_embedding": first,
                "visual.conv1.weight": second,
                "visual.positional_embedding": first,
            }
            header: dict[str, Any] = {}
            end = 0
            for key, shape in tensors.items():
                start, end = end, end + 4 * int(torch.tensor(shape).prod()) if shape else end + 4
                header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
            encoded = json.dumps(header).encode()
            path = tmp_path / "odd.safetensors"
            path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(end))
            with pytest.raises(CheckpointError):
                load_full_clip(path)


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images must be \[images, 3, 42, 42\], got \[1, 3, 224, 224\]"):
        seeded_vision_model(SMALL)(torch.zeros(1, 3, 224, 224))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_layers", 0, "num_layers must be at least 1, got 0"),
        ("num_heads", 3, "hidden_dim 1024 is not a multiple of num_heads 3"),
        ("patch_size", 15, "image_size 224 is not a multiple of patch_size 15"),
        ("activation", "relu", "activation must be 'quick_gelu' or 'gelu', got 'relu'"),
    ],
)
def test_impossible_sizes_are_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(VisionConfig(), **{field: value})
