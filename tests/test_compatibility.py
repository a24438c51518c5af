"""Rows of compatibility.py, limits of an old torch, and that the development set is complete."""

import importlib
import importlib.metadata

import pytest
import torch
from weighted_clip.studio.commands.program import main

from .libraries import COMPARED


def test_the_development_set_skips_no_comparison() -> None:
    """If its tools are installed, so must be everything that tests compare with; otherwise they would be skipped
    unseen.
    """
    if not list(importlib.metadata.distributions(name="import-linter")):
        pytest.skip("these are not the libraries of requirements/dev.txt")
    for name in (*COMPARED, "gradio"):
        importlib.import_module(name)


def test_a_torch_without_fp16_on_the_cpu_is_told_of_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As torch 2.1 has it, where the error came out of the middle of the encoder."""
    real = torch.nn.functional.layer_norm

    def layer_norm(states: torch.Tensor, *arguments: object) -> torch.Tensor:
        if states.dtype == torch.float16:
            raise RuntimeError("\"LayerNormKernelImpl\" not implemented for 'Half'")
        return real(states, *arguments)

    monkeypatch.setattr(torch.nn.functional, "layer_norm", layer_norm)
    assert main(["encode", "a cat", "--dtype", "fp16"]) == 1
    assert "has no fp16 arithmetic on the CPU; use --dtype fp32" in capsys.readouterr().err
