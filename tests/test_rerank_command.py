"""The commands ``rerank`` and ``similarity``: images, numbers against transformers, what is printed and refused."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.images import preprocess
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.encoder.similarity import similarity
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.image_options import image_files
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.output import files

from .transformers_clip import Reference, write_clip

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
VISION = VisionConfig(image_size=28, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=32)
NO_IMAGE = "no image of a kind that is read: PNG, JPEG, "
COLORS = ("red", "green", "blue", "white", "black")

GUESSED = (
    "clip.safetensors: text encoder: heads guessed from the width: 1; activation guessed: quick_gelu; image encoder: "
    "heads guessed from the width: 1; activation guessed: quick_gelu"
)
"""First line on the error stream: no config.json is beside the file."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny whole CLIP with seeded weights."""
    path = tmp_path_factory.mktemp("weights") / "clip.safetensors"
    return write_clip(path, seeded_text_model(TEXT), seeded_vision_model(VISION))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images in a folder, another in a folder within, and a text."""
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    for number, color in enumerate(COLORS):
        Image.new("RGB", (40 + number, 30), color).save(folder / f"{color}.{'PNG' if number % 2 else 'jpg'}")
    Image.new("RGB", (30, 30)).save(folder / "more" / "inner.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def expected(weights: Path, text: str, paths: list[Path]) -> list[tuple[float, Path]]:
    """Scores and paths, best first, straight from the towers."""
    clip = load_full_clip(weights)
    ids = [49406, *(token_id for token_id, _, _ in default_tokenizer()(text)), 49407]
    vector = clip.text_features([ids + [49407] * (77 - len(ids))])
    features = torch.cat([clip.image_features(preprocess(Image.open(path), 28)) for path in paths])
    scores = similarity(vector, features)[0].tolist()
    return sorted(zip(scores, paths, strict=True), key=lambda pair: -pair[0])


def rerank(weights: Path, *arguments: object) -> int:
    return main(["rerank", *map(str, arguments), "--weights", str(weights)])


def test_rank_score_and_path_are_printed_best_first(weights: Path, folder: Path, capsys) -> None:
    assert rerank(weights, "a red cat", folder) == 0
    out, err = capsys.readouterr()
    best = expected(weights, "a red cat", image_files([folder])[0])
    assert len(best) == 5
    assert out.splitlines() == [f"{rank}  {score:7.4f}  {path}" for rank, (score, path) in enumerate(best, 1)]
    # no progress where it is no terminal
    assert err == f"{GUESSED}\nfiles of other kinds in folders, not looked at: 1 (.txt)\n"


def test_json_has_the_numbers(weights: Path, folder: Path, capsys) -> None:
    paths = [folder / "green.PNG", folder / "red.jpg"]
    assert rerank(weights, "a (red:1.4) cat", *paths, "--json", "--syntax", "a1111", "--keep", 1) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    (score, path), _ = expected(weights, "a red cat", paths)
    assert found["text"] == "a (red:1.4) cat"
    [image] = found["images"]
    assert (image["rank"], image["path"]) == (1, str(path))
    assert image["score"] == pytest.approx(score, abs=1e-6)
    assert "Similarity has no weights" in err


def test_the_text_can_come_from_standard_input(weights: Path, folder: Path, capsys, monkeypatch) -> None:
    assert rerank(weights, "a red cat", folder) == 0
    given = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("a red cat\n"))
    assert rerank(weights, "-", folder) == 0
    assert capsys.readouterr().out == given


def test_the_best_are_copied_with_their_rank_and_nothing_is_overwritten(
    weights: Path, folder: Path, tmp_path: Path, capsys
) -> None:
    target = tmp_path / "best" / "of"
    assert rerank(weights, "a cat", folder, "--keep", 2, "--copy", target) == 0
    ranked = [Path(line.split(maxsplit=2)[2]) for line in capsys.readouterr().out.splitlines()]
    assert sorted(path.name for path in target.iterdir()) == [f"{n}-{path.name}" for n, path in enumerate(ranked, 1)]
    for number, path in enumerate(ranked, 1):
        assert (target / f"{number}-{path.name}").read_bytes() == path.read_bytes()
    kept = target / f"2-{ranked[1].name}"
    kept.write_bytes(b"mine")
    (target / f"1-{ranked[0].name}").unlink()
    assert rerank(weights, "a cat", folder, "--keep", 2, "--copy", target) == 1
    assert f"{kept} exists and is not overwritten; nothing was done" in capsys.readouterr().err
    assert [path.name for path in target.iterdir()] == [kept.name]
    assert kept.read_bytes() == b"mine"


@pytest.mark.parametrize("number", range(1, 6))
def test_ctrl_c_leaves_no_copy_and_a_second_run_works(
    weights: Path, folder: Path, tmp_path: Path, monkeypatch, capsys, number: int
) -> None:
    real, put = files._put, []

    def interrupted(written: Path, target: Path, *, may_replace: bool) -> None:
        put.append(target)
        if len(put) == number:
            signal.raise_signal(signal.SIGINT)
        real(written, target, may_replace=may_replace)

    copies = tmp_path / "copies"
    with monkeypatch.context() as patch:
        patch.setattr(files, "_put", interrupted)
        assert rerank(weights, "a cat", folder, "--copy", copies) == 130
    assert len(put) == number
    assert not copies.exists()
    assert rerank(weights, "a cat", folder, "--copy", copies) == 0
    assert len(list(copies.iterdir())) == 5


def test_a_copy_that_was_killed_is_finished(weights: Path, folder: Path, tmp_path: Path, capsys) -> None:
    copies = tmp_path / "copies"
    assert rerank(weights, "a cat", folder, "--copy", copies) == 0
    whole = {path.name: path.read_bytes() for path in copies.iterdir()}
    for name in sorted(whole)[2:]:
        (copies / name).unlink()
    capsys.readouterr()
    assert rerank(weights, "a cat", folder, "--copy", copies) == 0
    assert f"2 were in {copies} already, with the same bytes" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in copies.iterdir()} == whole


def test_ranks_of_copies_sort_as_numbers(weights: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(11):
        Image.new("L", (9, 9), number * 20).save(folder / f"{number}.png")
    assert rerank(weights, "grey", folder, "--copy", tmp_path / "copies") == 0
    ranked = [Path(line.split()[2]).name for line in capsys.readouterr().out.splitlines()]
    assert [path.name.split("-")[1] for path in sorted((tmp_path / "copies").iterdir())] == ranked


def test_a_chart_is_drawn(weights: Path, folder: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "charts" / "ranking.png"
    assert rerank(weights, "a cat", folder, "--keep", 3, "--chart", file) == 0
    with Image.open(file) as chart:
        assert (chart.format, chart.mode) == ("PNG", "RGB")
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_folders_are_sorted_and_not_searched_deeper_and_nothing_comes_twice(folder: Path) -> None:
    named = ["black.jpg", "blue.jpg", "green.PNG", "red.jpg", "white.PNG"]
    images, others = image_files([folder])
    assert [path.name for path in images] == named
    assert [path.name for path in others] == ["notes.txt"]
    mixed, others = image_files([folder / "white.PNG", folder / "notes.txt", folder, folder / "more"])
    assert [path.name for path in mixed] == ["white.PNG", "notes.txt", *named[:-1], "inner.png"]
    assert others == []


def test_no_file_of_a_folder_is_dropped_in_silence(weights: Path, folder: Path, capsys) -> None:
    Image.new("RGB", (30, 30)).save(folder / "a.tiff")
    Image.new("RGB", (30, 30)).save(folder / "b.TIF")
    (folder / "c.avif").write_bytes(b"no image")  # whatever this Pillow can read
    (folder / "d.heic").write_bytes(b"no image")
    (folder / "README").write_bytes(b"no image")
    assert rerank(weights, "a cat", folder) == 1
    out, err = capsys.readouterr()
    assert {Path(line.split()[2]).name for line in out.splitlines()} >= {"a.tiff", "b.TIF"}
    assert len(out.splitlines()) == 7
    first, *lines = err.splitlines()
    assert first == GUESSED
    assert lines[0].startswith(f"weighted-clip: {folder / 'c.avif'}: no image of a kind that is read: PNG, JPEG, ")
    assert lines[1:] == [
        "files of other kinds in folders, not looked at: 3 (.heic, .txt, README)",
        "1 of 8 files left out",
    ]


def test_images_that_cannot_be_read_are_named_and_left_out(weights: Path, folder: Path, capsys) -> None:
    whole = (folder / "red.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.png").write_bytes(b"")
    Image.new("1", (9000, 9000)).save(folder / "huge.png")
    assert rerank(weights, "a cat", folder, folder / "notes.txt") == 1
    out, err = capsys.readouterr()
    assert [path.name for path in sorted(Path(line.split()[2]) for line in out.splitlines())] == [
        "black.jpg",
        "blue.jpg",
        "green.PNG",
        "red.jpg",
        "white.PNG",
    ]
    first, *lines = err.splitlines()
    assert first == GUESSED
    assert lines[0].startswith(f"weighted-clip: {folder / 'cut.jpg'}: broken image: ")
    assert lines[1].startswith(f"weighted-clip: {folder / 'empty.png'}: {NO_IMAGE}")
    assert lines[2].startswith(f"weighted-clip: {folder / 'huge.png'}: too large: at most 67,108,864 pixels are read")
    assert lines[3].startswith(f"weighted-clip: {folder / 'notes.txt'}: {NO_IMAGE}")
    assert lines[4] == "4 of 9 files left out"
    assert rerank(weights, "a cat", folder / "empty.png") == 1
    assert "none of the 1 images could be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.png"], "nowhere.png: there is no such file or folder"),
        (["."], "no image in this folder; looked for: .png, .jpg, .jpeg, .webp, .bmp, .gif, .tif, .tiff, .avif"),
        (["{image}", "--keep", "0"], "--keep must be at least 1, got 0"),
        (["{image}", "--chart", "ranking.jpg"], "--chart ranking.jpg: the chart is a .png file"),
        (["{image}", "--weights", "none.safetensors"], "none.safetensors: there is no such file"),
        (["{image}", "--weights", "{half}"], "no CLIP image encoder in it"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(
    arguments: list[str], message: str, weights: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    image, half = tmp_path / "a.png", tmp_path / "half.safetensors"
    Image.new("RGB", (8, 8)).save(image)
    save_file({f"text_model.{name}": tensor for name, tensor in seeded_text_model(TEXT).state_dict().items()}, half)
    given = [argument.format(image=image, half=half) for argument in arguments]
    assert main(["rerank", "a cat", "--weights", str(weights), *given]) == 1
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_weights_are_required_with_advice(folder: Path, capsys) -> None:
    assert main(["rerank", "a cat", str(folder)]) == 1
    error = capsys.readouterr().err
    assert "model.safetensors of openai/clip-vit-large-patch14" in error
    assert "checkpoints of Stable Diffusion have no image half" in error


def test_progress_is_counted_on_a_terminal(weights: Path, folder: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True, raising=False)
    assert rerank(weights, "a cat", folder) == 0
    assert "5 of 5 images" in capsys.readouterr().err


TEXTS = ["a red cat", "two blue dogs", "snow"]


def ids_of(text: str) -> list[int]:
    ids = [49406, *(token_id for token_id, _, _ in default_tokenizer()(text)), 49407]
    return ids + [49407] * (77 - len(ids))


def similar(weights: Path, *arguments: object) -> int:
    return main(["similarity", *map(str, arguments), "--weights", str(weights)])


def given(texts: list[str]) -> list[str]:
    return [one for text in texts for one in ("--text", text)]


@pytest.mark.parametrize("softmax", ["none", "over texts", "over images"])
def test_values_are_those_of_transformers(weights: Path, folder: Path, capsys, softmax: str) -> None:
    reference = Reference(weights, TEXT, VISION)
    paths = [folder / f"{color}.{'PNG' if number % 2 else 'jpg'}" for number, color in enumerate(COLORS)]
    ids = [ids_of(text) for text in TEXTS]
    pixels = reference.pixels(paths)
    images, texts = reference.features(pixels, ids)
    expected = {
        "none": texts @ images.T,
        "over texts": reference.probabilities(ids, pixels).T,
        "over images": (texts @ images.T * 54.598).softmax(-1),  # exp(4), the file's logit_scale
    }[softmax]
    assert similar(weights, *paths, *given(TEXTS), "--softmax", softmax, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["texts"] == TEXTS
    assert found["images"] == [str(path) for path in paths]
    assert found["softmax"] == softmax
    torch.testing.assert_close(torch.tensor(found["values"]), expected, rtol=0, atol=2e-5)
    assert torch.tensor(found["values"]).std() > 1e-3


def test_people_get_a_line_for_each_image(weights: Path, folder: Path, capsys) -> None:
    assert similar(weights, folder, *given(TEXTS[:2]), "--json") == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert similar(weights, folder, *given(TEXTS[:2])) == 0
    out, err = capsys.readouterr()
    first, second, head, *lines = out.splitlines()
    assert (first, second, head.split()) == ("text 1: a red cat", "text 2: two blue dogs", ["1", "2"])
    assert len(lines) == len(COLORS)
    for index, line in enumerate(lines):
        assert line.split()[:2] == [f"{row[index]:.4f}" for row in values]
    assert "not looked at: 1 (.txt)" in err


def test_texts_come_from_a_file_or_the_standard_input(
    weights: Path, folder: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts.txt").write_text("\ufeffa red cat\n\n  snow \n", encoding="utf-8")
    assert similar(weights, folder, "--texts", tmp_path / "texts.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["texts"] == ["a red cat", "snow"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("snow\nice\n"))
    assert similar(weights, folder, "--text", "first", "--texts", "-", "--json") == 0
    assert json.loads(capsys.readouterr().out)["texts"] == ["first", "snow", "ice"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a cat\ncaf\xe9\n", r"texts\.txt:2: byte 4 of this line, 0xe9, is not UTF-8"),
        (b"a cat\n\n" + b"x" * 100_000, r"texts\.txt:3: this line is longer than 65536 bytes"),
        (None, r"--texts .*texts\.txt: this is a folder"),
    ],
)
def test_a_file_of_texts_that_cannot_be_read_is_named_with_the_line(
    weights: Path, folder: Path, tmp_path: Path, capsys, content: bytes | None, message: str
) -> None:
    path = tmp_path / "texts.txt"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    assert similar(weights, folder, "--text", "a", "--texts", path) == 1
    assert re.search(message, capsys.readouterr().err)


def test_a_matrix_is_drawn_and_weights_are_left_out(weights: Path, folder: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "charts" / "matrix.png"
    assert similar(weights, folder, "--text", "a (red:1.4) cat", "--syntax", "a1111", "--chart", file) == 0
    with Image.open(file) as chart:
        assert chart.width > 400
    assert "'a (red:1.4) cat': " in capsys.readouterr().err


def test_images_that_cannot_be_read_are_not_compared(weights: Path, folder: Path, capsys) -> None:
    assert similar(weights, folder / "notes.txt", folder / "red.jpg", "--text", "snow", "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["images"] == [str(folder / "red.jpg")]
    assert NO_IMAGE in err
    assert "1 of 2 files left out" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["images"], "there is no text to compare with: give --text TEXT"),
        (["images", "--text", " "], "there is no text to compare with"),
        (["nowhere", "--text", "a"], "nowhere: there is no such file or folder"),
        (["images", "--text", "a", "--temperature", "0.1"], "--temperature 0.1 counts with --softmax only"),
        (["images", "--text", "a", "--softmax", "over texts", "--temperature", "0"], "must be above 0, got 0"),
        (["images", "--text", "a", "--chart", "a.svg"], "--chart a.svg: the chart is a .png file"),
        (["images", "--texts", "no.txt"], "no.txt"),
    ],
)
def test_what_similarity_cannot_do_is_said(
    weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str, capsys
) -> None:
    monkeypatch.chdir(folder.parent)
    assert similar(weights, *arguments) == 1
    assert message in capsys.readouterr().err


def test_without_weights_similarity_says_which(folder: Path, capsys) -> None:
    assert main(["similarity", str(folder), "--text", "a"]) == 1
    told = capsys.readouterr().err
    assert "similarity needs --weights FILE with a whole CLIP" in told
    assert "random weights would compare at random" in told
