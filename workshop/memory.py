"""Memory and traffic of training: computed from a model's sizes, and measured beside that.

Source: docs/lecture.md Definitions 5.5 to 5.8 for what a block computes; P. Patarasuk and X. Yuan, "Bandwidth Optimal
All-reduce Algorithms for Clusters of Workstations", 2009, for what a process sends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .bench.page import in_process, table
from .bench.timing import measured

if TYPE_CHECKING:
    from torch import nn

    from ..encoder.config import TextConfig, VisionConfig
    from ..training.grad_cache import Towers

FLOAT = 4
"""Bytes of a number."""
NARROW = 4
"""Rank of compressed gradients."""
PAIRS = 32
"""Pairs of each device."""
DEVICES = (8, 64)
NAMES = {"CLIP-L": "ViT-L-14-quickgelu", "CLIP-G": "ViT-bigG-14"}
HEAD = (
    *("Model", "Million weights", "Devices", "", "Weights", "Gradients", "AdamW", "Activations", "Together"),
    *("Sent each step", f"with `--compress {NARROW}`"),
)
WAYS = {"1": {}, "2": {"processes": 2}, "2, `--shard`": {"processes": 2, "is_sharded": True}}
CASES = (("ViT-S-16", "both"), ("ViT-B-32", "both"), ("ViT-L-14-quickgelu", "text"))
BATCH, STEPS = 8, 4
MEASURED_HEAD = (
    *("Model", "Towers", "Processes", "Measured, GiB", "Computed, GiB"),
    *("CPU seconds a step", "beside one process"),
)


class Needs(NamedTuple):
    """Bytes that a device keeps, and those that it sends in a step."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    sent: int

    @property
    def kept(self) -> int:
        """All that it keeps."""
        return self.weights + self.gradients + self.optimizer + self.activations


def activation_bytes(config: TextConfig | VisionConfig, positions: int, pairs: int) -> int:
    """Bytes that the blocks of a tower keep for the backward pass.

    Of width d, inner width m and h heads, a block keeps for each position 8 d numbers (input and output of both norms,
    queries, keys, values, and what attention makes of them), 2 m of the MLP, or 3 m with quick_gelu, one number for
    each head, and mean and deviation of both norms.
    """
    inner = (3 if config.activation == "quick_gelu" else 2) * config.mlp_dim
    return FLOAT * pairs * positions * config.num_layers * (8 * config.hidden_dim + inner + config.num_heads + 4)


