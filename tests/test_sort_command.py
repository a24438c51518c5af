"""The command ``sort``: labels against transformers and scikit-learn, what is written, moved and refused."""

from __future__ import annotations

import csv
import os
import random
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from weighted_clip.commands.program import main
from weighted_clip.encoder.clip import FullClip
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.output import placing
from weighted_clip.training import images as training_images
from weighted_clip.training import linear_probe
from weighted_clip.weighting import features
from weighted_clip.world.shapes import KINDS

from .encoder.trained_clip import TEXT, VISION, Shape, picture_of, split
from .libraries import library
from .test_placing import state
from .transformers_clip import Reference, write_clip

LABELS = ["cat", "fish", "stone"]
COLUMNS = ["file", "label", "probability", "runner_up", "runner_up_probability"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP with random weights: between labels it is unsure."""
    path = tmp_path_factory.mktemp("weights") / "clip.safetensors"
    return write_clip(path, seeded_text_model(TEXT), seeded_vision_model(VISION), 100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, trained_clip: FullClip) -> Path:
    """A CLIP that knows coloured shapes."""
    path = tmp_path_factory.mktemp("trained") / "clip.safetensors"
    return write_clip(path, trained_clip.text, trained_clip.vision, trained_clip.logit_scale)


def write_noise(folder: Path, count: int, seed: int = 0) -> list[Path]:
    folder.mkdir(parents=True)
    rng = random.Random(seed)
    for number in range(count):
        noise = Image.frombytes("RGB", (7, 7), rng.randbytes(147))
        noise.resize((70, 50 + number), Image.Resampling.NEAREST).save(folder / f"{number:03}.png")
    return sorted(folder.iterdir())


def write_shapes(folder: Path, shapes: Sequence[Shape], seed: int) -> dict[str, str]:
    """Pictures, and the kind of each."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, kinds = random.Random(seed), {}
    for number, shape in enumerate(shapes):
        picture_of(shape, rng).save(folder / f"{number:03}.png")
        kinds[f"{number:03}.png"] = shape.kind
    return kinds


def write_examples(folder: Path, each: int) -> Path:
    """Pictures of shapes, in folders by their kind."""
    for number, kind in enumerate(KINDS):
        write_shapes(folder / kind, [shape for shape in split()[0] if shape.kind == kind][:each], 10 + number)
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_noise(tmp_path / "images", 9)
    return tmp_path / "images"


def sort(images: Path, weights: Path, *more: object, labels: Sequence[str] | None = LABELS) -> int:
    """Run it; results are in the folder ``out`` next to the images."""
    given = ["--weights", weights, "--out", images.parent / "out", *more]
    given += [] if labels is None else ["--labels", ",".join(labels)]
    return main(["sort", str(images), *map(str, given)])


def table_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(list(row) == COLUMNS for row in rows)
    return rows


def check_table(rows: list[dict[str, str]], names: list[str], expected: torch.Tensor, labels: Sequence[str]) -> None:
    """The rows hold these probabilities ``[images, labels]``."""
    assert [row["file"] for row in rows] == names
    for row, line in zip(rows, expected.tolist(), strict=True):
        (first, label), (second, other) = sorted(zip(line, labels, strict=True), reverse=True)[:2]
        assert (row["label"], row["runner_up"]) == (label, other)
        assert float(row["probability"]) == pytest.approx(first, abs=1e-5)
        assert float(row["runner_up_probability"]) == pytest.approx(second, abs=1e-5)


def ids_of(texts: Sequence[str]) -> list[list[int]]:
    """77 for each text; `tests/encoder/test_tokenizer.py` compares these ids with transformers'."""
    from weighted_clip.encoder.tokenizer import default_tokenizer

    rows = [[49406, *(token for token, _, _ in default_tokenizer()(text)), 49407] for text in texts]
    return [row + [49407] * (77 - len(row)) for row in rows]


# ---- zero-shot


def test_zero_shot_equals_transformers(images: Path, weights: Path, tmp_path: Path, capsys) -> None:
    assert sort(images, weights) == 0
    reference = Reference(weights, TEXT, VISION)
    paths = sorted(images.iterdir())
    ids = ids_of([f"a photo of a {label}" for label in LABELS])
    expected = reference.probabilities(ids, reference.pixels(paths))
    assert expected.std() > 0.01
    rows = table_of(tmp_path / "out")
    check_table(rows, [path.name for path in paths], expected, LABELS)
    out, err = capsys.readouterr()
    counts = [sum(row["label"] == label for row in rows) for label in LABELS]
    assert out.splitlines()[:3] == [f"{count}  {label}" for count, label in zip(counts, LABELS, strict=True)]
    assert "nothing was moved or copied" in out
    [first] = err.splitlines()
    assert ": text encoder: heads guessed from the width: " in first
    with Image.open(tmp_path / "out" / "unsure.png") as picture:
        assert (picture.format, picture.mode) == ("PNG", "RGB")
    assert sorted(images.iterdir()) == paths


def test_several_templates_are_averaged(images: Path, weights: Path, tmp_path: Path) -> None:
    templates = ["a {} on a table", "{}", "the {}, {{x}} and the {} again"]
    assert sort(images, weights, *(part for one in templates for part in ("--template", one))) == 0
    reference = Reference(weights, TEXT, VISION)
    pixels = reference.pixels(sorted(images.iterdir()))
    vectors = []
    for label in LABELS:
        texts = [f"a {label} on a table", label, f"the {label}, {{{label}x}} and the {label} again"]
        texts[2] = f"the {label}, {{{{x}}}} and the {label} again"
        _, found = reference.features(pixels[:1], ids_of(texts))
        mean = found.mean(0)
        vectors.append(mean / mean.norm())
    found, _ = reference.features(pixels)
    expected = (reference.scale * found @ torch.stack(vectors).T).softmax(-1)
    check_table(table_of(tmp_path / "out"), [f"{number:03}.png" for number in range(9)], expected, LABELS)


def test_a_clip_that_knows_shapes_sorts_those_that_it_has_not_seen(trained: Path, tmp_path: Path) -> None:
    kinds = write_shapes(tmp_path / "images", split()[1], seed=3)
    templates = ("a large red {} in the middle", "a small blue {} at the top left", "a large white {} on the right")
    given = [part for one in templates for part in ("--template", one)]
    assert sort(tmp_path / "images", trained, *given, labels=KINDS) == 0
    right = sum(row["label"] == kinds[row["file"]] for row in table_of(tmp_path / "out"))
    assert right >= 45  # of 64; by chance 13


def test_zero_shot_needs_no_scikit_learn(images: Path, weights: Path, tmp_path: Path, monkeypatch) -> None:
    """No module imports it outside a function: tests/test_imports.py."""
    for name in ("sklearn", "scipy"):
        monkeypatch.setitem(sys.modules, name, None)
    assert sort(images, weights) == 0
    assert len(table_of(tmp_path / "out")) == 9


# ---- with examples


def test_a_probe_equals_scikit_learn_on_transformers_features(
    trained: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    library("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    probes = []
    real = linear_probe.fit_probe
    monkeypatch.setattr(linear_probe, "fit_probe", lambda *arguments: probes.append(real(*arguments)) or probes[-1])
    examples = write_examples(tmp_path / "examples", 12)
    write_shapes(tmp_path / "images", split()[1], seed=3)
    assert sort(tmp_path / "images", trained, "--examples", examples, labels=None) == 0

    reference = Reference(trained, TEXT, VISION)
    labels = sorted(KINDS)
    known = [path for label in labels for path in sorted((examples / label).iterdir())]
    inputs = reference.features(reference.pixels(known))[0].double().numpy()
    outputs = [labels.index(path.parent.name) for path in known]
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    tried = {}
    for strength in (0.01, 0.1, 1, 10, 100, 1e3, 1e4):
        model = LogisticRegression(C=strength, tol=1e-8, max_iter=1000)
        found = cross_val_predict(model, inputs, outputs, cv=folds, method="predict_proba")
        tried[strength] = log_loss(outputs, found), found
    strength = min(tried, key=lambda strength: tried[strength][0])
    assert f"strength C = {strength:g}\n" in capsys.readouterr().out
    model = LogisticRegression(C=strength, tol=1e-8, max_iter=1000).fit(inputs, outputs)
    assert abs(probes[0].model.coef_ - model.coef_).max() <= 1e-4
    assert abs(probes[0].model.intercept_ - model.intercept_).max() <= 1e-4
    assert abs(model.coef_).max() > 1

    paths = sorted((tmp_path / "images").iterdir())
    found = reference.features(reference.pixels(paths))[0].double().numpy()
    expected = torch.from_numpy(model.predict_proba(found))
    check_table(table_of(tmp_path / "out"), [path.name for path in paths], expected, labels)
    counts = [[0] * 5 for _ in labels]
    for true, given in zip(outputs, tried[strength][1].argmax(1), strict=True):
        counts[true][given] += 1
    with (tmp_path / "out" / "confusion.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["true label", *labels],
        *([label, *map(str, row)] for label, row in zip(labels, counts, strict=True)),
    ]
    with Image.open(tmp_path / "out" / "confusion.png") as picture:
        assert (picture.format, picture.mode) == ("PNG", "RGB")


def test_examples_teach_what_the_labels_do_not_say(trained: Path, tmp_path: Path, capsys) -> None:
    library("sklearn")
    kinds = write_shapes(tmp_path / "images", split()[1], seed=3)
    examples = write_examples(tmp_path / "examples", 20)
    for number, kind in enumerate(KINDS):
        (examples / kind).rename(examples / f"group {number}")
    assert sort(tmp_path / "images", trained, "--examples", examples, labels=None) == 0
    named = {f"group {number}": kind for number, kind in enumerate(KINDS)}
    right = sum(named[row["label"]] == kinds[row["file"]] for row in table_of(tmp_path / "out"))
    assert right >= 57  # of 64; by chance 13
    assert "100 held-out examples right" in capsys.readouterr().out


def test_folders_that_are_no_labels_and_rare_labels_are_named(
    weights: Path, images: Path, tmp_path: Path, capsys
) -> None:
    library("sklearn")
    examples = write_examples(tmp_path / "examples", 3)
    (examples / ".hidden").mkdir()
    (examples / "empty").mkdir()
    (examples / "cross" / "broken.png").write_bytes(b"no image")
    assert sort(images, weights, "--examples", examples, labels=None) == 1
    out, err = capsys.readouterr()
    assert f"{examples / '.hidden'}: hidden, so it is no label" in err
    assert f"{examples / 'empty'}: no image directly in it, so it is no label" in err
    assert f"{examples / 'cross' / 'broken.png'}: no image of a kind that is read" in err
    assert "of 15 held-out examples right" in out
    assert "3-fold" in out
    for number in (1, 2):
        (examples / "ring" / f"00{number}.png").unlink()
    assert sort(images, weights, "--examples", examples, labels=None) == 1
    assert "the label 'ring' has 1 readable example; each needs at least two" in capsys.readouterr().err


def test_without_scikit_learn_examples_are_refused_with_advice(
    weights: Path, images: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = write_examples(tmp_path / "examples", 2)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert sort(images, weights, "--examples", examples, labels=None) == 1
    assert "learning from examples needs scikit-learn, which cannot be imported" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---- features on the disk


def test_features_are_computed_once_and_anew_where_they_would_differ(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    real = FullClip.image_features

    def image_features(self: FullClip, pixels: torch.Tensor) -> torch.Tensor:
        counted.append(len(pixels))
        return real(self, pixels)

    monkeypatch.setattr(FullClip, "image_features", image_features)

    def computed(*more: object, labels: Sequence[str] = LABELS) -> int:
        counted.clear()
        assert sort(images, weights, *more, labels=labels) == 0
        return sum(counted)

    assert computed() == 9
    before = (tmp_path / "out" / "table.csv").read_bytes()
    assert computed() == 0
    assert (tmp_path / "out" / "table.csv").read_bytes() == before
    assert computed(labels=["a", "b"]) == 0  # images do not know of labels
    for more in (["--activation", "gelu"], ["--crop", "stretch"], ["--dtype", "bf16"]):
        assert computed(*more) == 9, more
    assert computed() == 9
    shutil.copy(images / "000.png", images / "008.png")
    assert computed() == 9


def test_a_run_that_is_stopped_goes_on_where_it_was(
    weights: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr("weighted_clip.commands.sort.PER_FILE", 4)
    assert sort(images, weights) == 0
    expected = (tmp_path / "out" / "table.csv").read_bytes()
    shutil.rmtree(tmp_path / "out")
    real, names = training_images.pixels_of, []

    def pixels_of(example, *more):
        names.append(example.name)
        if example.name == "006.png" and names.count("006.png") == 1:
            raise KeyboardInterrupt
        return real(example, *more)

    monkeypatch.setattr(training_images, "pixels_of", pixels_of)
    assert sort(images, weights) == 130
    assert not (tmp_path / "out" / "table.csv").exists()
    names.clear()
    names.append("006.png")
    assert sort(images, weights) == 0
    assert sorted(set(names)) == ["004.png", "005.png", "006.png", "007.png", "008.png"]
    assert (tmp_path / "out" / "table.csv").read_bytes() == expected


def test_images_that_cannot_be_read_are_named_and_counted(weights: Path, images: Path, tmp_path: Path, capsys) -> None:
    (images / "004.png").write_bytes(b"no image")
    (images / "007.png").write_bytes((images / "007.png").read_bytes()[:-30])
    (images / "notes.txt").write_text("no image")
    for _ in range(2):  # the second time from the disk
        assert sort(images, weights) == 1
        err = capsys.readouterr().err
        assert f"weighted-clip: {images / '004.png'}: no image of a kind that is read" in err
        assert f"weighted-clip: {images / '007.png'}: broken image" in err
        assert f"files of other kinds in {images}, not looked at: 1 (.txt)" in err
        assert err.splitlines()[-1] == "2 files left out"
        assert len(table_of(tmp_path / "out")) == 7
    for path in images.glob("*.png"):
        path.write_bytes(b"no image")
    assert sort(images, weights) == 1
    assert "none of the 9 images could be read" in capsys.readouterr().err


def test_progress_is_counted_on_a_terminal(weights: Path, images: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    assert sort(images, weights, "--copy", images.parent / "sorted") == 0
    err = capsys.readouterr().err
    assert "9 of 9 images" in err
    assert "9 of 9 images copied" in err


# ---- copies and moves


@pytest.mark.parametrize("how", ["--move", "--copy"])
def test_images_go_into_folders_of_their_labels(weights: Path, images: Path, tmp_path: Path, capsys, how: str) -> None:
    (images / "notes.txt").write_text("stays")
    before = {path.name: path.read_bytes() for path in images.iterdir()}
    assert sort(images, weights, how, tmp_path / "sorted") == 0
    rows = table_of(tmp_path / "out")
    assert len({row["label"] for row in rows}) > 1
    expected = {f"{row['label']}/{row['file']}": before[row["file"]] for row in rows}
    into = tmp_path / "sorted"
    assert {path.relative_to(into).as_posix(): path.read_bytes() for path in into.rglob("*.*")} == expected
    assert {path.name for path in images.iterdir()} == ({"notes.txt"} if how == "--move" else {*before})
    assert f"{'moved' if how == '--move' else 'copied'}: 9 images, into folders of {into}" in capsys.readouterr().out


def test_only_what_is_sure_is_moved(weights: Path, images: Path, tmp_path: Path, capsys) -> None:
    assert sort(images, weights) == 0
    values = sorted(float(row["probability"]) for row in table_of(tmp_path / "out"))
    least = (values[3] + values[4]) / 2
    assert sort(images, weights, "--move", tmp_path / "sorted", "--sure", least) == 0
    rows = table_of(tmp_path / "out")
    sure = {row["file"] for row in rows if float(row["probability"]) >= least}
    assert {path.name for path in (tmp_path / "sorted").rglob("*.png")} == sure
    assert {path.name for path in images.iterdir()} == {row["file"] for row in rows} - sure
    assert "4 of 9 stay where they are" in capsys.readouterr().out


def test_what_has_just_the_probability_is_sure(weights: Path, images: Path, tmp_path: Path, monkeypatch) -> None:
    shares = torch.tensor([[share, 1 - share, 0] for share in (1.0, 0.75, 0.7, 0.25, 0.3, 0.5, 0.0, 0.8, 0.6)])
    monkeypatch.setattr(features, "label_probabilities", lambda *_: shares)
    for least, count in ((0.75, 5), (1.0, 2)):
        into = tmp_path / f"at {least:g}"
        assert sort(images, weights, "--copy", into, "--sure", least) == 0
        assert len([*into.rglob("*.png")]) == count == int((shares >= least).sum())


@pytest.mark.parametrize("how", ["--move", "--copy"])
def test_what_is_in_the_way_is_kept(weights: Path, images: Path, tmp_path: Path, capsys, how: str) -> None:
    assert sort(images, weights) == 0
    last = table_of(tmp_path / "out")[-1]
    target = tmp_path / "sorted" / last["label"] / last["file"]
    target.parent.mkdir(parents=True)
    target.write_bytes(b"mine")
    before = state(images, tmp_path / "sorted")
    assert sort(images, weights, how, tmp_path / "sorted") == 1
    assert f"{target} exists and is not overwritten; nothing was done" in capsys.readouterr().err
    assert state(images, tmp_path / "sorted") == before


def test_copies_that_are_there_are_told(weights: Path, images: Path, tmp_path: Path, capsys) -> None:
    assert sort(images, weights, "--copy", tmp_path / "sorted") == 0
    capsys.readouterr()
    for how, stay in (("--copy", ""), ("--move", f", so they stay in {images}")):
        assert sort(images, weights, how, tmp_path / "sorted") == 0
        assert f"9 were there already, with the same bytes{stay}\n" in capsys.readouterr().out
    assert len(list(images.iterdir())) == 9


@pytest.mark.parametrize(
    ("how", "sent", "status"), [("--move", "SIGINT", 130), ("--copy", "SIGINT", 130), ("--copy", "SIGTERM", 143)]
)
def test_ctrl_c_leaves_nothing_half_done(
    weights: Path,
    images: Path,
    tmp_path: Path,
    capsys,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    sent: str,
    status: int,
) -> None:
    if os.name == "nt":
        pytest.skip("Windows has no way to send Ctrl-C or SIGTERM to oneself alone")
    before, real, put = state(images), placing._put, []

    def one_more(*arguments: object, **options: object) -> None:
        put.append(1)
        if len(put) == 5:
            os.kill(os.getpid(), getattr(signal, sent))  # in the middle of a file
        real(*arguments, **options)

    monkeypatch.setattr(placing, "_put", one_more)
    handler = signal.getsignal(signal.SIGINT)
    assert sort(images, weights, how, tmp_path / "sorted") == status
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(put) == 5
    assert "stopping: either all files are put there or none" in capsys.readouterr().err
    assert state(images) == before
    assert not (tmp_path / "sorted").exists()
    assert sort(images, weights, how, tmp_path / "sorted") == 0
    assert len(list((tmp_path / "sorted").rglob("*.png"))) == 9


# ---- what is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{images}", "--labels", "cat"], "--labels 'cat': give at least two labels, none of them empty"),
        (["{images}", "--labels", "cat,,dog"], "--labels 'cat,,dog': give at least two labels, none of them empty"),
        (["{images}", "--labels", "cat, Cat"], "the label 'Cat' comes twice"),
        (["{images}", "--labels", "a,b", "--template", "a photo"], "template 'a photo' has no {{}}"),
        (["{images}", "--labels", "a,b", "--sure", "2", "--copy", "x"], "--sure must be from 0 to 1, got 2"),
        (["{images}", "--labels", "a,b", "--sure", "0.5"], "give --copy INTO or --move INTO"),
        (["{images}", "--labels", "a,b/c", "--move", "x"], "the label 'b/c' cannot be the name of a folder"),
        (["{images}", "--labels", "a,..", "--copy", "x"], "the label '..' cannot be the name of a folder"),
        (["nowhere", "--labels", "a,b"], "nowhere: there is no such folder"),
        (["{images}/000.png", "--labels", "a,b"], "000.png: it is no folder"),
        (["{empty}", "--labels", "a,b"], "no image in this folder"),
        (["{images}", "--labels", "a,b", "--out", "{images}"], "its pictures would be sorted next time"),
        (["{images}", "--examples", "nowhere"], "--examples nowhere: there is no such folder"),
        (["{images}", "--examples", "{empty}"], "it must have at least two folders with images in them"),
        (["{images}", "--examples", "{known}", "--template", "a {{}}"], "--template is for --labels"),
        (["{images}", "--examples", "{known}", "--out", "{known}/x"], "it would become a label"),
        (["{images}", "--labels", "a,b", "--weights", "none.safetensors"], "none.safetensors: there is no such file"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is(
    arguments: list[str], message: str, weights: Path, images: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"images": images, "empty": tmp_path / "empty", "known": write_examples(tmp_path / "known", 2)}
    before = state(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = [argument.format(**places) for argument in arguments]
    usual = [
        part
        for name, value in (("--weights", weights), ("--out", "out"))
        if name not in given
        for part in (name, str(value))
    ]
    assert main(["sort", *given, *usual]) == 1
    out, err = capsys.readouterr()
    assert message.format() in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""
    assert state(tmp_path) == before


def test_labels_may_hold_commas_in_quotes(weights: Path, images: Path, tmp_path: Path) -> None:
    assert sort(images, weights, labels=['"a cat', ' asleep"', " dog"]) == 0
    assert {row["label"] for row in table_of(tmp_path / "out")} <= {"a cat, asleep", "dog"}


def test_names_that_are_no_utf8_are_written_as_they_are(weights: Path, images: Path, tmp_path: Path) -> None:
    odd = os.fsdecode(b"caf\xe9.png")
    try:
        (images / "000.png").rename(images / odd)
    except OSError:
        pytest.skip("this system has no such names")
    assert sort(images, weights, "--move", tmp_path / "sorted") == 0
    assert b"caf\xe9.png," in (tmp_path / "out" / "table.csv").read_bytes()
    assert [path.name for path in (tmp_path / "sorted").rglob("caf*")] == [odd]


def test_numbers_that_are_not_finite_are_refused(weights: Path, images: Path, tmp_path: Path, capsys) -> None:
    tensors = load_file(weights)
    tensors["visual_projection.weight"] = tensors["visual_projection.weight"].sign() * 3e38
    save_file(tensors, tmp_path / "broken.safetensors")
    assert sort(images, tmp_path / "broken.safetensors") == 1
    assert "not all finite numbers; use --dtype fp32" in capsys.readouterr().err


def test_examples_are_not_abbreviated() -> None:
    """As run.py looks for the option, to install what it needs."""
    with pytest.raises(SystemExit, match="2"):
        main(["sort", "x", "--exam", "y", "--weights", "w", "--out", "o"])
