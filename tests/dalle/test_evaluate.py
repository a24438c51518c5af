"""The command ``dalle evaluate``: formulas beside scipy's and written out, networks, pictures, and what is refused."""

from __future__ import annotations

import json
import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from weighted_clip.commands import dalle_evaluate
from weighted_clip.commands.program import main
from weighted_clip.dalle.evaluation import InceptionScore, Moments, frechet_distance, load_inception
from weighted_clip.encoder.clip import load_full_clip
from weighted_clip.encoder.config import TextConfig, VisionConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.images import preprocess
from weighted_clip.training.distributed import declare_missing_operators

from ..fuzz.model_files import hashed
from ..libraries import library
from ..transformers_clip import write_clip

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=1, mlp_dim=64, projection_dim=16)
VISION = VisionConfig(image_size=28, hidden_dim=64, num_heads=1, num_layers=1, mlp_dim=64, projection_dim=16)


def features(count: int, seed: int, dim: int = 12) -> Tensor:
    """Correlated, far from 0, as features are."""
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(dim, dim, generator=generator)
    return torch.randn(count, dim, generator=generator) @ mixing + 100 + seed


def moments(given: Tensor) -> Moments:
    """In batches of uneven sizes."""
    found = Moments(given.shape[1])
    for part in given.split([1, 4, len(given) - 5]):
        found.add(part)
    return found


def by_scipy(first: Tensor, second: Tensor) -> float:
    linalg = pytest.importorskip("scipy.linalg", reason="compares with scipy's sqrtm")
    one, two = (np.cov(given.double().numpy(), rowvar=False) for given in (first, second))
    apart = first.double().mean(0) - second.double().mean(0)
    return float(apart @ apart + np.trace(one + two - 2 * linalg.sqrtm(one @ two).real))


def test_the_distance_is_that_of_scipys_square_root() -> None:
    first, second = features(40, 0), features(60, 1)
    assert frechet_distance(moments(first), moments(second)) == pytest.approx(by_scipy(first, second), rel=1e-9)


def test_the_distance_is_that_of_torchmetrics_and_the_score_that_of_torch_fidelity() -> None:
    fid = pytest.importorskip("torchmetrics.image.fid", reason="torchmetrics 1.9.0 is in no requirements")
    declare_missing_operators()
    isc = pytest.importorskip("torch_fidelity.metric_isc", reason="torch-fidelity 0.4.0 is in no requirements")
    first, second = features(40, 0), features(60, 1)
    given = [value for some in (first, second) for value in (some.double().mean(0), some.double().T.cov())]
    theirs = fid._compute_fid(*given).item()
    assert frechet_distance(moments(first), moments(second)) == pytest.approx(theirs, rel=1e-9)
    logits = features(60, 2) - 102
    score = InceptionScore(12, 5)
    score.add(logits.double().softmax(1).unflatten(0, (5, 12)).transpose(0, 1).flatten(0, 1))  # theirs are in a row
    theirs = isc.isc_features_to_metric(logits, 5, shuffle=False)
    assert score() == pytest.approx(tuple(theirs.values()), rel=1e-9)


def test_the_distance_of_independent_features_is_that_of_means_and_deviations() -> None:
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 3.0], [0.0, -3.0]])
    means, scales = torch.tensor([5.0, -2.0]), torch.tensor([2.0, 0.5])
    found, other = Moments(2), Moments(2)
    found.add(first)
    other.add(first * scales + means)
    deviations = torch.tensor([2.0 / 3, 18.0 / 3]).sqrt()
    assert frechet_distance(found, other) == pytest.approx(25 + 4 + float((deviations * (1 - scales)).square().sum()))


