"""Heads, activation and epsilon by ``config.json`` beside a file, compared with transformers; and configs of others."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import config_of, load_text_models
from weighted_clip.encoder.files.config_file import MAX_BYTES
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import VISION_TOWERS, TextConfig
from weighted_clip.studio.commands.program import main

from ..libraries import library
from ..training.runs import write_pairs

INDEX = "model.safetensors.index.json"
SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
FITS = {"model_type": "clip_text_model", **SIZES, "projection_dim": 64}
IDS = torch.tensor([[49406, 320, 736, 2368, *[49407] * 73], [49406, 1237, *[49407] * 75]])
PIXELS = torch.sin(torch.arange(2 * 3 * 32 * 32, dtype=torch.float32)).view(2, 3, 32, 32)


def saved(folder: Path, **changed: Any) -> Any:
    """A tiny CLIP of transformers, saved into a folder."""
    transformers = library("transformers")
    more = {"hidden_act": "gelu", "layer_norm_eps": 3e-4, **changed}
    config = transformers.CLIPConfig(
        text_config={**SIZES, **more},
        vision_config={**SIZES, "num_attention_heads": 8, "image_size": 32, "patch_size": 8, **more},
        projection_dim=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.CLIPModel(config).eval()
        for name, parameter in model.named_parameters():
            if "embed" not in name and parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("clip")
    saved(place)
    return place


def features(found: Any) -> torch.Tensor:
    return found if isinstance(found, torch.Tensor) else found.pooler_output


@pytest.mark.parametrize("activation", ["gelu", "quick_gelu"])
def test_both_encoders_are_those_of_transformers(activation: str, tmp_path: Path) -> None:
    model = saved(tmp_path, hidden_act=activation)
    path = tmp_path / "model.safetensors"
    clip = load_full_clip(path)
    assert (clip.text.config.num_heads, clip.vision.config.num_heads) == (4, 8)
    assert clip.origin == (
        f"text encoder: 4 heads and activation {activation}, by config.json; "
        f"image encoder: 8 heads and activation {activation}, by config.json"
    )
    with torch.no_grad():
        theirs = features(model.get_text_features(IDS)), features(model.get_image_features(PIXELS))
        ours = clip.text(IDS).projected, clip.vision(PIXELS).projected
        assert clip.vision.project(PIXELS).sub(theirs[1]).abs().max() <= 1e-5
        alone, report = load_text_models(path)
        assert alone["clip_l"](IDS).projected.sub(theirs[0]).abs().max() <= 1e-5
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine - other).abs().max() <= 1e-5
    assert str(report).splitlines()[0].endswith(f"; 4 heads and activation {activation}, by config.json")
    (tmp_path / "config.json").unlink()
    guessed = load_full_clip(path)
    assert guessed.text.config.num_heads == guessed.vision.config.num_heads == 2
    assert "heads guessed from the width: 2; activation guessed: quick_gelu" in guessed.origin
    assert (guessed.text(IDS).projected - theirs[0]).abs().max() > 1e-3
    with torch.no_grad():
        assert (guessed.vision(PIXELS).projected - theirs[1]).abs().max() > 1e-3


def test_a_text_encoder_alone_and_halves_of_other_names_are_read_too(folder: Path, tmp_path: Path) -> None:
    transformers = library("transformers")
    config = transformers.CLIPTextConfig(**SIZES, hidden_act="gelu", projection_dim=96)
    model = transformers.CLIPTextModelWithProjection(config).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model.fp16.safetensors")
    models, _ = load_text_models(tmp_path / "model.fp16.safetensors")
    with torch.no_grad():
        assert models["clip_l"](IDS).projected.sub(model(IDS).text_embeds).abs().max() <= 1e-5


def test_what_the_caller_chooses_is_said_and_taken(folder: Path) -> None:
    clip = load_full_clip(folder / "model.safetensors", activation="quick_gelu")
    assert (clip.text.config.activation, clip.vision.config.activation) == ("quick_gelu", "quick_gelu")
    assert "4 heads; activation as chosen: quick_gelu, by config.json" in clip.origin
    models, report = load_text_models(folder / "model.safetensors", activation="quick_gelu")
    assert models["clip_l"].config.activation == "quick_gelu"
    assert "activation quick_gelu (as chosen)" in str(report)


def beside(folder: Path, place: Path, config: object) -> Path:
    """The file of a folder, with another config beside it."""
    path = place / "model.safetensors"
    os.link(folder / "model.safetensors", path)
    if callable(config):
        config(place / "config.json")
    else:
        (place / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "t5", "hidden_size": 128}, "it is of a model of type 't5'"),
        ({"model_type": ["clip"]}, "it is of a model of type"),
        ({"_class_name": "UNet2DConditionModel"}, "it is of a model of type None"),
        ({"model_type": "clip"}, "by it the text encoder has hidden_size 512, by its tensors 128"),
        ({"model_type": "clip_text_model"}, "by it the text encoder has hidden_size 512, by its tensors 128"),
        ({"model_type": "clip_text_model", **SIZES, "num_hidden_layers": 3}, "num_hidden_layers 3, by its tensors 2"),
        ({**FITS, "max_position_embeddings": 248}, "by it the text encoder has max_position_embeddings 248, by its"),
    ],
)
def test_a_config_of_another_model_counts_for_nothing_and_is_named(
    folder: Path, tmp_path: Path, config: object, why: str
) -> None:
    beside(folder, tmp_path, config)
    models, report = load_text_models(tmp_path)  # the folder
    assert models["clip_l"].config.num_heads == 2
    assert models["clip_l"].config.activation == "quick_gelu"
    first = str(report).splitlines()[0]
    assert "; heads guessed from the width: 2; activation guessed: quick_gelu (config.json is not used: " in first
    assert why in first


def sparse(size: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(b"{")
        os.truncate(path, size)

    return write


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**FITS, "num_attention_heads": 0}, "num_attention_heads is 0, expected a whole number from 1"),
        ({**FITS, "num_attention_heads": 3}, "num_attention_heads is 3, which does not divide the width, 128"),
        ({**FITS, "num_attention_heads": "4"}, "num_attention_heads is '4', expected a whole number"),
        ({**FITS, "num_attention_heads": True}, "num_attention_heads is True, expected a whole number"),
        ({**FITS, "hidden_size": -128}, "hidden_size is -128, expected a whole number from 1"),
        ({**FITS, "hidden_size": "9" * 5000}, r"hidden_size is '9{79}…, expected a whole number"),
        ({**FITS, "hidden_act": "relu"}, "hidden_act is 'relu', possible here are quick_gelu and gelu"),
        ({**FITS, "layer_norm_eps": 1e308}, r"layer_norm_eps is 1e\+308, expected a number between 0 and 1"),
        ({**FITS, "eos_token_id": 5}, "eos_token_id is 5, and texts end in 49407"),
        ({"model_type": "clip", "text_config": [1]}, r"text_config is \[1\], expected an object"),
        (json.dumps(FITS).replace("128", "NaN"), "NaN is no number in JSON"),
        (json.dumps(FITS).replace("128", "9" * 5000), "it is no JSON that is read: a number"),
        ("[" * 100_000, "it is nested too deeply|it is no JSON"),
        ("[1]", "it is no object of JSON"),
        ('{"model_type": "clip', "it is no JSON: "),
        (sparse(5 * 10**9), f"it cannot be read: it has 5,000,000,000 bytes, at most {MAX_BYTES:,} are read"),
        (Path.mkdir, "it cannot be read: it is a folder, a pipe or a device, and not a file"),
    ],
)
def test_a_config_that_no_clip_can_have_is_refused_in_words(
    folder: Path, tmp_path: Path, config: object, why: str
) -> None:
    path = beside(folder, tmp_path, config)
    for given in (path, tmp_path):  # the folder of a file, too
        with pytest.raises(
            CheckpointError, match=rf"model\.safetensors: config\.json beside it: ({why}).*\. Mend it, or"
        ):
            load_text_models(given)
    (tmp_path / "config.json").rmdir() if config is Path.mkdir else (tmp_path / "config.json").unlink()
    assert load_text_models(path)[0]["clip_l"].config.num_heads == 2


def test_old_configs_that_name_a_tower_twice_are_read_as_transformers_does(folder: Path, tmp_path: Path) -> None:
    given = json.loads((folder / "config.json").read_text())
    given["text_config_dict"] = {**SIZES, "num_attention_heads": 8}
    path = beside(folder, tmp_path, given)
    theirs = library("transformers").CLIPConfig(**given).text_config
    ours = load_full_clip(path).text.config
    assert (ours.num_heads, ours.activation) == (theirs.num_attention_heads, theirs.hidden_act) == (8, "quick_gelu")
    assert ours.layer_norm_eps == theirs.layer_norm_eps


def test_checkpoints_and_encoders_of_hosts_do_not_look_beside_them(tmp_path: Path) -> None:
    from weighted_clip.encoder.files.checkpoint import seeded_text_model

    from .files import hugging_face, write

    config = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=192)
    tensors = hugging_face(dict(seeded_text_model(config).named_parameters()), "cond_stage_model.transformer.")
    path = write(tmp_path / "sd.safetensors", tensors)
    (tmp_path / "config.json").write_text("no JSON")
    assert load_text_models(path)[0]["clip_l"].config.num_heads == 2


def test_configs_of_open_clip_are_read_beside_its_own_files(tmp_path: Path) -> None:
    from weighted_clip.encoder.files.checkpoint import seeded_text_model

    from .files import openclip, write

    config = TextConfig(hidden_dim=128, num_heads=4, num_layers=2, mlp_dim=512, projection_dim=64)
    path = write(tmp_path / "open_clip.safetensors", openclip(dict(seeded_text_model(config).named_parameters()), ""))
    model = {"embed_dim": 64, "text_cfg": {"width": 128, "heads": 4, "layers": 2}}
    for quick, activation in ((True, "quick_gelu"), (False, "gelu")):
        (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {**model, "quick_gelu": quick}}))
        found = load_text_models(path)[0]["clip_l"].config
        assert (found.num_heads, found.activation) == (4, activation)


def test_commands_say_in_their_first_line_what_is_guessed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    for command in (
        ["rerank", "a red picture", str(tmp_path)],
        ["similarity", str(tmp_path), "--text", "a red picture"],
    ):
        for weights in (folder / "model.safetensors", folder):
            assert main([*command, "--weights", str(weights)]) == 0
        told = capsys.readouterr().err.splitlines()[0]
        assert told == (
            "model.safetensors: text encoder: 4 heads and activation gelu, by config.json; image encoder: 8 heads and "
            "activation gelu, by config.json"
        )


@pytest.mark.parametrize("name", ["model.safetensors", ""])
def test_what_is_trained_is_read_again_with_the_same_heads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    library("accelerate")
    data, out = write_pairs(tmp_path / "pairs", 8), tmp_path / "out"
    weights = folder / "model.safetensors" if name else folder
    run = ["train", str(data), "--weights", str(weights), "--out", str(out), "--device", "cpu", "--held-out", "0"]
    assert main([*run, "--batch", "4", "--accumulate", "1", "--steps", "1", "--rate", "1e-7"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"{weights.name}: text encoder of ")
    assert "text encoder: 4 heads and activation gelu, by config.json" in told.splitlines()[0]
    before, after = load_full_clip(weights), load_full_clip(out / "clip.safetensors")
    assert (after.text.config, after.vision.config) == (before.text.config, before.vision.config)
    assert (after.text(IDS).projected - before.text(IDS).projected).abs().max() < 1e-3
    theirs = library("transformers").CLIPConfig.from_pretrained(out)
    assert (theirs.text_config.num_attention_heads, theirs.vision_config.num_attention_heads) == (4, 8)


def test_no_config_is_written_for_a_model_that_is_known_without() -> None:
    assert config_of(TextConfig(projection_dim=768), VISION_TOWERS["L/14"]) is None
    assert config_of(TextConfig(projection_dim=1024, activation="gelu"), VISION_TOWERS["g/14"]) is None
    assert config_of(TextConfig(projection_dim=768, activation="gelu"), VISION_TOWERS["L/14"]) is not None


def divided(folder: Path) -> dict[str, Any]:
    """A CLIP of transformers in several files; return their index."""
    saved(folder).save_pretrained(folder, max_shard_size="2MB")
    (folder / "model.safetensors").unlink()
    index = json.loads((folder / INDEX).read_text())
    assert len(set(index["weight_map"].values())) > 2
    return index


def test_a_model_in_several_files_is_that_of_one(folder: Path, tmp_path: Path) -> None:
    divided(tmp_path)
    one = load_full_clip(folder)
    for given in (tmp_path, tmp_path / INDEX):
        several = load_full_clip(given)
        assert several.origin == one.origin
        assert several.text(IDS).projected.equal(one.text(IDS).projected)
        assert several.vision(PIXELS).projected.equal(one.vision(PIXELS).projected)
        assert several.name == given.name


def listed(*names: str) -> dict[str, Any]:
    return {"weight_map": {str(number): name for number, name in enumerate(names)}}


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ({}, "its weight_map lists 0 files, expected 1 to 16"),
        ({"weight_map": []}, "its weight_map lists 0 files, expected 1 to 16"),
        (listed(*(f"{number}.safetensors" for number in range(17))), "its weight_map lists 17 files, expected 1 to 16"),
        (listed("../x.safetensors"), r"its weight_map lists '\.\./x\.safetensors', expected .safetensors files beside"),
        (listed("/etc/passwd"), "its weight_map lists '/etc/passwd', expected .safetensors files beside it"),
        (listed("x.bin"), r"its weight_map lists 'x\.bin', expected .safetensors files beside it"),
        ({"weight_map": {"x": 5}}, "its weight_map lists 5, expected .safetensors files beside it"),
        (listed("gone.safetensors"), r"a file that it lists is not there: .*gone\.safetensors"),
        (listed("\0.safetensors"), "a file that it lists is not there: "),
        (listed("copy.safetensors", "{first}"), "two of its files have the key '"),
        (listed("{first}"), "no CLIP image encoder in it|is missing; the file looks incomplete"),
        (listed("cut.safetensors"), "not a readable safetensors file, perhaps cut off in download"),
        (listed("folder.safetensors"), "it is a folder, a pipe or a device, and not a file"),
        ('{"weight_map": NaN}', "NaN is no number in JSON"),
        (sparse(10**9), f"it has 1,000,000,000 bytes, at most {MAX_BYTES:,} are read"),
        (lambda path: path.symlink_to(path), "it cannot be read|there is no such file"),
    ],
)
def test_an_index_that_no_model_can_have_is_refused_in_words(tmp_path: Path, index: Any, why: str) -> None:
    first = min(divided(tmp_path)["weight_map"].values())
    os.link(tmp_path / first, tmp_path / "copy.safetensors")
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / first).read_bytes()[:-9])
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / INDEX).unlink()
    if callable(index):
        index(tmp_path / INDEX)
    else:
        text = index if isinstance(index, str) else json.dumps(index)
        (tmp_path / INDEX).write_text(text.replace("{first}", first))
    with pytest.raises(CheckpointError, match=rf"index\.json: .*({why})"):
        load_full_clip(tmp_path)


def test_a_folder_without_weights_that_are_read_is_refused_in_words(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(of: Path = tmp_path) -> str:
        with pytest.raises(CheckpointError) as told:
            load_full_clip(of)
        return str(told.value)

    assert "none of model.safetensors, model.safetensors.index.json, open_clip_model.safetensors is in" in refused()
    (tmp_path / "text_encoder").mkdir()
    (tmp_path / "text_encoder" / "model.safetensors").touch()
    assert refused().endswith("or a folder that has one of these: 'text_encoder'")
    (tmp_path / "Clip.safetensors").touch()
    assert refused().endswith("or a folder that has one of these: 'Clip.safetensors', 'text_encoder'")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert "pytorch_model.bin: pickled checkpoints are not loaded, because loading one can run code" in refused()
    (tmp_path / "model.safetensors").symlink_to("pytorch_model.bin")  # whatever it is called
    assert "model.safetensors: it is not read: it is a pickle" in refused()
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to(folder / "model.safetensors")  # as in the cache of downloads
    assert load_full_clip(tmp_path).text.config.num_heads == 2  # whose config is not beside this name
    assert main(["stretch", str(tmp_path)]) == 1
    assert "name one .safetensors file, and not a folder" in capsys.readouterr().err
    (tmp_path / "loop").symlink_to("loop")
    assert "there is no such file" in refused(tmp_path / "loop") or "cannot be read" in refused(tmp_path / "loop")
