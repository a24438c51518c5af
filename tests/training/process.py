"""One of several processes that train the tiny CLIP together: python process.py FOLDER, with torchrun's variables."""

import os
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAIRS = 12
"""In the batch of all processes."""


def main() -> None:
    runpy.run_path(str(HERE.parents[1] / "__main__.py"))["load_package"]()
    sys.path.append(str(HERE))
    import models
    import torch
    from weighted_clip.studio.training.optimizer import Rates

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = {}
    for is_both in (True, False):
        for number in (1, 2):  # parts
            model = models.towers(is_both=is_both)
            batches = [models.pairs(PAIRS, seed, is_both=is_both) for seed in range(5)]
            own = [models.divided(models.divided(batch, ranks)[rank], number) for batch in batches]
            losses = models.trained(model, own, Rates(1e-3, warmup=2))
            found[is_both, number] = {"losses": losses, **model.state_dict()}
        model = models.towers(is_both=is_both)
        losses = models.trained(model, own, Rates(1e-3, warmup=2), is_sharded=True)  # in two parts
        state = {name: getattr(one, "full_tensor", one.clone)() for name, one in model.state_dict().items()}
        found[is_both, "sharded"] = {"losses": losses, **state}
        kept = sum(getattr(one, "to_local", one.clone)().numel() for one in model.parameters())
        found[is_both, "share"] = kept / sum(one.numel() for one in model.parameters())
    single = torch.float32
    parts = models.divided(models.divided(models.pairs(PAIRS, 0, single), ranks)[rank], 2)
    found["gradients"] = models.gradients(models.towers(single), parts)
    torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")


if __name__ == "__main__":
    main()
