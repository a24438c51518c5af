"""Trains a tiny model; one of several processes that do so: python process.py dvae OUT, or prior OUT DATA, by torchrun.

The functions are also called in the test's own process, as a run of one.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

DVAE_BATCH = 4
PRIOR_BATCH = 12


def trained_dvae(name: str, rank: int, ranks: int, steps: int = 3) -> dict:
    """Weights in float64 after some updates, on the batches that all processes divide between them."""
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from weighted_clip.studio.dalle.config import DVAEConfig
    from weighted_clip.studio.dalle.dvae import DVAE
    from weighted_clip.studio.training.objectives.dvae import TrainedDVAE, negative_elb, noise_of

    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    config = DVAEConfig(name, vocab_size=16, hidden_dim=8, num_blocks=1, init_dim=8)
    model = TrainedDVAE(DVAE(config), 1 / 3).double().train()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    accelerator = Accelerator(cpu=True)
    # plain descent: AdamW makes whole steps of gradients that are 0 up to rounding
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(weights, lr=0.05))
    own = range(rank * DVAE_BATCH // ranks, (rank + 1) * DVAE_BATCH // ranks)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        images = torch.rand(DVAE_BATCH, 3, 16, 16, generator=generator, dtype=torch.float64)
        some = images[own.start : own.stop]
        terms = prepared(some, 0.7, noise_of(model.dvae, 16, 0, step, own, some))
        accelerator.backward(negative_elb(terms.nll, terms.kl, 1.0, config.downsampling))
        optimizer.step()
        optimizer.zero_grad()
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


def trained_prior(data: Path, folder: Path, ranks: int, steps: int = 5, *, is_sharded: bool = False) -> dict:
    """Weights in float64 after some updates, on batches that all processes divide between them."""
    import torch
    from accelerate.state import AcceleratorState
    from weighted_clip.studio.dalle.config import DVAEConfig
    from weighted_clip.studio.dalle.dvae import DVAE
    from weighted_clip.studio.training.data.datasets import read_data
    from weighted_clip.studio.training.objectives.dalle_options import PriorOptions
    from weighted_clip.studio.training.objectives.prior import PriorRun
    from weighted_clip.studio.training.scaling.distributed import make_accelerator

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
        accumulate=PRIOR_BATCH // 2 // ranks,
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
    """Train as one of several processes."""
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "__main__.py"))["load_package"]()
    import torch

    rank, ranks, out = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), Path(sys.argv[2])
    if sys.argv[1] == "dvae":
        found = {name: trained_dvae(name, rank, ranks) for name in ("dall-e", "small")}
    else:
        data = Path(sys.argv[3])
        found = {
            "shared": trained_prior(data, out / "shared", ranks),
            "sharded": trained_prior(data, out / "sharded", ranks, is_sharded=True),
        }
    torch.save(found, out / f"{rank}.pt")


if __name__ == "__main__":
    main()
