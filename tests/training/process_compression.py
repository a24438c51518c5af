"""Gradients of a tiny prior that two processes send each other compressed: python process_compression.py FOLDER.

Each process writes what it finds into the folder. It runs under torchrun.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

SIZES = {
    "text_vocab_size": 30,
    "text_length": 4,
    "rows": 3,
    "columns": 3,
    "image_vocab_size": 20,
    "hidden_dim": 128,
    "num_heads": 2,
    "num_layers": 3,
    "mlp_dim": 512,
}
NUM_UPDATES = 5


def main() -> None:
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "__main__.py"))["load_package"]()

    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy
    from weighted_clip.studio.dalle.config import PriorConfig
    from weighted_clip.studio.dalle.prior import Prior, initialise
    from weighted_clip.studio.training.scaling.distributed import make_accelerator
    from weighted_clip.studio.training.scaling.grad_scaling import GradientScales
    from weighted_clip.studio.training.scaling.powersgd import Compression

    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    # processes join without being told to use the processor, unless they would share a GPU
    accelerator = make_accelerator("fp32", is_cpu=torch.cuda.is_available(), has_scales=True)

    def prepared() -> tuple:
        torch.manual_seed(0)
        prior = Prior(PriorConfig(**SIZES))
        initialise(prior)
        for head in (prior.text_head, prior.image_head):
            torch.nn.init.normal_(head.weight, std=0.1)
        return accelerator.prepare(prior), prior

    def backward(model, prior, number: int, *, spoil: bool = False) -> dict:
        """The gradients of a batch of this process's own."""
        generator = torch.Generator().manual_seed(100 * number + rank)
        text = torch.randint(0, 30, (4, 4), generator=generator)
        image = torch.randint(0, 20, (4, 9), generator=generator)
        model.zero_grad()
        logits = model(text, image)
        loss = cross_entropy(logits.image.flatten(0, 1), image.flatten())
        loss = loss + cross_entropy(logits.text.flatten(0, 1), text[:, 1:].flatten())
        handle = None
        if spoil and rank == 1:
            weight = prior.layers[1].mlp.fc2.weight
            handle = weight.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor([3]), float("nan")))
        loss.backward()
        if handle:
            handle.remove()
        return {name: one.grad.clone() for name, one in prior.named_parameters()}

    def course(hook) -> tuple:
        model, prior = prepared()
        used = hook(model, prior)
        return [backward(model, prior, number) for number in range(NUM_UPDATES)], used

    found: dict = {}
    found["plain"], _ = course(lambda model, prior: None)
    local, own = prepared()
    with accelerator.no_sync(local):
        found["local"] = [backward(local, own, number) for number in range(NUM_UPDATES)]
    found["full rank"], used = course(lambda model, prior: Compression(model, 128, min_rate=0.4))
    found["full rank sent"] = used.sent
    for columns in (32, 4):
        found[f"rank {columns}"], used = course(lambda model, prior, columns=columns: Compression(model, columns))
        found[f"rank {columns} sent"] = used.sent

    # the same gradient twice, nothing kept between: with our Q, and with one newly drawn by torch
    for name, rng in (("fixed", None), ("drawn anew", np.random.RandomState(0))):
        model, prior = prepared()
        used = Compression(model, 4)
        used.state.rng = rng or used.state.rng
        for _ in range(2):
            backward(model, prior, 0)
        twice = []
        for _ in range(2):
            twice.append(backward(model, prior, 0))
            used.state.error_dict.clear()
        found[name] = twice

    # gradients that are multiplied by scales
    model, prior = prepared()
    scales = GradientScales(prior, dtype=torch.float32)
    used = Compression(model, 4, scales)
    found["scaled"] = []
    for number in range(NUM_UPDATES):
        backward(model, prior, number)
        assert scales.unscale()
        for place, block in enumerate(scales.blocks):
            block.scale = 2.0 ** (10 + (place + number) % 7)
        found["scaled"].append({name: one.grad.clone() for name, one in prior.named_parameters()})

    # gradients of one process that are not finite: the first that is compressed, and one after another
    model, prior = prepared()
    scales = GradientScales(prior, dtype=torch.float32)
    used = Compression(model, 4, scales)
    found["spoiled"], found["verdicts"] = [], []
    for number, spoil in ((0, False), (1, False), (8, True), (2, False), (9, True), (3, False), (4, False)):
        backward(model, prior, number, spoil=spoil)
        is_finite = scales.unscale()
        found["verdicts"].append(is_finite)
        if is_finite:
            found["spoiled"].append({name: one.grad.clone() for name, one in prior.named_parameters()})
        else:
            used.undo()

    # saved after three updates, and gone on with in another model
    model, prior = prepared()
    used = Compression(model, 4)
    for number in range(3):
        backward(model, prior, number)
    used.save(folder, 3, accelerator)
    model, prior = prepared()
    again = Compression(model, 4)
    again.load(folder, 3, accelerator)
    found["resumed"] = [backward(model, prior, number) for number in range(3, NUM_UPDATES)]

    torch.save(found, folder / f"{rank}.pt")


if __name__ == "__main__":
    main()
