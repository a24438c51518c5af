"""Trains a tiny prior; one of several processes that do so: python process_prior.py DATA OUT, under torchrun."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

BATCH = 12


def trained(data: Path, folder: Path, ranks: int, steps: int = 5, *, is_sharded: bool = False) -> dict:
    """Weights in float64 after some updates, on batches that all processes divide between them."""
    import torch
    from accelerate.state import AcceleratorState
    from weighted_clip.dalle.config import DVAEConfig
    from weighted_clip.dalle.dvae import DVAE
    from weighted_clip.training.dalle_options import PriorOptions
    from weighted_clip.training.data import read_data
    from weighted_clip.training.distributed import make_accelerator
    from weighted_clip.training.prior import PriorRun

    AcceleratorState._reset_state(reset_partial_state=True)
    options = PriorOptions(
        hidden_dim=16,
        num_heads=2,
        num_layers=3,
        text_length=10,
        pieces=600,
        bpe_dropout=0.2,
        size=16,
        batch=2,
        accumulate=BATCH // 2 // ranks,
        steps=steps,
        highest_rate=0.5,
        warmup=0,
        halvings=0,
        clip=0.4,
        max_second_moment=None,
        ema=0.9,
        ema_every=2,
        counts_padding=False,
        held_out=4,
    )
    folder.mkdir(exist_ok=True)
    before, adamw = torch.get_default_dtype(), torch.optim.AdamW
    torch.set_default_dtype(torch.float64)
    # plain descent: AdamW makes whole steps of gradients that are 0 up to rounding
    torch.optim.AdamW = lambda groups, **_: torch.optim.SGD(groups)
    try:
        torch.manual_seed(0)
        dvae = DVAE(DVAEConfig("small", vocab_size=16, hidden_dim=8)).eval().requires_grad_(False)
        accelerator = make_accelerator("fp32", is_cpu=True)
        run = PriorRun(dvae, read_data(data), folder, options, accelerator, print, is_sharded=is_sharded)
        run.train()
    finally:
        torch.optim.AdamW = adamw
        torch.set_default_dtype(before)
    return {key: tensor.clone() for key, tensor in run.result.state_dict().items()}


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "weighted_clip", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    module = sys.modules["weighted_clip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import torch

    data, out, rank = Path(sys.argv[1]), Path(sys.argv[2]), int(os.environ["RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    torch.save(trained(data, out / "shared", ranks), out / f"{rank}.pt")
    torch.save(trained(data, out / "sharded", ranks, is_sharded=True), out / f"sharded-{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
