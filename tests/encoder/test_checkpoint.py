"""Files of transformers and of ours, types, what is said of files that cannot be used, and models made of a seed."""

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import (
    hugging_face_tensors,
    load_text_models,
    seeded_text_model,
    seeded_vision_model,
)
from weighted_clip.encoder.files.tensor_file import MAX_HEADER_BYTES, CheckpointError
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import TextConfig, VisionConfig

from ..libraries import library
from .conftest import random_ids
from .files import only_text_model, write

# heads are 64 wide in every released encoder, and files do not say how many there are
SMALL = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=256)


def small_tensors() -> dict[str, Tensor]:
    return dict(seeded_text_model(SMALL).state_dict())


def test_files_written_by_transformers_load(tmp_path: Path) -> None:
    library("transformers", "4.46")
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        projection_dim=32,
        eos_token_id=49407,
        vocab_size=49408,
    )
    ids = random_ids(2)
    for number, kind in enumerate((CLIPTextModel, CLIPTextModelWithProjection)):
        theirs = kind(config).eval()
        theirs.save_pretrained(tmp_path / str(number))
        model, _ = only_text_model(tmp_path / str(number) / "model.safetensors")
        with torch.no_grad():
            expected = theirs(ids)
        assert torch.equal(model(ids).hidden, expected.last_hidden_state)
        if kind is CLIPTextModelWithProjection:
            assert torch.equal(model(ids).projected, expected.text_embeds)


def test_file_and_model_may_have_different_types(tmp_path: Path) -> None:
    tensors = {"text_model." + key: tensor.half() for key, tensor in small_tensors().items()}
    path = write(tmp_path / "half.safetensors", tensors)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        model, report = only_text_model(path, dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}
        assert report.towers[0].dtypes == ("float16",)
        assert "stored as float16" in str(report)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.safetensors: there is no such file"):
        only_text_model(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".bin", ".PTH"])
def test_pickles_are_refused_unread_with_advice(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"model{suffix}"
    path.write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(CheckpointError, match=r"can run code\. Convert it to \.safetensors"):
        only_text_model(path)


@pytest.mark.parametrize("keep", [4, 100, -1000])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "cut.safetensors", small_tensors())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"cut\.safetensors: not a readable safetensors file"):
        only_text_model(path)


LYING = json.dumps({"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}}).encode()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack("<Q", 2**62) + b"{}", id="of impossible size"),
        pytest.param(struct.pack("<Q", len(LYING)) + LYING + b"\0" * 4, id="that lies about sizes"),
    ],
)
def test_a_header_that_cannot_be_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bomb.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="not a readable safetensors file"):
        only_text_model(path)


def test_long_metadata_is_no_reason_to_refuse_a_file(tmp_path: Path) -> None:
    path = tmp_path / "merged.safetensors"
    save_file(small_tensors(), path, metadata={"sd_merge_recipe": "x" * 15_000_000})
    assert only_text_model(path)[1].towers[0].used


def test_a_header_that_is_too_long_is_not_called_a_broken_download(tmp_path: Path) -> None:
    path = tmp_path / "bomb.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", MAX_HEADER_BYTES + 8))
        file.truncate(MAX_HEADER_BYTES + 100)
    with pytest.raises(
        CheckpointError, match=r"bomb\.safetensors: it is not read: its header has 16,777,224 bytes, at"
    ):
        only_text_model(path)


@pytest.mark.parametrize(
    ("keys", "hint"),
    [
        (["model.diffusion_model.input_blocks.0.0.weight"], "diffusion model but no CLIP text encoder"),
        (["visual.transformer.resblocks.0.ln_1.weight"], "First keys: 'visual.transformer"),
        (["lora_te_text_model_encoder_layers_0_mlp_fc1.lora_up.weight"], "LoRA"),
        (["encoder.block.0.layer.0.SelfAttention.q.weight"], "First keys: 'encoder.block.0"),
        ([], "none at all"),
    ],
)
def test_a_foreign_file_is_told_by_its_keys(tmp_path: Path, keys: list[str], hint: str) -> None:
    path = write(tmp_path / "foreign.safetensors", {key: torch.zeros(2, 2) for key in keys})
    with pytest.raises(CheckpointError, match=r"foreign\.safetensors: no CLIP text encoder in it") as caught:
        only_text_model(path)
    assert hint in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_no_numbers_are_refused_with_file_and_key(tmp_path: Path, value: float) -> None:
    tensors = small_tensors()
    tensors["encoder.layers.1.mlp.fc2.bias"][3] = value
    path = write(tmp_path / "broken.safetensors", {"text_model." + key: tensor for key, tensor in tensors.items()})
    message = r"broken\.safetensors: key 'text_model\.encoder\.layers\.1\.mlp\.fc2\.bias' holds 1 values that are NaN"
    with pytest.raises(CheckpointError, match=message):
        only_text_model(path)


@pytest.mark.parametrize(
    ("dtype", "value", "num_beyond", "message"),
    [
        (torch.float16, 1e6, 2, r"2 of its 128 values are beyond what float16 can hold.* as fp32 or bf16$"),
        (torch.bfloat16, 3.4e38, 1, r"1 of its 128 values are beyond what bfloat16 can hold.* Load the model as fp32$"),
    ],
)
def test_values_that_the_wanted_type_cannot_hold_are_refused_with_what_to_do(
    tmp_path: Path, dtype: torch.dtype, value: float, num_beyond: int, message: str
) -> None:
    tensors = small_tensors()
    tensors["encoder.layers.1.mlp.fc2.bias"][:num_beyond] = value
    path = write(tmp_path / "large.safetensors", {"text_model." + key: tensor for key, tensor in tensors.items()})
    key = r"'text_model\.encoder\.layers\.1\.mlp\.fc2\.bias'"
    with pytest.raises(CheckpointError, match=rf"large\.safetensors: key {key} is stored as float32, and {message}"):
        only_text_model(path, dtype=dtype)
    model, _ = only_text_model(path)
    assert model.encoder.layers[1].mlp.fc2.bias[0] == torch.tensor(value)


def test_a_missing_layer_is_named_at_no_cost(tmp_path: Path) -> None:
    first = {key: tensor for key, tensor in small_tensors().items() if "layers.0." not in key}
    beyond_reason = small_tensors() | {"encoder.layers.999999999.mlp.fc1.bias": torch.zeros(1)}
    for tensors, message in ((first, "layer 0 of 1 is missing"), (beyond_reason, "layer 2 of 3 is missing")):
        with pytest.raises(CheckpointError, match=message):
            only_text_model(write(tmp_path / "part.safetensors", tensors))


def test_integers_for_weights_are_refused(tmp_path: Path) -> None:
    tensors = small_tensors()
    tensors["final_layer_norm.weight"] = torch.ones(128, dtype=torch.int32)
    with pytest.raises(CheckpointError, match=r"'final_layer_norm\.weight' holds I32,"):
        only_text_model(write(tmp_path / "odd.safetensors", tensors))


def test_seeds_make_models() -> None:
    first, again, other = seeded_text_model(SMALL), seeded_text_model(SMALL), seeded_text_model(SMALL, seed=1)
    ids = random_ids(1)
    assert torch.equal(first(ids).hidden, again(ids).hidden)
    assert not torch.equal(first(ids).hidden, other(ids).hidden)
    gains = first.final_layer_norm.weight
    assert 0.15 < gains.std() < 0.25
    assert abs(gains.mean() - 1) < 0.1
    # so the mean of the last hidden state is no rounding noise
    hidden = first(ids).hidden
    assert hidden.mean().abs() > 1e-3 * hidden.abs().mean()


# --- files that we write


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
