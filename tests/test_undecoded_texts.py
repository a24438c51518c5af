"""Texts that are not UTF-8, as arguments, in files, on the standard input: refused before anything is loaded."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from weighted_clip.studio.commands.program import main

BAD = b"caf\xe9".decode("utf-8", "surrogateescape")
PLAIN = ["encode", "a cat", "--weights", "none.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["encode", BAD, "--weights", "none.safetensors"], "text"),
        ([*PLAIN, "--bind", "cat", "--bind", BAD], "bind"),
        ([*PLAIN, "--bind-words", BAD], "bind-words"),
        ([*PLAIN, "--filler", BAD], "filler"),
        (["inspect", BAD], "text"),
        (["inspect", "a", "--attention", BAD], "attention"),
        (["schedule", BAD], "text"),
        (["convert", BAD], "text"),
        (["rerank", BAD, "pictures", "--weights", "none.safetensors"], "text"),
        (["similarity", "pictures", "--weights", "none.safetensors", "--text", "a", "--text", BAD], "text"),
        (["dalle", "sample", "none.safetensors", BAD, "--out", "out"], "caption"),
    ],
)
def test_arguments_of_every_command_are_looked_at(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    out, told = capsys.readouterr()
    assert not out and told.startswith(f"weighted-clip: {name}: ")
    assert "0xe9" in told and "caf'" in told and len(told.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("command", ["inspect", "convert", "schedule", "encode"])
def test_the_standard_input_is_looked_at(
    command: str, errors: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a C locale Python decodes with surrogates, and else ends without a word on where the byte is."""
    given = io.TextIOWrapper(io.BytesIO(b"a cat\ncaf\xe9"), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", given)
    arguments = ["--weights", "none.safetensors"] if command == "encode" else []
    assert main([command, "-", *arguments]) == 1
    told = capsys.readouterr().err
    assert "standard input: line 2 has the byte 0xe9 after 'a cat\\ncaf'" in told


def test_files_of_texts_are_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "texts.txt", tmp_path / "a.png"
    file.write_bytes(b"a cat\n\xff dog")
    picture.touch()
    arguments = ["similarity", str(picture), "--weights", "none.safetensors", "--texts", str(file)]
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert f"{file}:2: byte 1 of this line, 0xff, is not UTF-8" in told


def test_names_of_files_need_not_be_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["encode", "--batch", str(tmp_path / BAD), "--out", str(tmp_path)]) == 1
    assert "there is no such file" in capsys.readouterr().err