def test_one_picture_many_times_has_a_distance() -> None:
    """Its covariance is 0, whatever the batches."""
    same, others = features(1, 0).expand(30, -1), features(30, 1)
    assert frechet_distance(moments(same), moments(same)) == pytest.approx(0, abs=1e-9)
    wanted = (same[0].double() - others.double().mean(0)).square().sum() + others.double().T.cov().trace()
    assert frechet_distance(moments(same), moments(others)) == pytest.approx(wanted.item(), rel=1e-9)
    few = features(3, 2)
    assert frechet_distance(moments(few.repeat(5, 1)), moments(few.repeat(5, 1))) == pytest.approx(0, abs=1e-6)


def test_the_score_is_the_formula_written_out() -> None:
    rows = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6], [0.3, 0.3, 0.4]]
    score = InceptionScore(3, 2)
    score.add(torch.tensor(rows[:3]))
    score.add(torch.tensor(rows[3:]))
    expected = []
    for part in (rows[::2], rows[1::2]):
        means = [sum(column) / len(part) for column in zip(*part, strict=True)]
        divergence = [sum(p * math.log(p / q) for p, q in zip(row, means, strict=True) if p) for row in part]
        expected.append(math.exp(sum(divergence) / len(part)))
    assert score() == pytest.approx((sum(expected) / 2, abs(expected[0] - expected[1]) / 2), rel=1e-6)
    with pytest.raises(ValueError, match="0 pictures are too few for 2 splits"):
        InceptionScore(3, 2)()


