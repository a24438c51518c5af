"""PowerSGD: what processes send each other of a matrix's gradient are two narrow matrices whose product is near it.

What the product lacks is kept by each process and added to its next gradient. The matrices of the resblocks are
compressed; embeddings, heads, gains and biases are sent as they are. The narrow matrix that each step begins with, Q,
is the same in all steps: drawn anew it costs much.

torch's own hook compresses; which gradients it sees, in which scale, and what is kept of them over a stop is said here.

Source: T. Vogels et al., "PowerSGD", 2019; A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.5
and appendix E.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..encoder.layers import Block
from . import checkpoint
from .scales import GradientScales, Resblock
from .step import reduce_apart

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch._C._distributed_c10d import GradBucket
    from torch.futures import Future
    from torch.nn.parallel import DistributedDataParallel

START = 2
"""Updates before the first one that is compressed; torch's hook allows no fewer."""
SEED = 0
"""Of Q."""
EPSILON = 1e-30
"""Added to the norm of a column, so that one of zeros stays so; small enough to change no other one."""


class Compression:
    """The gradients of a model between processes, and what each process keeps of them.

    Made for a model, it hooks into it. A backward pass leaves the means over all processes in the gradients, as without
    it, but for what is lost.
    """

    def __init__(
        self, model: DistributedDataParallel, rank: int, scales: GradientScales | None = None, min_rate: float = 1.0
    ) -> None:
        """Hook into a model.

        Args:
            model: As accelerate prepares it over several processes.
            rank: Columns of the narrow matrices.
            scales: Those that the model's gradients are multiplied by. What is kept is without them, as they change.
            min_rate: A matrix is compressed if so many times the numbers of its narrow ones are fewer than its own.

        Raises:
            ValueError: If the rank is below 1, or no block is in the model.
        """
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

        if rank < 1:
            raise ValueError(f"the rank of compressed gradients must be at least 1, got {rank}")
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        matrices = [one for block in blocks for one in block.parameters() if one.ndim == 2]
        self._matrices: dict[Tensor, int] = {one: number for number, one in enumerate(matrices)}
        if not self._matrices:
            raise ValueError("there is no block in this model to compress the gradients of")
        scaled = scales.blocks if scales else []
        self._scales: dict[Tensor, Resblock] = {one: block for block in scaled for one in block.parameters}
        self.state: Any = PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=START,
            warm_start=False,
        )
        # of floats its own signature knows nothing
        self.state.min_compression_rate, self.state.orthogonalization_epsilon = min_rate, EPSILON
        self.state.rng = _Fixed()
        self._before: dict[int, Tensor | None] = {}
        self._num_sent_whole = 0
        # without annotations, which torch wants to be types, not names of types
        model.register_comm_hook(self, lambda compression, bucket: compression.reduce(bucket))

    def undo(self) -> None:
        """Keep what was kept before the last backward pass, as its update is skipped."""
        for number, error in self._before.items():
            if error is None:
                self.state.error_dict.pop(number, None)
            else:
                self.state.error_dict[number] = error

    @property
    def sent(self) -> tuple[int, int]:
        """Numbers in the gradients of all compressed updates, and how many of them were sent in their place."""
        _, before, after = self.state.compression_stats()
        return before + self._num_sent_whole, after + self._num_sent_whole

    def line(self) -> str:
        """What it saved, for people."""
        before, after = self.sent
        if not before:
            return f"gradients are compressed from update {START + 1} on, so none was"
        return f"processes sent each other 1/{before / after:.3g} of the numbers that the gradients have"

    def reduce(self, bucket: GradBucket) -> Future[Tensor]:
        """What becomes of a part of the gradients: their mean over all processes.

        Each is sent by itself, and waited for: how torch puts them into buckets changes in the course of a run, and the
        bits must not; and of two under way at once each process could send another one first.
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
            seen = _Seen(number, gradient / scale)
            self._before[number] = self.state.error_dict.get(number)
            powerSGD_hook(self.state, cast("GradBucket", seen)).wait()
            torch.mul(seen.gradient, scale, out=gradient)
        self.state.maybe_increase_iter(bucket)
        done: Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    def save(self, folder: Path, step: int, accelerator: Accelerator) -> None:
        """Write what this process keeps after a step.

        Raises:
            OSError: If it cannot be written.
        """
        errors = {str(number): error.cpu() for number, error in self.state.error_dict.items()}
        state = {"iter": self.state.iter, "errors": errors}
        checkpoint.save(folder, state, _name(accelerator.process_index, step))

    def load(self, folder: Path, step: int, accelerator: Accelerator) -> None:
        """Go on with what `save` wrote.

        Raises:
            ValueError: If it is not there.
        """
        state = checkpoint.load(folder, _name(accelerator.process_index, step))
        self.state.iter = state["iter"]
        self.state.error_dict = {int(bucket): error.to(accelerator.device) for bucket, error in state["errors"].items()}


def compression_of(
    accelerator: Accelerator, model: nn.Module, rank: int, scales: GradientScales | None = None
) -> Compression | None:
    """Compress the gradients of a model that an accelerator has prepared; at rank 0 None, and they are sent as is.

    Raises:
        ValueError: If there is no other process to send anything to, or the model is divided.
    """
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
    """Save what belongs to a checkpoint that is written within, and then throw away what belonged to the last one.

    So at any time the checkpoint that is there has its own.

    Raises:
        OSError: If it cannot be written.
    """
    if compression is None:
        yield
        return
    compression.save(folder, step, accelerator)
    accelerator.wait_for_everyone()
    yield
    rank = accelerator.process_index
    for path in folder.glob(_name(rank, "*")):
        if path.name != _name(rank, step):
            path.unlink()


def _name(rank: int, step: int | str) -> str:
    return f"gradients-{step}-{rank}.pt"


class _Fixed:
    """In the place of the hook's generator of seeds."""

    def randint(self, _: int) -> int:
        return SEED


class _Seen:
    """A matrix, as the hook reads a bucket."""

    def __init__(self, number: int, gradient: Tensor) -> None:
        self.number, self.gradient = number, gradient.contiguous()

    def buffer(self) -> Tensor:
        return self.gradient.view(-1)

    def gradients(self) -> list[Tensor]:
        return [self.gradient]

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return False
