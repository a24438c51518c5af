"""Output of commands for hostile prompts and file names: escapes on a terminal, the exact text in a file or a pipe."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import unicodedata
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.studio.commands.program import main

from .test_rerank_command import weights as clip  # noqa: F401

ROOT = Path(__file__).resolve().parents[1]
HOSTILE = "a \x1b]0;title\x07 cat\x9b31m \x08\x7f\r dog \u202etxt.\u2066exe \u200f\u061c\u2028 {"
REVERSING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class Terminal(io.StringIO):
    """Takes what is written to a terminal."""

    def isatty(self) -> bool:
        return True


def obeyed(text: str) -> set[str]:
    """Characters that a terminal does not just show."""
    return {
        character
        for character in text
        if (unicodedata.category(character) in ("Cc", "Zl", "Zp") and character not in "\n\t")
        or unicodedata.bidirectional(character) in REVERSING
        or character in "\u200e\u200f\u061c"
    }


def on_terminal(*arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of a command."""
    out, errors = Terminal(), Terminal()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            status = main(arguments)
        except SystemExit as error:  # argparse's
            status = int(error.code or 0)
    return status, out.getvalue(), errors.getvalue()


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A text encoder in a file with a hostile name."""
    config = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64, projection_dim=64)
    path = tmp_path / "we\x1b[2Kights\u202e.safetensors"
    save_file({f"text_model.{name}": tensor for name, tensor in seeded_text_model(config).state_dict().items()}, path)
    return path


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["inspect", HOSTILE], 0),
        (["inspect", HOSTILE, "--json"], 0),
        (["inspect", "('a\x1b[2K\u202e','b').blend(1)", "--syntax", "compel", "--strict"], 1),
        (["convert", HOSTILE], 0),
        (["convert", f"<lora:{HOSTILE}:1> [{HOSTILE}|b]", "--to", "compel"], 0),
        (["schedule", f"[a:{HOSTILE}:0.5] AND b {HOSTILE}:0.2"], 0),
        (["encode", HOSTILE, "--no-pictures", "--weights", "{named}", "--out", "{out}"], 0),
        (["encode", "--batch", "{lines}", "--weights", "{named}", "--out", "{out}"], 0),
        (["encode", "a", "--weights", f"nowhere {HOSTILE}.safetensors"], 1),
        (["inspect", "a", "--embeddings", f"nowhere {HOSTILE}"], 1),
        (["convert", "a", f"--{HOSTILE}"], 2),
        (["convert", "a", "--to", HOSTILE], 2),
    ],
)
def test_a_terminal_obeys_nothing_of_a_prompt_or_a_name(
    arguments: list[str], status: int, named: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "li\x1b[2Knes.txt"
    lines.write_text(f"a <lora:{HOSTILE.translate({13: None, 8232: None})}:1>\n", encoding="utf-8")
    places = {"{named}": str(named), "{lines}": str(lines), "{out}": str(tmp_path / "o\x9but")}
    found, out, errors = on_terminal(*(places.get(argument, argument) for argument in arguments))
    assert found == status
    assert out + errors
    assert obeyed(out + errors) == set()


def test_rerank_shows_names_of_files_as_escapes(
    clip: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (30, 30)).save(folder / "ca\x1b[2Kt\u202e.png")
    (folder / "do\x1b[2Kg.png").write_bytes(b"no image")
    (folder / "notes.\x9b2J").write_bytes(b"no image")
    status, out, errors = on_terminal("rerank", "a cat", str(folder), "--weights", str(clip))
    assert status == 1
    assert r"ca\x1b[2Kt\u202e.png" in out
    assert r"do\x1b[2Kg.png: no image" in errors
    assert r".\x9b2j" in errors
    assert obeyed(out) == set()
    assert obeyed(errors) == {"\r"}  # of the counter's line


def test_a_file_or_a_pipe_gets_the_very_text(capsys) -> None:
    assert main(["convert", "--to", "a1111", HOSTILE]) == 0
    assert capsys.readouterr().out == f"{HOSTILE}\n"
    done = subprocess.run(
        [sys.executable, str(ROOT), "convert", "--to", "a1111", "-"],
        input=HOSTILE.replace("\r", "").encode(),
        capture_output=True,
        check=True,
    )
    assert done.stdout == HOSTILE.replace("\r", "").encode() + os.linesep.encode()


def test_json_is_the_same_data_everywhere(capsys) -> None:
    status, out, _ = on_terminal("inspect", HOSTILE, "--json")
    assert status == 0
    assert main(["inspect", HOSTILE, "--json"]) == 0
    assert json.loads(out) == json.loads(capsys.readouterr().out)
    assert json.loads(out)["text"] == HOSTILE


def test_a_real_terminal_gets_escapes() -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT), "convert", "--to", "a1111", HOSTILE]
    subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=True, env={**os.environ, "PYTHONUTF8": "1"})
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert r"\x1b]0;title\x07 cat\x9b31m \x08\x7f\r dog \u202etxt.\u2066exe" in shown
    assert obeyed(shown) == {"\r"}  # the terminal's own, at the line's end
