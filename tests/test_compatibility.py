"""Rows of compatibility.py, limits of an old torch, and that the development set is complete."""

import importlib
import importlib.metadata
import sys
from pathlib import Path

import pytest
import torch
from weighted_clip.studio.commands.program import main

from .compatibility import ROWS
from .libraries import COMPARED, library, numbers


def test_every_row_names_what_it_wants_of_torch() -> None:
    for name, row in ROWS.items():
        assert any(pin.startswith("torch") for pin in row.pins), name
    # has no hash in the list, so pip takes the rest of the list by hash only where it is there already
    pinned = (Path(__file__).parents[1] / "requirements/lab.txt").read_text(encoding="utf-8").splitlines()
    assert ROWS["development"].pins[0] in pinned


def test_the_development_set_skips_no_comparison() -> None:
    """If its tools are installed, so must be everything that tests compare with; otherwise they would be skipped
    unseen.
    """
    if not list(importlib.metadata.distributions(name="import-linter")):
        pytest.skip("these are not the libraries of requirements/dev.txt")
    for name in (*COMPARED, "gradio"):
        importlib.import_module(name)


def test_a_library_that_is_too_old_or_missing_skips_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match="compares with compel, which cannot be imported"):
        monkeypatch.setitem(sys.modules, "compel", None)
        library("compel")
    monkeypatch.setitem(sys.modules, "compel", pytest)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.0.3")
    assert library("compel", "2.0") is pytest
    with pytest.raises(pytest.skip.Exception, match=r"compares with compel from 2\.1 on; 2\.0\.3 is installed"):
        library("compel", "2.1")
    assert numbers("2.13.0+cpu") == (2, 13, 0) > numbers("2.9") > numbers("2")


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
