"""The command line, in this process and once as a program."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from weighted_clip.commands.program import main
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model

ROOT = Path(__file__).resolve().parents[1]
L = TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=128)
G = TextConfig(hidden_dim=128, num_heads=2, num_layers=3, mlp_dim=128, activation="gelu", projection_dim=96, pad_id=0)


@pytest.fixture
def sdxl(tmp_path: Path) -> Path:
    """Two small towers as ComfyUI saves SDXL's."""
    tensors = {}
    for tower, config in (("clip_l", L), ("clip_g", G)):
        for name, tensor in seeded_text_model(config).state_dict().items():
            place = "" if name.startswith("text_projection") else "text_model."
            tensors[f"text_encoders.{tower}.transformer.{place}{name}"] = tensor
    path = tmp_path / "sdxl.safetensors"
    save_file(tensors, path)
    return path


def encode(tmp_path: Path, text: str, *arguments: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    out = tmp_path / "out"
    assert main(["encode", text, "--out", str(out), "--no-pictures", *arguments]) == 0
    with safe_open(out / "prompt.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_encode_joins_the_towers_of_sdxl(sdxl: Path, tmp_path: Path, capsys) -> None:
    tensors, metadata = encode(tmp_path, "a (red:1.4) cat", "--weights", str(sdxl))
    assert tensors["hidden"].shape == (1, 77, 64 + 128)
    assert tensors["pooled"].shape == (1, 96)
    assert metadata["prompt"] == "a (red:1.4) cat"
    assert metadata["scheme"] == "a1111"
    shown = capsys.readouterr().out
    assert "clip_l: a1111, 1 encoding -> 77 rows of 64" in shown
    assert "clip_g: a1111, 1 encoding -> 77 rows of 128" in shown


def test_encode_takes_embeddings_from_a_folder(sdxl: Path, tmp_path: Path, capsys) -> None:
    folder = tmp_path / "embeddings"
    folder.mkdir()
    save_file({"clip_l": torch.full((2, 64), 0.1), "clip_g": torch.full((2, 128), 0.1)}, folder / "style.safetensors")
    known, _ = encode(tmp_path, "a style cat", "--weights", str(sdxl), "--embeddings", str(folder))
    assert "style[1]" in capsys.readouterr().out
    plain, _ = encode(tmp_path, "a style cat", "--weights", str(sdxl))
    assert (known["hidden"] - plain["hidden"]).abs().amax(dim=(0, 1))[[0, 70]].min() > 0.01  # in both towers
    assert main(["inspect", "a style cat", "--embeddings", str(tmp_path / "nowhere")]) == 1
    assert "there is no such folder" in capsys.readouterr().err


def test_inspect_prints_the_view_as_json(capsys) -> None:
    assert main(["inspect", "a (cat:1.2)", "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert [(chip["text"], chip["weight"]) for chip in view["chunks"][0]["chips"]] == [("a", 1.0), ("cat", 1.2)]


@pytest.mark.parametrize(
    ("command", "cleaned", "as_it_is"),
    [
        (["schedule"], "'a “b”'", "'a “b” # c'"),
        (["convert", "--to", "comfy"], 'a "b"', "a “b” # c"),
        (["inspect"], "4/75 tokens", "8/75 tokens"),
    ],
)
def test_commands_clean_as_forge_unless_told_otherwise(capsys, command: list[str], cleaned: str, as_it_is: str) -> None:
    name, *options = command
    for cleaning, expected in ((), cleaned), (("--cleaning", "none"), as_it_is):
        assert main([name, "a “b” # c", *options, *cleaning]) == 0
        assert expected in capsys.readouterr().out


def test_schedule_prints_each_text_with_its_steps(capsys) -> None:
    assert main(["schedule", "a [cat:dog:0.5] AND b:0.3", "--steps", "4", "--counter", "as written"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "part 1 of 2, weight 1",
        "steps 1 to 2 'a cat'",
        "steps 3 to 4 'a dog'",
        "part 2 of 2, weight 0.3",
        "steps 1 to 4 ' b'",
    ]


def test_problems_go_to_the_error_stream(capsys) -> None:
    assert main(["schedule", "at 8:30"]) == 0
    assert "“:30” at the end of a prompt" in capsys.readouterr().err
    assert main(["convert", "a BREAK b"]) == 0
    assert "BREAK" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schedule", "a", "--steps", "0"], "steps must be 1 to 10000, got 0"),
        (["encode", "a", "--weights", "nowhere.safetensors"], "nowhere.safetensors: there is no such file"),
        (["encode", "a", "--clip-skip", "0"], "clip_skip 0 is out of range"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(arguments: list[str], message: str, capsys) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["torch", "numpy", "safetensors", "tokenizers", "PIL"])
def test_a_missing_package_is_named_in_a_line(name: str, tmp_path: Path) -> None:
    start = f"import runpy, sys; sys.modules[{name!r}] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    command = [sys.executable, "-c", start, str(ROOT / "__main__.py"), "encode", "a cat", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"weighted-clip: {sys.executable} has no {name}. python run.py ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["__main__.py", "."])
def test_it_starts_as_a_file_and_as_a_folder(target: str) -> None:
    command = [sys.executable, str(ROOT / target), "schedule", "[a|b]", "--steps", "2", "--counter", "as written"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["step", "1", "'a'", "step", "2", "'b'"]


def test_pictures_are_those_of_the_prompt_and_figures_are_drawn_when_asked_for(sdxl: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    given = ["encode", "a (cat:0.5)", "--weights", str(sdxl), "--out", str(folder)]
    assert main(given) == 0
    assert {path.name for path in folder.glob("*.png")} == {"prompt-tokens.png", "prompt-masks.png"}
    assert main([*given, "--figures"]) == 0
    assert {path.name for path in folder.glob("*.png")} == {
        f"prompt-{part}.png" for part in ("tokens", "masks", "figure-masks", "architecture")
    }
    with pytest.raises(SystemExit):
        main([*given, "--figures", "--no-pictures"])
