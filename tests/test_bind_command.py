"""The options of ``encode`` by which phrases are kept apart, for one prompt and for a file of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from weighted_clip.commands.program import main
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.output.shards import read_shards
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt

from .door import encode_prompt
from .test_bulk_command import weights

__all__ = ["weights"]

TEXT = "a red cat, a blue dog"


def native(weights: Path, text: str = TEXT, **options: object) -> torch.Tensor:
    encoder = TextEncoder(load_text_models(weights)[0]["clip_l"])
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
    arguments: list[str], options: dict[str, object], told: str, weights: Path, tmp_path: Path, capsys
) -> None:
    out = tmp_path / "out"
    assert main(["encode", TEXT, "--weights", str(weights), "--out", str(out), "--no-pictures", *arguments]) == 0
    assert told in capsys.readouterr().out
    with safe_open(out / "prompt.safetensors", "pt") as file:
        hidden = file.get_tensor("hidden")
        metadata = file.metadata()
    expected = native(weights, **options)
    torch.testing.assert_close(hidden[0], expected, rtol=0, atol=1e-5)
    assert not torch.allclose(expected, native(weights), atol=1e-3)
    assert "bind" in str(metadata)


def test_lines_of_a_file_bind_what_they_have(weights: Path, tmp_path: Path, capsys) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    texts = ("a red cat and a blue dog", "a blue dog and a red cat", "a blue dog")
    prompts.write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = ["encode", "--batch", str(prompts), "--weights", str(weights), "--out", str(out)]
    assert main([*command, "--bind", "red cat", "--bind", "blue dog"]) == 0
    assert "3: “red cat” is not in the prompt" in capsys.readouterr().err
    binds = ("red cat\nblue dog", "red cat\nblue dog", "blue dog")
    for row, text, bind in zip(read_shards(out), texts, binds, strict=True):
        torch.testing.assert_close(row.hidden, native(weights, text, bind=bind), rtol=0, atol=1e-5)


def test_what_cannot_be_bound_is_named_with_its_line(weights: Path, tmp_path: Path, capsys) -> None:
    prompts, out = tmp_path / "prompts.txt", tmp_path / "out"
    prompts.write_text("a red cat\na (red:1.2) cat, a dog\n", encoding="utf-8")
    command = ["encode", "--batch", str(prompts), "--weights", str(weights), "--out", str(out)]
    assert main([*command, "--bind-hide", "cutoff", "--bind-words", "red"]) == 1
    assert "prompts.txt:2: With weights, cutoff goes with the schemes comfy," in capsys.readouterr().err
    assert main(["encode", TEXT, "--weights", str(weights), "--out", str(out), "--bind", "bird"]) == 1
    assert "“bird” is not in the prompt" in capsys.readouterr().err