def needs_of(towers: Towers, pairs: int, processes: int = 1, *, is_sharded: bool = False, compress: int = 0) -> Needs:
    """Needs of a training step in float32 by AdamW, without an average of the weights.

    Args:
        towers: Towers that are trained; their parameters may be without memory.
        pairs: Pairs of a process, whose captions fill all positions.
        processes: Number of processes, one for each device.
        is_sharded: Whether each keeps its share, and for the time of its computation one block and all outside of them.
        compress: Rank of compressed gradients; 0: they are not.
    """
    from ..encoder.layers import Block

    blocks = [module for module in towers.modules() if isinstance(module, Block)]
    total = _count(towers)
    activations = activation_bytes(towers.text.config, towers.text.config.context_length, pairs)
    if towers.vision is not None:
        activations += activation_bytes(towers.vision.config, towers.vision.config.grid**2 + 1, pairs)
    if is_sharded:
        own = -(-total // processes)
        whole = total - sum(map(_count, blocks)) + max(map(_count, blocks))
        # gathered for both passes, and each gradient's parts brought together
        sent = 3 * total * (processes - 1) // processes
        return Needs(FLOAT * (own + whole), FLOAT * (own + whole), 2 * FLOAT * own, activations, FLOAT * sent)
    saved = 0
    for matrix in (one for block in blocks for one in block.parameters() if one.ndim == 2 and compress):
        saved += max(0, matrix.numel() - compress * sum(matrix.shape))
    gradients = total if processes == 1 else 2 * total  # DDP has them in its buckets, too
    sent = 2 * (total - saved) * (processes - 1) // processes
    return Needs(FLOAT * total, FLOAT * gradients, 2 * FLOAT * total, activations, FLOAT * sent)


def _count(module: nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())


def empty_towers(size: str, *, is_both: bool = True) -> Towers:
    """Towers of a size, without memory for their weights."""
    import torch

    from ..encoder.files.sizes import configs_of
    from ..encoder.similarity import ContrastiveLoss
    from ..encoder.text_model import TextModel
    from ..encoder.vision_model import VisionModel
    from ..training.grad_cache import Towers

    text, vision = configs_of(size)
    with torch.device("meta"):
        return Towers(TextModel(text), VisionModel(vision) if is_both else None, ContrastiveLoss())


def computed_rows() -> Iterator[list[str]]:
    """Rows of `HEAD`, in GiB."""
    for name, size in NAMES.items():
        towers = empty_towers(size)
        for devices in DEVICES:
            for is_sharded in (False, True):
                found = needs_of(towers, PAIRS, devices, is_sharded=is_sharded)
                narrow = "-" if is_sharded else _gib(needs_of(towers, PAIRS, devices, compress=NARROW).sent)
                about = [name, f"{_count(towers) / 1e6:,.0f}", str(devices), "`--shard`" if is_sharded else ""]
                yield [*about, *map(_gib, (*found[:4], found.kept, found.sent)), narrow]


def _gib(count: float) -> str:
    return f"{count / 2**30:.2f}"


# ---- measured


def measured_block() -> str:
    """Table of measured steps in Markdown, and what they were measured with."""
    about = measured("accelerate")
    rows: list[list[str]] = []
    for size, towers in CASES:
        first = 0.0
        for way, more in WAYS.items():
            print(size, towers, way, file=sys.stderr, flush=True)
            job = {"size": size, "is_both": towers == "both", **more}
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(job.get("processes", 1))]
            found = in_process(f"{size}, {way}", step, job, launcher=launcher, OMP_NUM_THREADS="1")
            first = first or found["seconds"]
            computed = needs_of(empty_towers(size, is_both=job["is_both"]), BATCH, **more).kept
            taken = [f"{found['seconds']:.2f}", f"{found['seconds'] / first:.2f}"]
            rows.append([size, towers, way, _gib(found["bytes"]), _gib(computed), *taken])
    return f"{table(MEASURED_HEAD, rows, num_left=3)}\n\n{about}"


def step(job: Mapping[str, Any]) -> dict[str, float] | None:
    """Largest growth of a process's resident set in some steps, and the processor time of the fastest."""
    import resource
    import time

    import torch

    from ..encoder.similarity import ContrastiveLoss
    from ..training.distributed import make_accelerator, reduce_apart
    from ..training.fsdp import Sharding
    from ..training.grad_cache import Part, Towers, backward
    from ..training.new_text import new_clip
    from ..training.optimizer import adamw, groups_of
    from ..training.options import Rates, TrainOptions

    def largest() -> int:
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    accelerator = make_accelerator("fp32", is_cpu=True)
    before = largest()
    clip = new_clip(job["size"], TrainOptions(new=job["size"], towers="both"))
    towers = Towers(clip.text, clip.vision if job["is_both"] else None, ContrastiveLoss()).train()
    text, vision = clip.text.config, clip.vision.config
    del clip
    groups = groups_of(towers, Rates())
    sharding = Sharding(accelerator, towers) if job.get("is_sharded") else None
    if sharding:
        groups = sharding.divide(towers, groups)
    model, optimizer = (sharding or accelerator).prepare(towers, adamw(groups))
    reduce_apart(model)
    ids = torch.randint(0, text.bos_id, (BATCH, text.context_length))
    ids[:, 0], ids[:, -1] = text.bos_id, text.eos_id
    shape = (3, vision.image_size, vision.image_size) if job["is_both"] else (vision.projection_dim or 0,)
    images = torch.randn(BATCH, *shape)
    taken: list[float] = []
    for _ in range(STEPS):
        began = time.process_time()
        backward(accelerator, model, [Part(ids, images)])
        optimizer.step()
        optimizer.zero_grad()
        taken.append(time.process_time() - began)
    if accelerator.num_processes > 1:
        torch.distributed.destroy_process_group()
    return {"bytes": largest() - before, "seconds": min(taken)} if accelerator.is_main_process else None
