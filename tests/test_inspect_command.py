"""The command ``inspect``: bytes of tokens, and whose attention it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from weighted_clip.commands.program import main
from weighted_clip.encoder.attention_weights import attention_weights
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.tokenizer import default_tokenizer

from .web.conftest import SMALL, save_clip

PROMPT = "a red cat and a (dog:0.5) in a bowl"


def test_tokens_that_are_parts_of_characters_say_which(capsys) -> None:
    assert main(["inspect", "fox 🦊, é"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("'fox'")
    assert lines[2].endswith("f0 9f a6: bytes 1 to 3 of 4 of 🦊")
    assert lines[3].endswith("8a: byte 4 of 4 of 🦊")
    assert lines[5].endswith("'é'")


def test_attention_is_that_of_the_encoder(tmp_path: Path, capsys) -> None:
    weights = save_clip(tmp_path / "clip.safetensors", is_whole=False)
    asked = ["inspect", PROMPT, "--attention", "Dog", "--layer", "2", "--head", "1", "--weights", str(weights)]
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
def test_what_is_not_there_is_said(tmp_path: Path, given: list[str], told: str, capsys) -> None:
    weights = save_clip(tmp_path / "clip.safetensors", is_whole=False)
    assert main(["inspect", PROMPT, *given, "--weights", str(weights)]) == 1
    assert told in capsys.readouterr().err
