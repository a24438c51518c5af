"""The command line, in this process and once as a program: a prompt read, converted, bound, encoded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import load_text_models, seeded_text_model
from weighted_clip.encoder.models.attention_weights import attention_weights
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.output.shards import read_shards
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt

from . import test_bulk_command as bulk
from .door import encode_prompt
from .web.conftest import SMALL, save_clip

ROOT = Path(__file__).resolve().parents[1]
clip_l, sdxl = bulk.weights, bulk.sdxl
"""Fixtures."""


def encode(tmp_path: Path, text: str, *arguments: str) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    out = tmp_path / "out"
    assert main(["encode", text, "--out", str(out), "--no-pictures", *arguments]) == 0
    with safe_open(out / "prompt.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def test_encode_joins_the_towers_of_sdxl(sdxl: Path, tmp_path: Path, capsys) -> None:
    tensors, metadata = encode(tmp_path, "a (red:1.4) cat", "--weights", str(sdxl))
    assert tensors["hidden"].shape == (1, 77, 64 + 128)
    assert tensors["pooled"].shape == (1, 32)
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


def test_pictures_are_those_of_the_prompt(sdxl: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    given = ["encode", "a (cat:0.5)", "--weights", str(sdxl), "--out", str(folder)]
    assert main(given) == 0
    assert {path.name for path in folder.glob("*.png")} == {"prompt-tokens.png", "prompt-masks.png"}


BOWL = "a red cat and a (dog:0.5) in a bowl"


def test_tokens_that_are_parts_of_characters_say_which(capsys) -> None:
    assert main(["inspect", "fox 🦊, é"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("'fox'")
    assert lines[2].endswith("f0 9f a6: bytes 1 to 3 of 4 of 🦊")
    assert lines[3].endswith("8a: byte 4 of 4 of 🦊")
    assert lines[5].endswith("'é'")


def test_attention_is_that_of_the_encoder(tmp_path: Path, capsys) -> None:
    weights = save_clip(tmp_path / "clip.safetensors", is_whole=False)
    asked = ["inspect", BOWL, "--attention", "Dog", "--layer", "2", "--head", "1", "--weights", str(weights)]
    assert main([*asked, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["attention"]
    ids = [49406, *(one.id for one in default_tokenizer()("a red cat and a dog in a bowl"))]
    ids += [49407] * (77 - len(ids))
    expected = attention_weights(seeded_text_model(SMALL), torch.tensor([ids]), layer=2)[0, 0, 6]
    assert (found["position"], found["text"], found["chunk"]) == (6, "dog", 1)
    assert [label for label, _ in found["weights"]] == ["BOS", "a", "red", "cat", "and", "a", "dog"]
    assert [share for _, share in found["weights"]] == pytest.approx(expected[:7].tolist(), abs=1e-4)
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    told = next(line for line in lines if line.startswith("layer 2 of 2, head 1 of 1: dog attends "))
    after = lines[lines.index(told) + 1 :]
    assert [line.split()[0] for line in after] == ["0", "1", "2", "3", "4", "5", "6"]
    assert after[3].split()[1] == "'cat'"


def test_each_place_and_chunk_of_the_word_is_shown(tmp_path: Path, capsys) -> None:
    weights = save_clip(tmp_path / "clip.safetensors", is_whole=False)
    assert main(["inspect", "a cat BREAK a", "--attention", "a", "--json", "--weights", str(weights)]) == 0
    found = json.loads(capsys.readouterr().out)["attention"]
    assert [(one["chunk"], one["position"]) for one in found] == [(1, 1), (2, 1)]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--attention", "horse"], "--attention horse: no token is this; there are BOS, a, red"),
        (["--attention", "cat", "--layer", "3"], "--layer 3: clip_l has 1 to 2"),
        (["--attention", "cat", "--head", "2"], "--head 2: clip_l has 0 to 1"),
        (["--layer", "2"], "count with --attention WORD only"),
    ],
)
def test_attention_that_is_not_there_is_said(tmp_path: Path, given: list[str], told: str, capsys) -> None:
    weights = save_clip(tmp_path / "clip.safetensors", is_whole=False)
    assert main(["inspect", BOWL, *given, "--weights", str(weights)]) == 1
    assert told in capsys.readouterr().err


TWO = "a red cat, a blue dog"


def native(clip_l: Path, text: str = TWO, **options: object) -> torch.Tensor:
    encoder = TextEncoder(load_text_models(clip_l)[0]["clip_l"])
    read = read_prompt(text, EncodeOptions(syntax="a1111", scheme="a1111", **options), default_tokenizer())
    return encode_prompt(read, encoder, default_tokenizer()).hidden[0].detach()


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        (
            ["--bind", "red cat", "--bind", "blue dog", "--bind-rest", "alone", "--bind-strength", "0.5"],
            {"bind": "red cat\nblue dog", "bind_rest": "alone", "bind_strength": 0.5},
            "2 phrases kept apart in 4 passes",
        ),
        (
            ["--bind-hide", "cutoff", "--bind-words", "red", "--bind-words", "blue"],
            {"bind_hide": "cutoff", "bind_words": "red\nblue"},
            "2 phrases kept apart in 3 passes",
        ),
    ],
)
def test_phrases_are_kept_apart(
    arguments: list[str], options: dict[str, object], told: str, clip_l: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    assert main(["encode", TWO, "--weights", str(clip_l), "--out", str(out), "--no-pictures", *arguments]) == 0
    assert told in capsys.readouterr().out
    with safe_open(out / "prompt.safetensors", "pt") as file:
        hidden = file.get_tensor("hidden")
        metadata = file.metadata()
    expected = native(clip_l, **options)
    torch.testing.assert_close(hidden[0], expected, rtol=0, atol=1e-5)
    assert not torch.allclose(expected, native(clip_l), atol=1e-3)
    assert "bind" in str(metadata)


def test_lines_of_a_file_bind_what_they_have(clip_l: Path, tmp_path: Path, capsys) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    texts = ("a red cat and a blue dog", "a blue dog and a red cat", "a blue dog")
    prompts.write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = ["encode", "--batch", str(prompts), "--weights", str(clip_l), "--out", str(out)]
    assert main([*command, "--bind", "red cat", "--bind", "blue dog"]) == 0
    assert "3: “red cat” is not in the prompt" in capsys.readouterr().err
    binds = ("red cat\nblue dog", "red cat\nblue dog", "blue dog")
    for row, text, bind in zip(read_shards(out), texts, binds, strict=True):
        torch.testing.assert_close(row.hidden, native(clip_l, text, bind=bind), rtol=0, atol=1e-5)


def test_what_cannot_be_bound_is_named_with_its_line(clip_l: Path, tmp_path: Path, capsys) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    prompts.write_text("a red cat\na (red:1.2) cat, a dog\n", encoding="utf-8")
    command = ["encode", "--batch", str(prompts), "--weights", str(clip_l), "--out", str(out)]
    assert main([*command, "--bind-hide", "cutoff", "--bind-words", "red"]) == 1
    assert "prompts.txt:2: With weights, cutoff goes with the schemes comfy," in capsys.readouterr().err
    assert main(["encode", TWO, "--weights", str(clip_l), "--out", str(out), "--bind", "bird"]) == 1
    assert "“bird” is not in the prompt" in capsys.readouterr().err
