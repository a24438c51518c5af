"""PowerSGD: processes exchange a matrix's gradient as two narrow matrices whose product approximates it.

Each process keeps the approximation error and adds it to its next gradient. The matrices of the resblocks are
compressed; embeddings, heads, gains and biases are sent as they are. The initial narrow matrix Q is the same in all
steps, as drawing a new one is expensive.

torch's own hook compresses; this module decides which gradients it sees, at which scale, and what is saved when a run
stops.

Source: T. Vogels et al., "PowerSGD", 2019; A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.5
and appendix E.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ....encoder.models.layers import EncoderBlock
from .. import checkpoint
from .distributed import reduce_apart
from .grad_scaling import GradientScales, Resblock

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

START = 2
"""Updates before the first compressed one; torch's hook allows no fewer."""
SEED = 0
"""Seed of Q."""
EPSILON = 1e-30
"""Added to the norm of a column at ranks 1 and 2, so that a column of zeros stays zero; too small to change any other.

Torch's hook makes columns orthogonal by Gram-Schmidt there, and by Householder reflections, as the paper, from 3 on.
"""


class Compression:
    """Compression of a model's gradients between processes, and the error that each process keeps.

    It hooks into the model it is made for. A backward pass leaves the means over all processes in the gradients, as
    without compression, up to the approximation error.
    """

    def __init__(
        self, model: DistributedDataParallel, rank: int, scales: GradientScales | None = None, min_rate: float = 1.0
    ) -> None:
        """Hook into a model."""
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        if rank < 1:
            raise ValueError(f"the rank of compressed gradients must be at least 1, got {rank}")
        blocks = [module for module in model.modules() if isinstance(module, EncoderBlock)]
        matrices = [parameter for block in blocks for parameter in block.parameters() if parameter.ndim == 2]
        self._matrices: dict[Tensor, int] = {parameter: number for number, parameter in enumerate(matrices)}
        if not self._matrices:
            raise ValueError("there is no block in this model to compress the gradients of")
        scaled = scales.blocks if scales else []
        self._scales: dict[Tensor, Resblock] = {parameter: block for block in scaled for parameter in block.parameters}
        self.state: Any = PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=START,
            warm_start=False,
        )
        # its own signature does not allow floats
        self.state.min_compression_rate, self.state.orthogonalization_epsilon = min_rate, EPSILON
        self.state.rng = SimpleNamespace(randint=lambda _: SEED)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.coverage = sum(parameter.numel() for parameter in trained if parameter in self._matrices) / sum(
            map(Tensor.numel, trained)
        )
        """Share of the numbers of all gradients that are compressed."""
        self._before: dict[int, Tensor | None] = {}
        self._num_sent_whole = 0
        # without annotations, which torch wants to be types, not names of types
        model.register_comm_hook(self, lambda compression, bucket: compression.reduce(bucket))

    def undo(self) -> None:
        """Restore the error from before the last backward pass, as its update is skipped."""
        for number, error in self._before.items():
            if error is None:
                self.state.error_dict.pop(number, None)
            else:
                self.state.error_dict[number] = error

    @property
    def sent(self) -> tuple[int, int]:
        """Numbers in the gradients of all compressed updates, and numbers sent instead."""
        _, before, after = self.state.compression_stats()
        return before + self._num_sent_whole, after + self._num_sent_whole

    def line(self) -> str:
        """Readable line about the savings."""
        before, after = self.sent
        if not before:
            return f"gradients are compressed from update {START + 1} on, so none was"
        return f"processes sent each other 1/{before / after:.3g} of the numbers that the gradients have"

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket of gradients over all processes.

        Each gradient is sent by itself, and waited for: torch changes the buckets in the course of a run, which must
        not change the bits; and with two in flight, processes could send them in different orders.
        """
        from torch import distributed
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import powerSGD_hook

        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            number = self._matrices.get(parameter)
            if number is None:
                distributed.all_reduce(gradient.div_(distributed.get_world_size()))
                if self.state.iter >= START:
                    self._num_sent_whole += gradient.numel()
                continue
            scale = self._scales[parameter].scale if parameter in self._scales else 1.0
            matrix = (gradient / scale).contiguous()
            self._before[number] = self.state.error_dict.get(number)
            powerSGD_hook(self.state, _bucket(number, matrix)).wait()
            torch.mul(matrix, scale, out=gradient)
        self.state.maybe_increase_iter(bucket)
        future: Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def save(self, folder: Path, step: int, accelerator: Accelerator) -> None:
        """Write this process's error after a step."""
        errors = {str(number): error.cpu() for number, error in self.state.error_dict.items()}
        state = {"iter": self.state.iter, "errors": errors}
        checkpoint.save(folder, state, _name(accelerator.process_index, step))

    def load(self, folder: Path, step: int, accelerator: Accelerator) -> None:
        """Load a file written by `save`."""
        name = _name(accelerator.process_index, step)
        state = checkpoint.load(folder, name)
        with checkpoint.naming(folder / name):
            checkpoint.check_keys(state, {"iter": 0, "errors": {}}, "the file")
            checkpoint.check_count(state["iter"], step, "iter")
            # frozen matrices have none
            sizes = {str(number): (matrix.numel(), matrix.dtype) for matrix, number in self._matrices.items()}
            saved = sizes.keys() & (state["errors"] if isinstance(state["errors"], dict) else ())
            like = {name: torch.empty(sizes[name][0], dtype=sizes[name][1]) for name in saved}
            checkpoint.check_like(state["errors"], like, "errors")
        self.state.iter = state["iter"]
        self.state.error_dict = {int(bucket): error.to(accelerator.device) for bucket, error in state["errors"].items()}


def compression_of(
    accelerator: Accelerator, model: nn.Module, rank: int, scales: GradientScales | None = None
) -> Compression | None:
    """Compress the gradients of a model prepared by an accelerator; None at rank 0, for no compression."""
    if not rank:
        reduce_apart(model)
        return None
    if accelerator.num_processes == 1:
        raise ValueError(
            f"--compress {rank} is about what processes send each other, and there is only one: leave it out, or start "
            "several, such as by torchrun --nproc-per-node 2"
        )
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"--compress {rank} does not go with --shard, which divides gradients in its own way: choose one"
        )
    return Compression(model, rank, scales)


@contextmanager
def saved(compression: Compression | None, folder: Path, step: int, accelerator: Accelerator) -> Iterator[None]:
    """Save the files of a checkpoint that is written within the context, then remove those that no checkpoint needs.

    So each checkpoint has its files at any time.
    """
    if compression is None:
        yield
        return
    compression.save(folder, step, accelerator)
    accelerator.wait_for_everyone()
    yield
    rank = accelerator.process_index
    needed = {_name(rank, saved_step) for saved_step in (step, *checkpoint.kept_steps(folder))}
    for path in folder.glob(_name(rank, "*")):
        if path.name not in needed:
            path.unlink()


def _name(rank: int, step: int | str) -> str:
    return f"gradients-{step}-{rank}.pt"


def _bucket(number: int, matrix: Tensor) -> Any:
    """A matrix, which is contiguous, in the form of a bucket as the hook reads it."""
    return SimpleNamespace(
        buffer=lambda: matrix.view(-1), gradients=lambda: [matrix], index=lambda: number, is_last=lambda: False
    )