# ---- the command


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "clip.safetensors"
    return write_clip(path, seeded_text_model(TEXT), seeded_vision_model(VISION))


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Eight pictures of noise in colours, and eight others."""
    rng = np.random.default_rng(0)
    for name, brightest in (("real", 250), ("drawn", 120)):
        (tmp_path / name).mkdir()
        for number in range(8):
            noise = rng.integers(0, brightest, (9, 9, 3), np.uint8)
            picture = Image.fromarray(noise).resize((36, 36), Image.Resampling.NEAREST)
            picture.save(tmp_path / name / f"{number}.png")
    return tmp_path / "real", tmp_path / "drawn"


def evaluate(folders: tuple[Path, Path], clip: Path, *options: str) -> int:
    out = folders[0].parent / "out"
    return main(["dalle", "evaluate", *map(str, folders), "--weights", str(clip), "--out", str(out), *options])


def test_both_folders_are_blurred_and_measured(
    folders: tuple[Path, Path], clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load_full_clip(clip)
    assert evaluate(folders, clip, "--radii", "0,2", "--labels", "red,a blue sky", "--splits", "1") == 0
    results = json.loads((folders[0].parent / "out" / "evaluation.json").read_text(encoding="utf-8"))
    for row, radius in zip(results["radii"], (0, 2), strict=True):
        seen = []
        for folder in folders:
            pictures = [Image.open(path).filter(ImageFilter.GaussianBlur(radius)) for path in sorted(folder.iterdir())]
            seen.append(model.image_features(preprocess(pictures, 28)))
        assert row["radius"] == radius
        assert row["FID"] == pytest.approx(by_scipy(*seen), rel=1e-3, abs=1e-6)
        assert 1 <= row["inception score"] <= 2
    assert (results["size"], results["real"]["pictures"], results["comparable with papers"]) == (36, 8, False)
    told = capsys.readouterr().out
    assert "FID over features of clip.safetensors: 8 real and 8 generated pictures of 36 pixels, 16 features" in told
    assert "8 pictures are no more than features" in told
    for name in ("fid.png", "inception_score.png"):
        with Image.open(folders[0].parent / "out" / name) as curve:
            assert curve.size[0] > 400


def test_the_radius_is_the_standard_deviation_of_a_gaussian_filter(folders: tuple[Path, Path]) -> None:
    ndimage = pytest.importorskip("scipy.ndimage", reason="compares with scipy's filter")
    picture = Image.open(folders[0] / "0.png")
    for radius in (1, 2, 4):
        found = np.array(picture.filter(ImageFilter.GaussianBlur(radius)), float)
        apart = {
            sigma: np.abs(ndimage.gaussian_filter(np.array(picture, float), (sigma, sigma, 0), mode="nearest") - found)
            for sigma in (0.8 * radius, radius, 1.2 * radius)
        }
        assert min(apart, key=lambda sigma: apart[sigma].mean()) == radius
        assert apart[radius].mean() < 2


def test_pictures_of_other_sizes_are_scaled_and_unreadable_ones_named(
    folders: tuple[Path, Path], clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folders[0].glob("*.png"):
        with Image.open(path) as picture:
            wide = Image.new("RGB", (144, 72))
            wide.paste(picture.resize((72, 72), Image.Resampling.NEAREST), (36, 0))
        wide.save(path)
    assert evaluate((folders[0], folders[0]), clip, "--radii", "0", "--size", "36", "--splits", "1") == 0
    assert "FID     0.0000" in capsys.readouterr().out
    (folders[1] / "0.png").write_bytes(b"no picture")
    assert evaluate(folders, clip, "--radii", "0", "--splits", "1") == 1
    told = capsys.readouterr()
    assert "8 real and 7 generated pictures of 36 pixels" in told.out
    assert told.err.count("0.png: no image of a kind that is read") == 1


def test_splits_are_only_of_the_inception_score(folders: tuple[Path, Path], clip: Path) -> None:
    assert evaluate(folders, clip, "--radii", "0") == 0  # by default 10, of 8 pictures
    assert "splits" not in json.loads((folders[0].parent / "out" / "evaluation.json").read_text(encoding="utf-8"))


def test_pictures_that_commands_write_are_no_drawings(
    folders: tuple[Path, Path], clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folders[1] / "montage.png").write_bytes((folders[1] / "1.png").read_bytes())
    assert evaluate(folders, clip, "--radii", "0") == 0
    told = capsys.readouterr()
    assert "8 real and 8 generated pictures" in told.out
    assert "montage.png" in told.err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--radii", "2,1"], "--radii 2,1: write rising numbers from 0"),
        (["--radii", "nan"], "--radii nan: write rising numbers from 0"),
        (["--radii", "a"], "--radii a: write rising numbers"),
        (["--size", "0"], "--size must be from 1 to 1,024, got 0"),
        (["--labels", "a,b", "--splits", "5"], "--splits 5: 8 generated pictures have 1 to 4"),
        (["--labels", "a," + "b" * 200_000], "a part between commas has more than 131,072 characters"),
        (["--labels", "cat,cat"], "--labels 'cat,cat': with --weights, two or more that differ"),
    ],
)
def test_wrong_options_are_refused_in_a_line(
    folders: tuple[Path, Path], clip: Path, options: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(folders, clip, "--splits", "1", *options) == 1
    said = capsys.readouterr().err
    assert told in said
    assert len(said.splitlines()) == 1


def test_one_picture_no_folder_and_numbers_that_are_none_are_refused(
    folders: tuple[Path, Path], tmp_path: Path, clip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate((tmp_path / "gone", folders[1]), clip, "--splits", "1") == 1
    assert "gone: there is no such folder" in capsys.readouterr().err
    for number in range(1, 8):
        (folders[0] / f"{number}.png").unlink()
    assert evaluate(folders, clip, "--splits", "1") == 1
    assert "real: 1 of its pictures can be read, and 2 or more are needed" in capsys.readouterr().err
    assert evaluate(folders, clip, "--splits", "1", "--out", str(folders[1])) == 1
    assert "its curves would be measured next time; choose another folder" in capsys.readouterr().err
    vision = seeded_vision_model(VISION)
    assert vision.visual_projection is not None
    vision.visual_projection.weight.fill_(3e38)  # NaN itself is refused in a file
    broken = write_clip(tmp_path / "broken.safetensors", seeded_text_model(TEXT), vision)
    assert evaluate((folders[1], folders[1]), broken, "--splits", "1") == 1
    assert "broken.safetensors: the features are not all finite numbers" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.[jp]*"))


def test_nothing_is_written_by_a_run_that_is_ended(
    folders: tuple[Path, Path], clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dalle_evaluate, "write_picture", end)
    out = folders[0].parent / "out"
    assert evaluate(folders, clip, "--splits", "1") == 130
    assert json.loads((out / "evaluation.json").read_text(encoding="utf-8"))["size"] == 36  # whole, or not there
    assert not list(out.glob("*.png"))


# ---- Inception


def pictures() -> Tensor:
    return torch.randint(0, 256, (2, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def randomised(model: Any) -> Any:
    """With weights by which pictures still differ behind the last layer."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.kaiming_normal_(parameter)
    return model.eval()


