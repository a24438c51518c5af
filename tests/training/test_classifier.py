"""Classifiers of images and texts: beside plain loops over transformers' towers; what is learned, said and refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import Tensor
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_text_model, seeded_vision_model
from weighted_clip.encoder.image_file import open_image
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.output.export import save_tensors
from weighted_clip.studio.training.data import image_inputs as images
from weighted_clip.studio.training.data.captions import token_ids
from weighted_clip.studio.training.objectives.classifier import (
    CLASSIFIER_NAME,
    Classifier,
    load_classifier,
    probabilities,
)

from ..libraries import library
from .models import TEXT, VISION
from .runs import Start, log_of, tensors_of

COLORS = {"blue": (20, 30, 220), "green": (30, 200, 40), "red": (220, 40, 30)}
KINDS = {"texts": ["--objective", "classify"], "images": ["--objective", "classify", "--towers", "image"]}
WHOLE = ["--held-out", "0", "--batch", "24", "--accumulate", "1", "--steps", "5"]
"""All examples in each batch, so that their order changes nothing."""


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight pictures of each color, with a caption that names it."""
    folder, rng = tmp_path_factory.mktemp("colors"), torch.Generator().manual_seed(0)
    for name, color in COLORS.items():
        (folder / name / "more").mkdir(parents=True)
        for number in range(8):
            noise = torch.randint(-20, 21, (28, 28, 3), generator=rng) + torch.tensor(color)
            place = folder / name / ("more" if number % 2 else "") / f"{number}.png"
            Image.fromarray(noise.byte().numpy()).save(place)
            place.with_suffix(".txt").write_text(f"{['a', 'the', 'one', 'my'][number % 4]} {name} thing {number}")
    return folder


@pytest.fixture
def run(start: Start, colors: Path) -> Callable[..., int]:
    """Runs the command for a kind of examples."""

    def started(kind: str, *options: str, out: str = "out", data: Path = colors) -> int:
        return start(*KINDS[kind], *options, out=out, data=data)

    return started


def inputs_of(folder: Path, kind: str) -> tuple[Tensor, Tensor]:
    """All examples of a folder, and the numbers of their classes."""
    paths = sorted(folder.rglob("*.png"))
    targets = torch.tensor([sorted(COLORS).index(path.relative_to(folder).parts[0]) for path in paths])
    if kind == "images":
        return preprocess([open_image(path) for path in paths], VISION.image_size), targets
    texts = [path.with_suffix(".txt").read_text() for path in paths]
    return token_ids(texts, default_tokenizer(), TEXT), targets


