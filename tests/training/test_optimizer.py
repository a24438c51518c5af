"""The optimizers: AdamW in one pass over each tensor, and where PyTorch has no such on a CPU; Adafactor; 8 bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.studio.training.optimizer import BETAS, EPS, OPTIMIZERS, AdamW, adafactor, adamw
from weighted_clip.studio.training.scaling.distributed import declare_missing_operators

from ..libraries import is_torch, library
from .runs import Start

KINDS = ["fused", "of an older PyTorch"]


@pytest.mark.parametrize("kind", KINDS)
def test_adamw_equals_the_plain_one_of_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.optim.AdamW
    if kind == KINDS[0]:
        if not is_torch("2.4"):
            pytest.skip(f"torch {torch.__version__} has no fused AdamW on a CPU")
    else:

        def older(*given: Any, fused: bool | None = None, **options: Any) -> torch.optim.Optimizer:
            if fused:
                raise RuntimeError(
                    "`fused=True` requires all the params to be floating point Tensors of supported devices"
                )
            return AdamW(*given, **options)

        monkeypatch.setattr("weighted_clip.studio.training.optimizer.AdamW", older)

    def moved(make: Any) -> tuple[torch.Tensor, Any]:
        generator = torch.Generator().manual_seed(0)
        weight, bias = (
            torch.nn.Parameter(torch.randn(*shape, dtype=torch.float64, generator=generator))
            for shape in ((5, 3), (5,))
        )
        groups = [
            {"params": [weight], "lr": 1e-2, "weight_decay": 0.1},
            {"params": [bias], "lr": 0.1, "weight_decay": 0.0},
        ]
        optimizer = make(groups)
        for _ in range(20):
            for parameter in (weight, bias):
                parameter.grad = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            optimizer.step()
        return torch.cat([weight.detach().flatten(), bias.detach()]), optimizer.defaults["fused"]

    expected, _ = moved(lambda groups: plain(groups, betas=BETAS, eps=EPS, foreach=False))
    found, fused = moved(adamw)
    assert (found - expected).abs().max() <= 1e-13
    assert bool(fused) == (kind == KINDS[0])


def matrices() -> Iterator[tuple[torch.nn.Parameter, list[torch.Tensor]]]:
    """Parameters with the gradients of five steps, some of them large."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((6, 9), (9,), (3, 4)):
        start = torch.randn(shape, generator=generator, dtype=torch.float64)
        steps = [torch.randn(shape, generator=generator, dtype=torch.float64) * 5**step for step in range(5)]
        yield torch.nn.Parameter(start), steps


def test_adafactor_is_that_of_transformers() -> None:
    if not is_torch("2.5"):
        pytest.skip("PyTorch's Adafactor is newer")
    library("transformers")
    declare_missing_operators()
    from transformers.optimization import Adafactor

    ours, theirs = list(matrices()), list(matrices())
    one = adafactor([{"params": [parameter for parameter, _ in ours], "lr": 1e-2, "weight_decay": 0.0}])
    other = Adafactor([parameter for parameter, _ in theirs], lr=1e-2, relative_step=False, scale_parameter=True)
    for step in range(5):
        for optimizer, some in ((one, ours), (other, theirs)):
            for parameter, gradients in some:
                parameter.grad = gradients[step].clone()
            optimizer.step()
    for (mine, _), (given, _), (first, _) in zip(ours, theirs, matrices(), strict=True):
        assert (mine - given).abs().max() <= 1e-10
        assert (mine - first).abs().max() > 1e-2


def test_eight_bits_are_bitsandbytes_and_missed_in_a_line(
    start: Start, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    assert start("--steps", "1", "--optimizer", "adamw8bit") == 1
    told = capsys.readouterr().err
    assert "--optimizer adamw8bit needs bitsandbytes, which cannot be imported" in told
    assert len(told.strip().splitlines()) == 1
    seen: list[Any] = []
    fake = SimpleNamespace(optim=SimpleNamespace(AdamW8bit=lambda groups, **given: seen.append((groups, given))))
    monkeypatch.setitem(sys.modules, "bitsandbytes", fake)
    OPTIMIZERS["adamw8bit"]([{"lr": 1.0}])
    assert seen == [([{"lr": 1.0}], {"betas": BETAS, "eps": EPS})]