@pytest.mark.parametrize("is_zip", [True, False])
def test_torchvisions_inception_gives_its_own_features_and_classes(tmp_path: Path, is_zip: bool) -> None:
    declare_missing_operators()
    models: Any = library("torchvision").models
    model = randomised(models.inception_v3(weights=None, init_weights=False, transform_input=False))
    path = tmp_path / "inception_v3.pth"
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=is_zip)
    network = load_inception(path)
    seen: list[Tensor] = []
    model.avgpool.register_forward_hook(lambda *given: seen.append(given[-1].flatten(1)))
    resized = torch.nn.functional.interpolate(pictures().float(), (299, 299), mode="bilinear", antialias=True)
    with torch.no_grad():
        logits = model((resized / 255 - 0.5) / 0.5)
    found, classes = network.run(pictures())
    assert not network.is_of_literature
    assert (found[0] - found[1]).norm() > 0.02 * found[0].norm()
    torch.testing.assert_close(found, seen[0])
    torch.testing.assert_close(classes, logits.double().softmax(1), rtol=1e-4, atol=1e-7)


def test_torch_fidelitys_inception_is_read_without_its_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declare_missing_operators()
    name = "torch_fidelity.feature_extractor_inceptionv3"
    theirs = pytest.importorskip(name, reason="torch-fidelity 0.4.0 is in no requirements")
    with monkeypatch.context() as patch:
        patch.setattr(theirs, "load_state_dict_from_url", lambda *_, **__: {})
        patch.setattr(theirs.FeatureExtractorInceptionV3, "load_state_dict", lambda *_: None)
        model = randomised(theirs.FeatureExtractorInceptionV3("x", ["2048", "logits_unbiased"]))
    path = tmp_path / "inception.pth"
    torch.save(model.state_dict(), path)
    network = load_inception(path)
    expected, logits = model(pictures())
    found, classes = network.run(pictures())
    assert network.is_of_literature
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(classes, logits.double().softmax(1))


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("it ran",)


def test_other_files_are_refused_and_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.pth"
    for content in (pickle.dumps(Code(), 2), b"PK\x03\x04", b"", pickle.dumps({"fc.bias": 3}, 2)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"file\.pth"):
            load_inception(path)
    for saved in ([1, 2], {"fc.bias": torch.zeros(7)}, {"fc.bias": Code()}, {"fc.bias": torch.zeros(1).expand(1000)}):
        torch.save(saved, path)
        with pytest.raises(ValueError, match=r"file\.pth"):
            load_inception(path)
    assert "it ran" not in capsys.readouterr().out
    for other in (tmp_path, tmp_path / "gone"):
        with pytest.raises(ValueError, match="cannot be read"):
            load_inception(other)
    for name, value in hashed():  # as PyTorch wrote files before 1.6: five pickles, the fourth with the tensors
        torch.save({"fc.bias": torch.zeros(7)}, path, _use_new_zipfile_serialization=False)
        start = path.read_bytes().partition(b"X\x07\x00\x00\x00fc.bias")[0]
        path.write_bytes(start + b"X\x07\x00\x00\x00fc.bias" + value + b"us.")
        with pytest.raises(ValueError, match=r"file\.pth"):
            load_inception(path)
        assert name
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    torch.save({"fc.bias": torch.zeros(1008)}, path)
    with pytest.raises(ValueError, match=r"file\.pth needs torch-fidelity: \.venv/bin/pip install torch-fidelity"):
        load_inception(path)