def reference_of(kind: str) -> Any:
    """The tower by transformers, with the weights of the fixture."""
    transformers = library("transformers", "4.46")
    config = TEXT if kind == "texts" else VISION
    sizes = {"hidden_size": config.hidden_dim, "intermediate_size": config.mlp_dim, "hidden_act": "quick_gelu"}
    sizes |= {"num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads}
    if kind == "texts":
        model = transformers.CLIPTextModel(transformers.CLIPTextConfig(**sizes, eos_token_id=TEXT.eos_id))
        tensors = hugging_face_tensors(seeded_text_model(TEXT))
    else:
        more = {"image_size": VISION.image_size, "patch_size": VISION.patch_size}
        model = transformers.CLIPVisionModel(transformers.CLIPVisionConfig(**sizes, **more))
        tensors = hugging_face_tensors(seeded_vision_model(VISION))
    with_prefix = any(name.startswith(("text_model.", "vision_model.")) for name in model.state_dict())
    given = {
        key if with_prefix else key.partition(".")[2]: one for key, one in tensors.items() if "projection" not in key
    }
    missing, unexpected = model.load_state_dict(given, strict=False)
    assert not unexpected and not [name for name in missing if not name.endswith("position_ids")]
    return model.eval()


# ---- beside transformers


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_gradients_are_those_of_a_linear_layer_on_transformers_pooled_vector(
    kind: str, colors: Path
) -> None:
    tower = seeded_text_model(TEXT) if kind == "texts" else seeded_vision_model(VISION)
    ours = Classifier(tower.requires_grad_(True), 3).double()
    torch.nn.init.normal_(ours.head.weight, generator=torch.Generator().manual_seed(1))
    reference, (inputs, targets) = reference_of(kind).double(), inputs_of(colors, kind)
    weight, bias = (one.detach().clone().requires_grad_() for one in (ours.head.weight, ours.head.bias))
    inputs = inputs if kind == "texts" else inputs.double()
    logits = functional.linear(reference(inputs).pooler_output, weight, bias)
    found = ours(inputs)
    assert (found - logits).abs().max() <= 1e-10
    functional.cross_entropy(logits, targets).backward()
    functional.cross_entropy(found, targets).backward()
    for one, other in ((ours.head.weight, weight), (ours.head.bias, bias)):
        assert one.grad is not None and other.grad is not None
        assert (one.grad - other.grad).abs().max() <= 1e-10
    gradients = {key.partition(".")[2]: one for key, one in hugging_face_gradients(ours).items()}
    theirs = {
        name.removeprefix("text_model.").removeprefix("vision_model."): one.grad
        for name, one in reference.named_parameters()
    }
    assert gradients.keys() == theirs.keys()
    assert max((gradients[name] - one).abs().max() for name, one in theirs.items()) <= 1e-10


def hugging_face_gradients(model: Classifier) -> dict[str, Tensor]:
    return hugging_face_tensors(model.tower, {name: one.grad for name, one in model.tower.named_parameters()})


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_a_plain_loop_over_transformers(
    kind: str, run: Callable[..., int], colors: Path, tmp_path: Path
) -> None:
    rates = {"head": 2e-2, "layers" if kind == "texts" else "image": 1e-3}
    assert run(kind, *WHOLE, "--rate-of", "head=2e-2", "--warmup", "2", "--clip", "0.5") == 0
    tower, (inputs, targets) = reference_of(kind), inputs_of(colors, kind)
    head = torch.nn.Linear((TEXT if kind == "texts" else VISION).hidden_dim, 3)
    for one in head.parameters():
        torch.nn.init.zeros_(one)
    groups = [
        {
            "params": [one for one in module.parameters() if (one.ndim > 1) == is_matrix],
            "lr": rate,
            "weight_decay": decay,
        }
        for module, rate in ((tower, 1e-3), (head, rates["head"]))
        for is_matrix, decay in ((True, 0.1), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-6)
    course = LambdaLR(
        optimizer, lambda step: (step + 1) / 2 if step < 2 else (1 + math.cos(math.pi * (step - 2) / 3)) / 2
    )
    losses, shares = [], []
    for _ in range(5):
        logits = head(tower(inputs).pooler_output)
        loss = functional.cross_entropy(logits, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*tower.parameters(), *head.parameters()], 0.5)
        optimizer.step()
        course.step()
        losses.append(loss.item())
        shares.append((logits.argmax(-1) == targets).double().mean().item())
    entries = [entry for entry in log_of(tmp_path / "out") if "loss" in entry]
    assert [entry["loss"] for entry in entries] == pytest.approx(losses, abs=1e-4)
    assert [entry["accuracy"] for entry in entries] == pytest.approx(shares)
    assert losses[0] == pytest.approx(math.log(3))
    trained = load_classifier(tmp_path / "out")
    assert (trained.model(inputs) - head(tower(inputs).pooler_output)).abs().max() <= 2e-3


def test_transformers_own_classifier_loads_tower_and_head(
    run: Callable[..., int], colors: Path, tmp_path: Path
) -> None:
    """It takes the mean of the patches in place of [CLS], so only what comes before its head is compared."""
    transformers = library("transformers", "4.46")
    assert run("images", *WHOLE) == 0
    folder = tmp_path / "out"
    (folder / CLASSIFIER_NAME).rename(folder / "model.safetensors")
    model, told = transformers.CLIPForImageClassification.from_pretrained(
        folder, num_labels=3, output_loading_info=True
    )
    assert not any(told[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    (folder / "model.safetensors").rename(folder / CLASSIFIER_NAME)
    pixels, _ = inputs_of(colors, "images")
    ours, tower = load_classifier(folder).model, model.vision_model
    with torch.no_grad():
        pooled = getattr(tower, "vision_model", tower)(pixels).pooler_output
    assert (ours(pixels) - model.classifier(pooled)).abs().max() <= 1e-5


# ---- what is learned, written and used


@pytest.mark.parametrize("kind", KINDS)
def test_colors_are_learned_and_named(
    kind: str,
    run: Callable[..., int],
    colors: Path,
    wide_weights: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--steps", "40", "--held-out", "6", "--batch", "6", "--rate-of", "head=1e-2", "--seed", "3"]
    assert run(kind, *options, "--ema", "0.5", "--weights", str(wide_weights)) == 0
    told = capsys.readouterr().out
    assert "3 classes: blue (8), green (8), red (8)" in told
    assert f"18 {kind} to train on, 6 held out, 40 steps" in told
    log = log_of(tmp_path / "out")
    assert log[-1]["held-out accuracy"] == 1.0
    assert log[-1]["held-out loss"] < 0.3 < log[0]["held-out loss"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert all(f'src="{name}.png"' in page for name in ("accuracy", "loss"))
    assert "held-out accuracy<td>" in page
    with safe_open(tmp_path / "out" / CLASSIFIER_NAME, "pt") as file:
        keys, about = set(file.keys()), file.metadata()
    assert {key for key in keys if key.startswith("classifier.")} == {"classifier.weight", "classifier.bias"}
    assert {key.partition(".")[0] for key in keys} == {
        "classifier",
        "text_model" if kind == "texts" else "vision_model",
    }
    assert json.loads(about["classes"]) == ["blue", "green", "red"]

    model, (inputs, _) = load_classifier(tmp_path / "out").model, inputs_of(colors, kind)
    paths = sorted(colors.rglob("*.png"))
    given = [str(path) if kind == "images" else path.with_suffix(".txt").read_text() for path in paths]
    assert main(["classify", *given, "--run", str(tmp_path / "out"), "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    chances = (functional.linear(model.tower(inputs).pooled, model.head.weight, model.head.bias)).softmax(-1)
    for path, one, line, row in zip(paths, given, lines, chances, strict=True):
        (best, second), (first, other) = row.topk(2).values.tolist(), row.topk(2).indices.tolist()
        names = ["blue", "green", "red"]
        assert line == f"{one}: {names[first]} {best:.1%}, {names[other]} {second:.1%}"
        assert names[first] == path.relative_to(colors).parts[0]


def test_pictures_are_cropped_as_in_training(run: Callable[..., int], colors: Path, tmp_path: Path) -> None:
    assert run("images", "--steps", "1", "--crop", "stretch", "--random-crop", "0.5", "--mirror") == 0
    trained = load_classifier(tmp_path / "out")
    assert trained.crop == "stretch"
    wide = Image.new("RGB", (90, 30), "white")
    wide.paste("red", (0, 0, 30, 30))
    wide.save(tmp_path / "wide.png")
    logits = trained.model(preprocess([wide], VISION.image_size, "stretch"))[0]
    names = {name: value for name, value in probabilities(trained, str(tmp_path / "wide.png"))}
    assert [names[name] for name in trained.classes] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-6)


def test_a_frozen_tower_is_a_linear_probe(run: Callable[..., int], weights: Path, tmp_path: Path) -> None:
    assert run("images", "--steps", "3", "--rate-of", "image=0") == 0
    before, after = tensors_of(weights), tensors_of(tmp_path / "out" / CLASSIFIER_NAME)
    assert all(torch.equal(before[key], after[key]) for key in after if key.startswith("vision_model."))
    assert after["classifier.weight"].any()


# ---- bad input


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_teach_no_classes_are_refused_in_a_line(
    kind: str, run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"

    def add(name: str, count: int = 1) -> None:
        for number in range(count):
            path = data / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (30, 30)).save(path)
            path.with_suffix(".txt").write_text(f"text {number}")

    def refused(*options: str) -> str:
        capsys.readouterr()
        assert run(kind, "--steps", "1", "--batch", "2", *options, data=data) == 1
        told = capsys.readouterr().err
        assert len(told.splitlines()) == 1
        return told

    add("", 3)
    assert "3 left out: in no folder, so it has no class (0.png, 1.png, 2.png), 0 of them held out" in refused()
    add("cat", 4)
    assert f"all {kind} are of one class, 'cat': give a folder with a folder for each of two classes" in refused()
    add("dog")
    told = refused("--held-out", "4", "--seed", "1")
    assert f"has 1 {kind}, all of them held out" in told or "has 4" in told
    (data / "none").mkdir()
    (data / "bad").mkdir()
    for suffix in ("png", "txt"):
        (data / "bad" / f"0.{suffix}").write_bytes(b"\xff" * 9)
    capsys.readouterr()
    assert run(kind, "--steps", "1", "--held-out", "0", data=data) == 0
    told = capsys.readouterr().out
    assert "2 classes: cat (4), dog (1)" in told
    assert "3 left out: in no folder" in told
    for name in ("none", "bad"):
        assert f"{name}: nothing in this folder can be used, so it is no class" in told
    assert "1 left out: " in told


def test_pictures_without_texts_are_answered_with_the_option_for_them(
    run: Callable[..., int], colors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data" / "red").mkdir(parents=True)
    Image.new("RGB", (30, 30)).save(tmp_path / "data" / "red" / "1.png")
    assert run("texts", "--steps", "1", data=tmp_path / "data") == 1
    assert "no .txt, .caption or .json beside it (red/1.png), 0 of them held out" in (told := capsys.readouterr().err)
    assert "--towers image reads the pictures" in told


def test_classes_of_shards_are_their_folders(
    run: Callable[..., int], colors: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import tarfile

    (tmp_path / "shards").mkdir()
    for number, names in enumerate((["blue", "red"], ["green", "red"])):
        with tarfile.open(tmp_path / "shards" / f"{number}.tar", "w") as file:
            for name in names:
                file.add(colors / name, f"./{name}" if number else name)
    assert run("images", "--steps", "1", "--held-out", "0", data=tmp_path / "shards") == 0
    assert "3 classes: blue (8), green (8), red (16)" in capsys.readouterr().out


def test_pixels_that_are_not_finite_end_a_run_with_the_last_good_weights(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real: Any = images.Images._pixels

    def spoiled(self: Any, example: Any, epoch: int | None = None) -> Any:
        return real(self, example, epoch) * (1.0 if epoch is None else math.nan)  # but where it is measured

    monkeypatch.setattr(images.Images, "_pixels", spoiled)
    assert run("images", "--steps", "5") == 1
    assert "the loss of step 3 is nan, after 2 such steps" in capsys.readouterr().err
    assert all(one.isfinite().all() for one in tensors_of(tmp_path / "out" / CLASSIFIER_NAME).values())


def test_what_is_no_classifier_or_cannot_be_classified_is_said(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("images", "--steps", "1") == 0
    folder, picture = tmp_path / "out", tmp_path / "a.png"
    Image.new("RGB", (30, 30)).save(picture)

    def refused(*given: str) -> str:
        capsys.readouterr()
        assert main(["classify", *(given or [str(picture)]), "--run", str(folder)]) == 1
        told = capsys.readouterr().err
        assert len(told.splitlines()) == 1
        return told

    assert "nowhere.png: " in refused("nowhere.png")
    assert "--top must be at least 1, got 0" in refused(str(picture), "--top", "0")
    path = folder / CLASSIFIER_NAME
    with safe_open(path, "pt") as file:
        whole, about = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    weight = whole["classifier.weight"]
    for tensors, metadata, told in (
        (whole, {**about, "classes": "[1, 2, 3]"}, "its metadata name no classes"),
        (whole, {**about, "classes": "[" * 99999}, "is no classifier"),
        (whole, {**about, "classes": '["a"]'}, "its head.weight is a tensor of float32 [3, 64], and this run has a te"),
        (whole, {}, "its metadata name no classes"),
        (whole, {**about, "crop": "no"}, "its metadata name no classes, or no crop of center, letterbox, stretch"),
        ({**whole, "classifier.weight": weight * math.nan}, about, "numbers that are not finite"),
        ({**whole, "classifier.weight": weight[:, 1:].contiguous()}, about, "[3, 63]"),
        ({**whole, "classifier.weight": weight.half()}, about, "float16"),
        ({key: one for key, one in whole.items() if key != "classifier.bias"}, about, "its head lacks 'bias'"),
        ({key: one for key, one in whole.items() if "layers.1.mlp" not in key}, about, "missing"),
        ({"x": weight}, about, "no CLIP text encoder in it"),
    ):
        save_tensors(tensors, path, metadata)
        assert told in refused()
    path.write_bytes(b"\xff" * 8)
    assert CLASSIFIER_NAME in refused()
    path.unlink()
    assert "give the folder of a finished run of train --objective classify" in refused()


def test_a_long_text_is_cut_as_in_training_and_that_is_said(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("texts", "--steps", "2") == 0
    long = "red " * 90
    assert main(["classify", long, long + "blue", "--run", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert "2 captions have more than 75 tokens, and are read up to there" in told.err
    one, other = (line.rpartition(": ")[2] for line in told.out.splitlines()[-2:])
    assert one == other
