"""Runs whose model is divided over processes: the same results and checkpoints as without, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ..launching import launched
from .runs import Start, log_of, tensors_of

SHARDED = Path(__file__).with_name("sharded.py")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [["--towers", "both", "--ema", "0.5", "--patience", "9"], ["--lora", "2", "--merge", "0.5", "--keep", "3"]],
    ids=["both with an average", "a LoRA"],
)
def test_a_divided_run_goes_on_divided_or_not(weights: Path, pairs: Path, tmp_path: Path, options: list[str]) -> None:
    usual = ["train", pairs, "--weights", weights, "--device", "cpu", "--batch", "4", "--accumulate", "2"]
    usual += ["--rate", "1e-4", "--held-out", "4", "--steps", "6", *options]

    done = launched(2, SHARDED, tmp_path, *usual)
    assert done.returncode == 0, done.stderr
    assert "stopped after step 3 of 6" in done.stdout
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert all(type(tensor) is torch.Tensor for tensor in state["model"].values())
    plain, divided, resumed, on_plain = (tmp_path / name for name in ("plain", "divided", "stopped", "on plain"))
    for name, of in ((resumed, divided), (on_plain, plain), (divided, plain)):
        for file in of.glob("*.safetensors"):
            expected, found = tensors_of(file), tensors_of(name / file.name)
            assert expected.keys() == found.keys()
            for key, tensor in expected.items():
                if name == resumed:
                    assert torch.equal(tensor, found[key]), key
                assert (tensor - found[key]).abs().max() < 4e-5, key  # true gradients of 0 are steps of AdamW
    for ours, theirs in zip(log_of(divided), log_of(plain), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_one_process_has_nothing_to_divide(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    assert start("--steps", "1", "--shard") == 0
    assert "--shard: there is one process, so nothing is divided" in capsys.readouterr().out
