"""Measurements by open_clip's own code: evaluation, zero-shot, schedules, locked towers."""

from __future__ import annotations

import copy
import importlib
import math
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from weighted_clip.encoder.files.folders import Parts, files_for
from weighted_clip.encoder.foreign_text import parse_json
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.similarity import ContrastiveLoss
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.training.data.examples import Example
from weighted_clip.studio.training.metrics import Measure
from weighted_clip.studio.training.objectives.zero_shot import templates_of
from weighted_clip.studio.training.optimizer import Rates, factor, groups_of, optimizer_of
from weighted_clip.studio.training.options import TrainOptions
from weighted_clip.studio.training.results import write_folder
from weighted_clip.studio.training.scaling.grad_cache import Features

from ..libraries import library
from .models import towers
from .runs import Start, log_of
from .test_data import write_shard

TEMPLATES = ["a photo of a {}.", "a drawing of the {c}", "{}"]
CLASSES = ("blue_dog", "green", "old cat", "red", "small", "tree", "zebra")


def trainer(name: str) -> Any:
    """A module of open_clip's training."""
    library("open_clip", "3")
    return importlib.import_module(f"open_clip_train.{name}")


# ---- evaluation on pairs


class Stub:
    """Towers whose features are given with the images, and what open_clip calls a model, of the same ones."""

    def __init__(self, scale: float) -> None:
        self.loss = ContrastiveLoss(1 / scale).double()
        self.text = SimpleNamespace(config=SimpleNamespace(eos_id=9))

    def __call__(self, given: Any, texts: Tensor | None = None) -> Any:
        if texts is None:
            return Features(given.images[:, 0], given.images[:, 1])
        units = [torch.nn.functional.normalize(one, dim=-1) for one in (given, texts)]
        return {"image_features": units[0], "text_features": units[1], "logit_scale": 1 / self.loss.temperature}

    def eval(self) -> None:
        pass


class Loader(list[Any]):
    """Batches, as open_clip counts them."""

    num_samples = 0


@pytest.mark.parametrize("count", [37, 50])  # at 50 both medians lie between two ranks
def test_loss_ranks_and_recall_are_open_clip_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    train = trainer("train")
    torch.manual_seed(0)
    texts = torch.randn(count, 12, dtype=torch.float64)
    images = texts + 2 * torch.randn(count, 12, dtype=torch.float64)
    model, batch = Stub(30.0), 16
    held = [Example(str(number), Path(), (str(number),), number=number) for number in range(count)]
    both = torch.stack([texts, images], 1)

    def readable(some: list[Example], size: int) -> Any:
        return ((some[start : start + size], both[start : start + size]) for start in range(0, len(some), size))

    provider = SimpleNamespace(readable=readable)

    def ids_of(captions: Any) -> Tensor:
        return torch.tensor([[8, int(caption), 9] for caption in captions])

    measured = Measure(held, provider, ids_of, batch, {})
    monkeypatch.setattr("weighted_clip.studio.training.metrics.rows_of", lambda *_: [])
    ours = measured(model)
    monkeypatch.setattr("weighted_clip.studio.training.metrics.ROWS_AT_ONCE", 10)
    assert measured(model) == pytest.approx(ours, abs=1e-12)
    batches = [(images[start : start + batch], texts[start : start + batch]) for start in range(0, count, batch)]
    arguments = Namespace(
        rank=0,
        device="cpu",
        precision="fp32",
        val_frequency=1,
        epochs=1,
        distributed=False,
        save_logs=False,
        wandb=False,
    )
    theirs = train.evaluate(model, {"val": SimpleNamespace(dataloader=Loader(batches))}, 1, arguments)
    assert ours.pop("held-out loss") == pytest.approx(theirs["clip_val_loss"], abs=1e-9)
    assert len(ours) == 10
    for name, value in ours.items():
        direction, _, what = name.partition(" to ")
        direction, what = f"{direction} to {what.split()[0]}".replace(" ", "_"), " ".join(what.split()[1:])
        key = f"{direction}_{what.replace('@', 'R@').replace(' ', '_')}"
        assert value == pytest.approx(theirs[key], abs=1e-12), name


