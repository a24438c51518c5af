"""Every place and every naming in use, towers that share a file, and what tells them apart."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import load_text_models, seeded_text_model
from weighted_clip.encoder.files.layouts import find_towers
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.models.config import CLIP_L, OPENCLIP_BIGG, OPENCLIP_H, TOWERS, TextConfig
from weighted_clip.encoder.models.text_model import TextModel

from .conftest import random_ids
from .files import (
    OTHER_TENSORS,
    Tensors,
    hugging_face,
    old_clip_save,
    only_text_model,
    openclip,
    openclip_linear,
    transformers_5,
    write,
)

Naming = Callable[[Tensors, str], Tensors]
IN_PROJECTION = "text.transformer.resblocks.1.attn.in_proj_weight"


def small_config(tower: str, *, num_layers: int = 2) -> TextConfig:
    """Heads are 64 wide in every released encoder, and files do not say how many there are."""
    return replace(TOWERS[tower], hidden_dim=128, num_heads=2, num_layers=num_layers, mlp_dim=256, projection_dim=32)


def small_model(tower: str) -> TextModel:
    return seeded_text_model(small_config(tower), seed=list(TOWERS).index(tower))


def is_same(found: TextModel, expected: TextModel) -> bool:
    ours, theirs = found.state_dict(), expected.state_dict()
    return found.config == expected.config and all(torch.equal(ours[name], theirs[name]) for name in theirs | ours)


@pytest.mark.parametrize(
    ("naming", "prefix", "tower", "layout"),
    [
        (hugging_face, "", "clip_l", "Hugging Face text model"),
        (transformers_5, "", "clip_l", "Hugging Face text model (transformers 5)"),
        (old_clip_save, "", "clip_l", "Hugging Face text model"),
        (openclip, "", "clip_l", "OpenAI or OpenCLIP model"),
        (openclip_linear, "", "clip_l", "OpenAI or OpenCLIP model"),
        (openclip, "text.", "clip_l", "OpenCLIP model with its text tower apart"),
        (hugging_face, "cond_stage_model.transformer.", "clip_l", "Stable Diffusion 1.x checkpoint"),
        (transformers_5, "cond_stage_model.transformer.", "clip_l", "Stable Diffusion 1.x checkpoint (transformers 5"),
        (openclip, "cond_stage_model.model.", "clip_h", "Stable Diffusion 2.x checkpoint"),
        (hugging_face, "conditioner.embedders.0.transformer.", "clip_l", "SDXL checkpoint"),
        (transformers_5, "conditioner.embedders.0.transformer.", "clip_l", "SDXL checkpoint (transformers 5"),
        (openclip, "conditioner.embedders.1.model.", "clip_g", "SDXL checkpoint"),
        (openclip, "conditioner.embedders.0.model.", "clip_g", "SDXL refiner checkpoint"),
        *(
            (naming, f"{start}{tower}.{end}", tower, layout)
            for tower in TOWERS
            for start, layout in (("text_encoders.", "ComfyUI checkpoint"), ("", "ComfyUI text encoders"))
            for end, naming in (("transformer.", hugging_face), ("transformer.", transformers_5), ("", openclip))
        ),
        (old_clip_save, "clip_g.transformer.", "clip_g", "ComfyUI text encoders"),
        (hugging_face, "clip_l.", "clip_l", "ComfyUI text encoders"),
    ],
)
def test_every_layout_gives_the_same_model(
    tmp_path: Path, naming: Naming, prefix: str, tower: str, layout: str
) -> None:
    expected = small_model(tower)
    tensors = naming(dict(expected.state_dict()), prefix)
    position_ids = {prefix + "text_model.embeddings.position_ids": torch.arange(77).unsqueeze(0)}
    path = write(tmp_path / "file.safetensors", tensors | OTHER_TENSORS | position_ids)
    models, report = load_text_models(path)
    assert list(models) == [tower]
    assert is_same(models[tower], expected)
    assert models[tower].config == small_config(tower)
    assert report.layout.startswith(layout)
    assert [one.tower for one in report.towers] == [tower]
    assert set(report.towers[0].used) == set(tensors)
    assert report.towers[0].missing == ()
    assert set(report.ignored) == {*OTHER_TENSORS, *position_ids}


def sdxl_tensors() -> Tensors:
    towers = {tower: dict(small_model(tower).state_dict()) for tower in ("clip_l", "clip_g")}
    del towers["clip_l"]["text_projection.weight"]
    return {
        **openclip(towers["clip_g"], "conditioner.embedders.1.model."),
        **hugging_face(towers["clip_l"], "conditioner.embedders.0.transformer."),
        "conditioner.embedders.1.model.logit_scale": torch.tensor(4.6),
        "model.diffusion_model.input_blocks.0.0.weight": torch.zeros(3),
    }


def test_both_towers_of_an_sdxl_checkpoint_are_read(tmp_path: Path) -> None:
    # as ComfyUI saves one, which adds the position ids
    position_ids = {"conditioner.embedders.0.transformer.text_model.embeddings.position_ids": torch.arange(77)}
    path = write(tmp_path / "sdxl.safetensors", sdxl_tensors() | position_ids)
    models, report = load_text_models(path)
    assert list(models) == ["clip_l", "clip_g"]
    assert is_same(models["clip_g"], small_model("clip_g"))
    assert models["clip_l"].config == replace(small_config("clip_l"), projection_dim=None)
    assert (models["clip_l"].config.pad_id, models["clip_g"].config.pad_id) == (49407, 0)
    assert (models["clip_l"].config.activation, models["clip_g"].config.activation) == ("quick_gelu", "gelu")
    assert report.layout == "SDXL checkpoint"
    assert [tower.missing for tower in report.towers] == [("text_projection.weight",), ()]
    printed = str(report)
    assert "sdxl.safetensors: SDXL checkpoint" in printed
    assert "clip_g: SDXL checkpoint, 2 layers of width 128, stored as float32" in printed
    assert "activation quick_gelu (assumed, as clip_l was released)" in printed
    assert "ignored: conditioner (2), model (1)" in printed


def test_of_two_towers_of_a_kind_the_better_known_place_wins(tmp_path: Path) -> None:
    first, second = (dict(seeded_text_model(small_config("clip_g"), seed=seed).state_dict()) for seed in (1, 2))
    tensors = openclip(first, "conditioner.embedders.1.model.")
    others = hugging_face(second, "text_encoders.clip_g.transformer.")
    models, report = load_text_models(write(tmp_path / "twice.safetensors", others | tensors))
    assert is_same(models["clip_g"], seeded_text_model(small_config("clip_g"), seed=1))
    assert set(report.ignored) == set(others)


@pytest.mark.parametrize(
    ("width", "tower"), [(768, "clip_l"), (1024, "clip_h"), (1280, "clip_g"), (512, "clip_l"), (128, "clip_l")]
)
@pytest.mark.parametrize("key", ["text_model.embeddings.token_embedding.weight", "text.token_embedding.weight"])
def test_the_width_tells_the_tower_where_the_place_does_not(key: str, width: int, tower: str) -> None:
    assert [found.name for found in find_towers({key: (49408, width)})] == [tower]


def test_stable_diffusion_2_in_sgms_names_is_not_taken_for_the_refiner() -> None:
    key = "conditioner.embedders.0.model.token_embedding.weight"
    for width, tower in ((1024, "clip_h"), (1280, "clip_g")):
        assert [found.name for found in find_towers({key: (49408, width)})] == [tower]


def test_the_activation_is_the_callers_to_say(tmp_path: Path) -> None:
    path = write(tmp_path / "file.safetensors", openclip(dict(small_model("clip_l").state_dict()), ""))
    model, report = only_text_model(path, activation="gelu")
    assert model.config == replace(small_config("clip_l"), activation="gelu")
    expected = seeded_text_model(model.config)
    assert torch.equal(model(random_ids(1)).hidden, expected(random_ids(1)).hidden)
    assert "activation gelu (as chosen)" in str(report)


def test_a_context_of_248_is_read_and_encoded(tmp_path: Path) -> None:
    config = replace(small_config("clip_l"), context_length=248)
    expected = seeded_text_model(config)
    for name, naming in (("hugging_face", hugging_face), ("openclip", openclip)):
        path = write(tmp_path / f"{name}.safetensors", naming(dict(expected.state_dict()), ""))
        model, _ = only_text_model(path)
        assert model.config == config
        ids = torch.full((1, 248), CLIP_L.eos_id)
        ids[0, :200] = torch.arange(200)
        hidden = model(ids).hidden
        assert hidden.shape == (1, 248, 128)
        assert torch.equal(hidden, expected(ids).hidden)


def long_clip_tensors(model: TextModel) -> Tensors:
    """As Long-CLIP's own program saves a model: rows 0 to 19 of one table are used, and the rest of another."""
    tensors = openclip(dict(model.state_dict()), "")
    table = tensors["positional_embedding"]
    noise = torch.rand(table.shape, generator=torch.Generator().manual_seed(1))
    is_early = torch.arange(len(table)).unsqueeze(1) < 20
    tensors["positional_embedding"] = table.where(is_early, noise)
    tensors["positional_embedding_res"] = noise.where(is_early, table)
    return tensors


