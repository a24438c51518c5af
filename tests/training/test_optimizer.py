"""AdamW in one pass over each tensor, and where PyTorch has no such on a CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from weighted_clip.training.optimizer import BETAS, EPS, adamw

from ..libraries import is_torch

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
            return plain(*given, **options)

        monkeypatch.setattr(torch.optim, "AdamW", older)

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