# ---- zero-shot


def write_classes(folder: Path) -> dict[str, list[bytes]]:
    """Pictures of noise in a folder for each class, and their bytes."""
    rng = torch.Generator().manual_seed(1)
    found: dict[str, list[bytes]] = {}
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for picture in range(4 + number):
            noise = torch.randint(256, (9, 7, 3), dtype=torch.uint8, generator=rng).numpy()
            path = folder / name / f"{picture}.png"
            Image.fromarray(noise).resize((40, 33), Image.Resampling.NEAREST).save(path)
            found.setdefault(name, []).append(path.read_bytes())
    return found


def by_open_clip(
    monkeypatch: pytest.MonkeyPatch, weights: Path, folder: Path, data: Path
) -> tuple[float, float, list[list[int]]]:
    """Top-1, top-5 and confusion of the same CLIP by open_clip's own evaluation."""
    open_clip, zero_shot = library("open_clip", "3"), trainer("zero_shot")
    clip = load_full_clip(weights)
    numbers = {"logit_scale": torch.tensor(clip.logit_scale).log()}
    text, vision = (dict(model.named_parameters()) for model in (clip.text, clip.vision))
    write_folder(folder, files_for("open_clip", Parts(clip.text, text, clip.vision, vision, numbers, "center")), {})
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval().output_dict = True
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    names = [name.replace("_", " ") for name in CLASSES]
    filled = [lambda name, text=text: text.replace("{c}", "{}").format(name) for text in TEMPLATES]
    classifier = open_clip.build_zero_shot_classifier(model, tokenizer, names, filled, num_classes_per_batch=3)
    pairs = [
        (preprocess(Image.open(path)), number)
        for number, name in enumerate(CLASSES)
        for path in sorted((data / name).iterdir())
        if path.suffix == ".png"
    ]
    images, labels = torch.stack([image for image, _ in pairs]), torch.tensor([label for _, label in pairs])
    arguments = Namespace(device="cpu", precision="fp32", batch_size=16)
    batches = [*zip(images.split(16), labels.split(16), strict=True)]
    # numpy 2.4 refuses what it does to arrays of one number
    monkeypatch.setattr(zero_shot, "float", lambda array: array.item(), raising=False)
    top1, top5 = zero_shot.run(model, classifier, batches, arguments)
    with torch.no_grad():
        nearest = (model.encode_image(images, normalize=True) @ classifier).argmax(1)
    confusion = torch.zeros(len(names), len(names), dtype=torch.int64)
    confusion.index_put_((labels, nearest), torch.ones_like(labels), accumulate=True)
    return top1, top5, confusion.tolist()


