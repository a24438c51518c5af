"""The command ``similarity`` against transformers' CLIPModel, and what it prints, draws and refuses."""

import io
import json
import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from weighted_clip.commands.program import main
from weighted_clip.encoder.tokenizer import default_tokenizer

from . import test_rerank_command as rerank
from .test_rerank_command import COLORS, NO_IMAGE, TEXT, VISION
from .transformers_clip import Reference

weights, folder = rerank.weights, rerank.folder
"""Fixtures."""
TEXTS = ["a red cat", "two blue dogs", "snow"]


def ids_of(text: str) -> list[int]:
    ids = [49406, *(token_id for token_id, _, _ in default_tokenizer()(text)), 49407]
    return ids + [49407] * (77 - len(ids))


def run(weights: Path, *arguments: object) -> int:
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
    assert run(weights, *paths, *given(TEXTS), "--softmax", softmax, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["texts"] == TEXTS
    assert found["images"] == [str(path) for path in paths]
    assert found["softmax"] == softmax
    torch.testing.assert_close(torch.tensor(found["values"]), expected, rtol=0, atol=2e-5)
    assert torch.tensor(found["values"]).std() > 1e-3


def test_people_get_a_line_for_each_image(weights: Path, folder: Path, capsys) -> None:
    assert run(weights, folder, *given(TEXTS[:2]), "--json") == 0
    values = json.loads(capsys.readouterr().out)["values"]
    assert run(weights, folder, *given(TEXTS[:2])) == 0
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
    assert run(weights, folder, "--texts", tmp_path / "texts.txt", "--json") == 0
    assert json.loads(capsys.readouterr().out)["texts"] == ["a red cat", "snow"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("snow\nice\n"))
    assert run(weights, folder, "--text", "first", "--texts", "-", "--json") == 0
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
    assert run(weights, folder, "--text", "a", "--texts", path) == 1
    assert re.search(message, capsys.readouterr().err)


def test_a_chart_is_drawn_and_weights_are_left_out(weights: Path, folder: Path, tmp_path: Path, capsys) -> None:
    file = tmp_path / "charts" / "matrix.png"
    assert run(weights, folder, "--text", "a (red:1.4) cat", "--syntax", "a1111", "--chart", file) == 0
    with Image.open(file) as chart:
        assert chart.width > 400
    assert "'a (red:1.4) cat': " in capsys.readouterr().err


def test_images_that_cannot_be_read_are_left_out(weights: Path, folder: Path, capsys) -> None:
    assert run(weights, folder / "notes.txt", folder / "red.jpg", "--text", "snow", "--json") == 1
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
def test_what_it_cannot_do_is_said(
    weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str, capsys
) -> None:
    monkeypatch.chdir(folder.parent)
    assert run(weights, *arguments) == 1
    assert message in capsys.readouterr().err


def test_without_weights_it_says_which(folder: Path, capsys) -> None:
    assert main(["similarity", str(folder), "--text", "a"]) == 1
    told = capsys.readouterr().err
    assert "similarity needs --weights FILE with a whole CLIP" in told
    assert "random weights would compare at random" in told
