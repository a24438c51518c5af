"""Trains a tiny dVAE; one of several processes that do so: python process.py FOLDER, with torchrun's variables."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

RANKS = 2
BATCH = 4


def trained(name: str, rank: int, ranks: int, steps: int = 3) -> dict:
    """Weights in float64 after some updates, on the batches that all processes divide between them."""
    import torch
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from weighted_clip.dalle.config import DVAEConfig
    from weighted_clip.dalle.dvae import DVAE
    from weighted_clip.training.dvae import TrainedDVAE, negative_elb, noise_of

    AcceleratorState._reset_state(reset_partial_state=True)
    torch.manual_seed(0)
    config = DVAEConfig(name, vocab_size=16, hidden_dim=8, num_blocks=1, init_dim=8)
    model = TrainedDVAE(DVAE(config), 1 / 3).double().train()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    accelerator = Accelerator(cpu=True)
    # plain descent: AdamW makes whole steps of gradients that are 0 up to rounding
    prepared, optimizer = accelerator.prepare(model, torch.optim.SGD(weights, lr=0.05))
    own = range(rank * BATCH // ranks, (rank + 1) * BATCH // ranks)
    for step in range(steps):
        images = torch.rand(BATCH, 3, 16, 16, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        some = images[own.start : own.stop]
        terms = prepared(some, 0.7, noise_of(model.dvae, 16, 0, step, own, some))
        accelerator.backward(negative_elb(terms.nll, terms.kl, 1.0, config.downsampling))
        optimizer.step()
        optimizer.zero_grad()
    return {key: tensor.clone() for key, tensor in model.state_dict().items()}


def main() -> None:
    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "weighted_clip", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    module = sys.modules["weighted_clip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import torch

    rank = int(os.environ["RANK"])
    torch.save({name: trained(name, rank, RANKS) for name in ("dall-e", "small")}, Path(sys.argv[1]) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