def test_zero_shot_counts_are_open_clip_s(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = write_classes(tmp_path / "data")
    (tmp_path / "data" / "empty").mkdir()
    (tmp_path / "data" / "red" / "bad.jpg").write_bytes(b"no image")
    (tmp_path / "templates.txt").write_text("\n".join(TEMPLATES))
    words = ["evaluate", "--weights", str(weights), "--device", "cpu", "--templates", str(tmp_path / "templates.txt")]
    given = ["--zero-shot", str(tmp_path / "data"), "--out", str(tmp_path / "found.json")]
    assert main([*words, *given]) == 0
    told = capsys.readouterr().out
    found = parse_json((tmp_path / "found.json").read_text())
    top1, top5, confusion = by_open_clip(monkeypatch, weights, tmp_path / "open_clip", tmp_path / "data")
    assert (found["zero-shot top-1"], found["zero-shot top-5"]) == (top1, top5)
    assert found["confusion"] == confusion
    assert 0 < top1 < top5 < 1
    assert "empty: nothing in this folder can be used, so it is no class" in told
    assert "1 left out: no image of a kind that is read" in told and "red/bad.jpg" in told
    assert f"  old cat: {confusion[2][2]} of 6" in told
    members: dict[str, bytes | str] = {}
    for number, name in enumerate(CLASSES):
        for one, content in enumerate(pictures[name]):
            members |= {f"{number}{one}.png": content, f"{number}{one}.cls": str(number)}
    (tmp_path / "shards").mkdir()
    write_shard(tmp_path / "shards" / "0.tar", members)
    (tmp_path / "shards" / "classnames.txt").write_text("\n".join(name.replace("_", " ") for name in CLASSES))
    assert main([*words, "--zero-shot", str(tmp_path / "shards"), "--out", str(tmp_path / "found.json")]) == 0
    assert parse_json((tmp_path / "found.json").read_text())["confusion"] == confusion


@pytest.mark.parametrize(("text", "told"), [("a cat", "'a cat' has no place for a class"), ("", "no template in it")])
def test_templates_need_a_place_for_the_class(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "templates.txt").write_text(text)
    with pytest.raises(ValueError, match=told):
        templates_of(tmp_path / "templates.txt")


def test_recall_of_pairs_is_that_of_transformers(weights: Path, pairs: Path, tmp_path: Path) -> None:
    transformers = library("transformers", "4.46")
    out = tmp_path / "found.json"
    words = ["evaluate", "--weights", str(weights), "--device", "cpu", "--pairs", str(pairs), "--batch", "7"]
    assert main([*words, "--out", str(out)]) == 0
    found = parse_json(out.read_text())
    clip = load_full_clip(weights)
    numbers = {"logit_scale": torch.tensor(clip.logit_scale).log()}
    text, vision = (dict(model.named_parameters()) for model in (clip.text, clip.vision))
    parts = Parts(clip.text, text, clip.vision, vision, numbers, "center")
    write_folder(tmp_path / "clip", files_for("transformers", parts), {})
    model = transformers.CLIPModel.from_pretrained(tmp_path / "clip").eval()
    processor = transformers.CLIPProcessor.from_pretrained(tmp_path / "clip")
    files = sorted(pairs.glob("*.png"))
    captions = [path.with_suffix(".txt").read_text().splitlines()[0] for path in files]
    by_pillow = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    pixels = by_pillow.from_pretrained(tmp_path / "clip")([Image.open(path) for path in files], return_tensors="pt")
    ids = processor.tokenizer(captions, return_tensors="pt", padding="max_length")
    with torch.no_grad():
        theirs = model(**ids, **pixels)
    for name, scores in (("text to image", theirs.logits_per_text), ("image to text", theirs.logits_per_image)):
        places = (scores.argsort(descending=True) == torch.arange(len(files)).unsqueeze(1)).int().argmax(1)
        for at in (1, 5, 10):
            assert found[f"{name} @{at}"] == pytest.approx((places < at).double().mean().item(), abs=1e-12)
    assert found["pairs"] == len(files)


# ---- in training


def test_a_run_is_measured_on_other_pairs_and_by_classifying(
    start: Start, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(tmp_path / "classes")
    options = ["--val", str(pairs), "--zero-shot", str(tmp_path / "classes"), "--val-every", "2", "--towers", "both"]
    assert start("--steps", "4", "--batch", "16", "--accumulate", "1", *options) == 0
    told = capsys.readouterr().out
    assert "32 images of --val, of 32, in the training, too: 000.png, 001.png, 002.png, ..." in told
    assert "32 pairs to train on, 0 held out" in told
    entries = log_of(tmp_path / "out")
    measured = [entry for entry in entries if "val: loss" in entry]
    assert [entry["step"] for entry in measured] == [0, 2, 4]
    assert {"val: text to image @10", "val: image to text median rank", "zero-shot top-5"} < measured[0].keys()
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for name in ("loss", "val-recall", "val-rank", "zero-shot", "pace"):
        assert f'src="{name}.png"' in page and f'srcset="{name}-dark.png"' in page
        assert (tmp_path / "out" / f"{name}-dark.png").is_file()
    assert "<td>val: loss<td>" in page
    timed = [entry for entry in log_of(tmp_path / "out", is_timed=True) if "loss" in entry]
    assert all(entry["pairs/s"] > 0 and entry["seconds waited"] >= 0 for entry in timed)


def test_names_of_held_out_pairs_are_written_down(start: Start, tmp_path: Path) -> None:
    assert start("--steps", "1", "--held-out", "5") == 0
    names = (tmp_path / "out" / "held_out.txt").read_text().splitlines()
    assert len({*names}) == 5
    assert {*names} < {f"{number:03}.png" for number in range(32)}


def test_siglip_s_bias_is_learned_written_and_read_again(start: Start, tmp_path: Path) -> None:
    open_clip = library("open_clip", "3")
    options = ["--steps", "2", "--loss", "siglip", "--batch", "4", "--towers", "both"]
    assert start(*options, "--write-for", "open_clip") == 0
    clip = load_full_clip(tmp_path / "out" / "clip.safetensors")
    assert clip.logit_bias is not None and clip.logit_bias != -10
    assert clip.logit_bias == pytest.approx(-10, abs=0.01)
    model, *_ = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'out' / 'open_clip'}")
    assert model.logit_bias.item() == pytest.approx(clip.logit_bias, abs=1e-6)
    assert start(*options, "--weights", str(tmp_path / "out" / "clip.safetensors"), "--steps", "1", out="more") == 0


# ---- schedules, optimizers, locked towers


def test_schedules_are_open_clip_s() -> None:
    scheduler = trainer("scheduler")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    cosine = scheduler.cosine_lr(optimizer, 1.0, 3, 40)
    constant = scheduler.const_lr(optimizer, 1.0, 3, 40)
    cooled = scheduler.const_lr_cooldown(optimizer, 1.0, 3, 40, 15, 2.0, 0.1)
    for step in range(40):
        assert factor(step, 3, 40) == pytest.approx(cosine(step), abs=1e-12)
        assert factor(step, 3, 40, "constant") == pytest.approx(constant(step), abs=1e-12)
        assert factor(step, 3, 40, "constant", 15, 2.0, 0.1) == pytest.approx(cooled(step), abs=1e-12)
    both = [factor(step, 3, 40, "cosine", 15) for step in range(40)]
    assert both[:25] == [factor(step, 3, 40) for step in range(25)]
    assert both[25] == pytest.approx(factor(25, 3, 40))
    assert [round(one - other, 9) for one, other in pairwise(both[25:])] == [
        pytest.approx(both[25] / 15, abs=1e-8)
    ] * 14


@pytest.mark.parametrize("cooldown", [10, 15, 1000])
def test_a_cooldown_longer_than_what_follows_the_warm_up_begins_at_its_end(cooldown: int) -> None:
    rates = [factor(step, 10, 20, "constant", cooldown) for step in range(21)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10:] == pytest.approx([1 - step / 10 for step in range(11)])


def test_betas_and_eps_are_the_optimizer_s() -> None:
    group = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 1.0}]
    optimizer = optimizer_of(TrainOptions(beta1=0.8, beta2=0.95, eps=1e-7))(group)
    assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.8, 0.95), 1e-7)
    for wrong in ({"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0.0}, {"cooldown": -1}, {"cooldown_end": math.nan}):
        with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
            TrainOptions(**wrong)


@pytest.mark.parametrize("unlocked", [0, 1, 2])
def test_the_image_tower_is_locked_as_by_open_clip(unlocked: int) -> None:
    open_clip = library("open_clip", "3")
    vision = {"image_size": 28, "patch_size": 14, "width": 64, "head_width": 64, "layers": 2, "mlp_ratio": 1.0}
    text = {"width": 64, "heads": 1, "layers": 1, "vocab_size": 50}
    theirs = open_clip.CLIP(32, vision, text)
    theirs.lock_image_tower(unlocked_groups=unlocked + 1)
    ours = copy.deepcopy(towers())
    groups_of(ours, Rates(), unlocked)
    assert ours.vision is not None
    is_trained = {name: one.requires_grad for name, one in ours.vision.named_parameters()}
    count = sum(one.numel() for one in ours.vision.parameters() if one.requires_grad)
    expected = sum(one.numel() for one in theirs.visual.parameters() if one.requires_grad)
    # without an unlocked layer open_clip locks the norm behind the layers, too
    assert count - expected == (128 if unlocked == 0 else 0)
    assert not is_trained["embeddings.class_embedding"] and is_trained["visual_projection.weight"]