def test_long_clips_own_layout_is_put_together(tmp_path: Path) -> None:
    expected = seeded_text_model(replace(small_config("clip_l"), context_length=248))
    model, report = only_text_model(write(tmp_path / "longclip.safetensors", long_clip_tensors(expected)))
    for name, tensor in expected.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert "positional_embedding_res" not in report.ignored


def test_a_second_table_of_another_length_is_refused(tmp_path: Path) -> None:
    tensors = long_clip_tensors(seeded_text_model(replace(small_config("clip_l"), context_length=248)))
    tensors["positional_embedding_res"] = tensors["positional_embedding_res"][:77]
    path = write(tmp_path / "longclip.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"_res' has shape \[77, 128\], expected \[248, 128\] as"):
        load_text_models(path)


def tensors_of(naming: Naming, prefix: str) -> Tensors:
    return naming(dict(small_model("clip_l").state_dict()), prefix)


@pytest.mark.parametrize(
    ("naming", "prefix", "key"),
    [
        *(
            (hugging_face, "text_model.", key)
            for key in (
                "embeddings.position_embedding.weight",
                "encoder.layers.0.mlp.fc1.weight",
                "encoder.layers.1.self_attn.q_proj.bias",
                "final_layer_norm.weight",
            )
        ),
        *(
            (openclip, "text.", key)
            for key in (
                "positional_embedding",
                "transformer.resblocks.1.attn.in_proj_bias",
                "transformer.resblocks.0.attn.in_proj_weight",
                "transformer.resblocks.0.mlp.c_fc.weight",
                "ln_final.bias",
            )
        ),
    ],
)
def test_a_missing_key_is_named(tmp_path: Path, naming: Naming, prefix: str, key: str) -> None:
    tensors = tensors_of(naming, "" if naming is hugging_face else prefix)
    del tensors[prefix + key]
    with pytest.raises(CheckpointError, match=rf"part\.safetensors: key '{prefix}{key}' is missing"):
        only_text_model(write(tmp_path / "part.safetensors", tensors))


@pytest.mark.parametrize(
    ("naming", "key", "shape", "message"),
    [
        (transformers_5, "embeddings.token_embedding.weight", (49408, 100), "width 100"),
        (transformers_5, "embeddings.token_embedding.weight", (1000, 128), "1000 tokens"),
        (transformers_5, "embeddings.token_embedding.weight", (49408,), "two axes"),
        (transformers_5, "encoder.layers.1.mlp.fc1.weight", (4, 128), r"shape \[4, 128\], expected \[256, 128\]"),
        (openclip, IN_PROJECTION, (128, 128), r"shape \[128, 128\], expected \[384, 128\]"),
        (openclip, IN_PROJECTION, (385, 128), r"shape \[385, 128\], expected \[384, 128\]"),
        (openclip, "text.transformer.resblocks.1.attn.in_proj_bias", (128,), r"shape \[128\], expected \[384\]"),
        (openclip, "text.text_projection", (32, 128), r"shape \[32, 128\], expected \[128, 128\]"),
        (openclip, "text.text_projection", (128,), "expected two axes"),
        (openclip, "text.positional_embedding", (77,), "expected two axes"),
    ],
)
def test_shapes_that_do_not_fit_are_named(
    tmp_path: Path, naming: Naming, key: str, shape: tuple[int, ...], message: str
) -> None:
    tensors = tensors_of(naming, "" if naming is transformers_5 else "text.")
    with pytest.raises(CheckpointError, match=rf"key '{key}' has .*{message}"):
        only_text_model(write(tmp_path / "odd.safetensors", tensors | {key: torch.zeros(shape)}))


def test_no_number_in_a_stacked_tensor_is_found(tmp_path: Path) -> None:
    tensors, key = tensors_of(openclip, "text."), IN_PROJECTION
    tensors[key][300, 5] = float("nan")
    with pytest.raises(CheckpointError, match=rf"key '{key}' holds 1 values that are NaN"):
        only_text_model(write(tmp_path / "broken.safetensors", tensors))
    tensors[key] = torch.zeros(384, 128, dtype=torch.int8)
    with pytest.raises(CheckpointError, match=rf"key '{key}' holds I8,"):
        only_text_model(write(tmp_path / "broken.safetensors", tensors))


@pytest.mark.parametrize(
    ("naming", "key"),
    [
        (openclip, "transformer.resblocks.0.ls_1.gamma"),
        (hugging_face, "text_model.encoder.layers.1.mlp.fc1.scale_weight"),
    ],
)
def test_layers_with_more_in_them_than_clip_has_are_refused(tmp_path: Path, naming: Naming, key: str) -> None:
    tensors = tensors_of(naming, "") | {key: torch.ones(1)}
    with pytest.raises(CheckpointError, match=rf"key '{key}' is in no layer of a plain CLIP encoder"):
        only_text_model(write(tmp_path / "more.safetensors", tensors))


def test_the_named_sizes_are_those_of_the_released_encoders() -> None:
    for config, width, num_layers in ((CLIP_L, 768, 12), (OPENCLIP_H, 1024, 24), (OPENCLIP_BIGG, 1280, 32)):
        assert (config.hidden_dim, config.num_layers, config.mlp_dim) == (width, num_layers, 4 * width)
        assert config.head_dim == 64
        assert (config.activation, config.pad_id) == (("quick_gelu", 49407) if width == 768 else ("gelu", 0))
