"""Folders for transformers, open_clip and diffusers: loaded by each, their features are ours."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import (
    clip_config,
    hugging_face_tensors,
    seeded_text_model,
    seeded_vision_model,
)
from weighted_clip.encoder.files.folders import Parts, files_for
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.models.clip import FullClip, load_full_clip
from weighted_clip.encoder.models.config import LIBRARIES, Activation
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.training import results

from ..encoder.files import write
from ..faults.disks import mounted
from ..libraries import library
from .models import TEXT, VISION
from .runs import Start

ALL = [word for name in LIBRARIES for word in ("--write-for", name)]
CAPTIONS = ["a small red cat", "Two Dogs, café!", "wow!!! 1999 it's", ""]


@pytest.fixture(scope="module")
def weights(wide_weights: Path) -> Path:
    return wide_weights


def padded(length: int) -> Tensor:
    rows = []
    for caption in CAPTIONS:
        ids = [49406, *(token.id for token in default_tokenizer()(caption)), 49407]
        rows.append(ids + [49407] * (length - len(ids)))
    return torch.tensor(rows)


def pictures(size: int) -> list[Image.Image]:
    """A wide one and a high one."""
    noise = torch.randint(256, (40, 70, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)).numpy()
    return [Image.fromarray(noise), Image.fromarray(noise.swapaxes(0, 1).copy())]


def other_weights(folder: Path, activation: Activation, eps: float, length: int, mlp_dim: int = 67) -> Path:
    """A CLIP of sizes that no released one has, with its config."""
    text = replace(TEXT, activation=activation, num_heads=2, layer_norm_eps=eps, context_length=length, mlp_dim=mlp_dim)
    vision = replace(VISION, activation=activation, num_heads=4, layer_norm_eps=eps, hidden_dim=48)
    tensors = {**hugging_face_tensors(seeded_text_model(text)), **hugging_face_tensors(seeded_vision_model(vision))}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(clip_config(text, vision)))
    return write(folder / "clip.safetensors", {**tensors, "logit_scale": torch.tensor(math.log(1 / 0.07))})


def ours(clip: FullClip, length: int, crop: str = "center") -> tuple[Tensor, Tensor]:
    size = clip.vision.config.image_size
    return clip.text_features(padded(length).tolist()), clip.image_features(preprocess(pictures(size), size, crop))


def by_transformers(folder: Path, length: int) -> tuple[Tensor, Tensor, float]:
    transformers = library("transformers", "4.46")
    model, told = transformers.CLIPModel.from_pretrained(folder, output_loading_info=True)
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    processor = transformers.CLIPProcessor.from_pretrained(folder)
    given = processor(
        text=CAPTIONS, images=pictures(0), return_tensors="pt", padding="max_length", truncation=True
    )  # to the tokenizer's own length
    assert torch.equal(given["input_ids"], padded(length))
    # newer versions resize by torchvision, whose pixels can be a step of 8 bits from Pillow's, and so from ours
    by_pillow = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    pixels = by_pillow.from_pretrained(folder)(pictures(0), return_tensors="pt")["pixel_values"]
    assert (pixels - given["pixel_values"]).abs().max() <= 1.01 / 255 / 0.26
    with torch.no_grad():
        found = model.eval()(**{**given, "pixel_values": pixels})
    return found.text_embeds, found.image_embeds, model.logit_scale.exp().item()


def by_open_clip(folder: Path, length: int) -> tuple[Tensor, Tensor, float]:
    open_clip = library("open_clip", "3.0")
    model, _, preprocessing = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    ids = open_clip.get_tokenizer(f"local-dir:{folder}")(CAPTIONS)
    assert ids.shape == (len(CAPTIONS), length)
    with torch.no_grad():
        images = torch.stack([preprocessing(picture) for picture in pictures(0)])
        images, texts, scale = model.eval()(images, ids)
    return texts, images, scale.item()


RUNS: Mapping[str, tuple[list[str], tuple[Any, ...] | None]] = {
    "as released": ([], None),
    "both towers, averaged": (["--towers", "both", "--ema", "0.5"], None),
    "stretched pictures": (["--crop", "stretch"], None),
    "other heads, gelu": ([], ("gelu", 1e-5, 77)),
    "other epsilon, longer": ([], ("quick_gelu", 1e-3, 99)),
    "captions alone": (["--objective", "mlm"], ("gelu", 1e-5, 77)),
}


@pytest.mark.parametrize(("options", "other"), RUNS.values(), ids=RUNS)
def test_each_library_loads_its_folder_and_has_our_features(
    start: Start, weights: Path, tmp_path: Path, options: list[str], other: tuple[Any, ...] | None
) -> None:
    transformers = library("transformers", "4.46")
    path = other_weights(tmp_path / "from", *other) if other else weights
    assert start("--weights", str(path), "--steps", "2", *options, *ALL) == 0
    out = tmp_path / "out"
    clip = load_full_clip(out / "clip.safetensors")
    length, crop = clip.text.config.context_length, "stretch" if "stretch" in options else "center"
    texts, images = ours(clip, length, crop)
    for by in (by_transformers, by_open_clip):
        found = by(out / by.__name__.removeprefix("by_"), length)
        assert (found[0] / found[0].norm(dim=-1, keepdim=True) - texts).abs().max() <= 1e-5
        assert (found[1] / found[1].norm(dim=-1, keepdim=True) - images).abs().max() <= 1e-5
        assert found[2] == pytest.approx(clip.logit_scale, rel=1e-6)
    folder = out / "diffusers"
    tokenizer = transformers.CLIPTokenizer.from_pretrained(folder, subfolder="tokenizer")
    ids = tokenizer(CAPTIONS, padding="max_length", return_tensors="pt").input_ids
    assert torch.equal(ids, padded(length))
    ours_of = clip.text(ids)
    for kind in (transformers.CLIPTextModel, transformers.CLIPTextModelWithProjection):
        model, told = kind.from_pretrained(folder, subfolder="text_encoder", output_loading_info=True)
        assert not told["missing_keys"]
        with torch.no_grad():
            found = model.eval()(ids)
        assert (found.last_hidden_state - ours_of.hidden).abs().max() <= 1e-5
    assert (found.text_embeds - ours_of.projected).abs().max() <= 1e-5
    for name in ("transformers/model", "open_clip/open_clip_model"):  # read by us, too
        again = load_full_clip(out / f"{name}.safetensors")
        assert (again.text.config, again.vision.config) == (clip.text.config, clip.vision.config)
        assert all(
            torch.equal(found, mine) for found, mine in zip(ours(again, length, crop), (texts, images), strict=True)
        )


def test_diffusers_reads_the_folder_as_parts_of_a_pipeline(start: Start, tmp_path: Path) -> None:
    diffusers, transformers = library("diffusers"), library("transformers", "4.46")
    assert start("--steps", "1", "--write-for", "diffusers") == 0
    folder = tmp_path / "out" / "diffusers"
    index = {"_class_name": "DiffusionPipeline", "text_encoder": ["transformers", "CLIPTextModel"]}
    (folder / "model_index.json").write_text(json.dumps({**index, "tokenizer": ["transformers", "CLIPTokenizer"]}))

    class Pipeline(diffusers.DiffusionPipeline):
        def __init__(self, text_encoder: Any, tokenizer: Any) -> None:
            super().__init__()
            self.register_modules(text_encoder=text_encoder, tokenizer=tokenizer)

    pipeline = Pipeline.from_pretrained(folder)
    assert isinstance(pipeline.text_encoder, transformers.CLIPTextModel)
    with torch.no_grad():
        found = pipeline.text_encoder(padded(77)).last_hidden_state
    clip = load_full_clip(tmp_path / "out" / "clip.safetensors")
    assert (found - clip.text(padded(77)).hidden).abs().max() <= 1e-5


def test_a_folder_of_the_same_run_is_replaced_whole_and_of_another_is_kept(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, options = tmp_path / "out" / "transformers", ["--steps", "2"]
    folder.mkdir(parents=True)
    assert start(*options, "--write-for", "transformers") == 1
    assert "there is a run in it; go on with it by --resume, or choose another folder" in capsys.readouterr().err
    assert not any(folder.iterdir())
    folder.rmdir()
    assert start(*options, "--write-for", "open_clip", "--write-for", "open_clip") == 0
    assert not folder.exists()
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.safetensors")}
    (folder / "more").mkdir(parents=True)
    assert start(*options, "--resume", "--merge", "0.5", "--write-for", "transformers") == 0
    assert not (folder / "more").exists()
    whole = load_file(tmp_path / "out" / "clip.safetensors")
    assert all(torch.equal(tensor, whole[key]) for key, tensor in load_file(folder / "model.safetensors").items())
    assert start(*options, "--resume") == 0  # without folders and at full strength: the tensors are as they were
    for name, data in before.items():
        again = load_file(tmp_path / "out" / name)
        (tmp_path / name).write_bytes(data)
        assert all(torch.equal(tensor, again[key]) for key, tensor in load_file(tmp_path / name).items())
    assert not [path for path in tmp_path.rglob("*.tmp*") if "weighted-clip" in path.name]


def test_a_full_disk_leaves_the_old_folder_or_none(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = results.files_for

    def files_for(name: Any, clip: Any) -> Any:
        filler = tmp_path / "out" / "filler"
        with filler.open("wb") as file, contextlib.suppress(OSError):
            for _ in range(200):
                file.write(bytes(1 << 20))
                file.flush()
        os.truncate(filler, filler.stat().st_size - (5 << 20))
        return real(name, clip)

    monkeypatch.setattr(results, "files_for", files_for)
    out, options = tmp_path / "out", ["--steps", "1", "--held-out", "0"]
    with mounted(out, "120m"):
        for is_first in (True, False):
            assert start(*options, *([] if is_first else ["--resume"]), "--write-for", "transformers") == 1
            told = capsys.readouterr().err
            assert f"{out / 'transformers'} cannot be written: " in told
            assert "space" in told
            assert (out / "clip.safetensors").is_file()
            assert not [path for path in out.iterdir() if path.name.endswith(".tmp")]
            if is_first:
                assert not (out / "transformers").exists()
                (out / "transformers").mkdir()
                (out / "transformers" / "old").touch()
            else:
                assert [path.name for path in (out / "transformers").iterdir()] == ["old"]
            (out / "filler").unlink()


def test_a_clip_that_a_library_cannot_express_is_refused_before_training(
    start: Start, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*options: str) -> str:
        assert start("--steps", "1", *options) == 1
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    for name in LIBRARIES:
        told = refused("--new-text", "--positions", "rotary", "--write-for", name)
        assert f"--write-for {name}: " in told
        assert "its text encoder has rotary positions" in told
    for name in ("transformers", "open_clip"):
        told = refused("--crop", "letterbox", "--write-for", name)
        assert "--crop letterbox adds bars of the mean colour to pictures" in told
    assert "leave out --write-for" in refused("--word", "red", "--write-for", "diffusers")
    path = other_weights(tmp_path / "from", "gelu", 1e-5, 77)
    config = json.loads((path.parent / "config.json").read_text())
    config["vision_config"]["hidden_act"] = "quick_gelu"
    (path.parent / "config.json").write_text(json.dumps(config))
    told = refused("--weights", str(path), "--write-for", "open_clip")
    assert "its activations differ: gelu in the text encoder, quick_gelu in the image encoder" in told
    with pytest.raises(SystemExit):
        start("--write-for", "timm")
    assert "invalid choice: 'timm'" in capsys.readouterr().err


def test_a_text_encoder_without_projection_is_one_of_transformers_without(tmp_path: Path) -> None:
    transformers = library("transformers", "4.46")
    text, vision = seeded_text_model(replace(TEXT, projection_dim=None, pad_id=0)), seeded_vision_model(VISION)
    parts = Parts(text, dict(text.named_parameters()), vision, {}, torch.zeros(()), "center")
    results.write_folder(tmp_path / "diffusers", files_for("diffusers", parts), {})
    model, told = transformers.CLIPTextModel.from_pretrained(
        tmp_path / "diffusers", subfolder="text_encoder", output_loading_info=True
    )
    assert not (told["missing_keys"] or told["unexpected_keys"])
    tokenizer = transformers.CLIPTokenizer.from_pretrained(tmp_path / "diffusers", subfolder="tokenizer")
    assert tokenizer("a", padding="max_length").input_ids == [49406, 320, 49407, *[0] * 74]
    with torch.no_grad():
        found = model.eval()(padded(77))
    assert (found.last_hidden_state - text(padded(77)).hidden).abs().max() <= 1e-5
