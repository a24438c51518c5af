"""A model divided over processes, by PyTorch's ``fully_shard``: parameters, gradients and the optimizer's state.

Each process keeps a part of each tensor. While a block computes, its parameters are gathered, and its gradients are
divided again as soon as they are there. The numbers are those of undivided training, and so are files and checkpoints.
Parameters of no dimension stay whole on each process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..encoder.layers import Block
from .optimizer import Optimizer
from .options import Precision

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.distributed.device_mesh import DeviceMesh


class Sharding:
    """Divides the model of a run, and puts it together again to measure and write it."""

    def __init__(self, accelerator: Accelerator, model: nn.Module) -> None:
        """Take note of a model; it is not divided yet.

        Args:
            accelerator: Which runs it, as one of several processes.
            model: As it is trained, with what is frozen marked so.

        Raises:
            ValueError: If PyTorch has no ``fully_shard``.
        """
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError as error:
            raise ValueError(f"--shard needs PyTorch 2.6 or newer, this is {torch.__version__}") from error
        from torch.distributed.device_mesh import init_device_mesh

        self._fully_shard: Any = fully_shard
        self._accelerator = accelerator
        self._mesh: DeviceMesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
        # a copy without memory for its parameters
        empty = {id(one): nn.Parameter(one.to("meta"), one.requires_grad) for one in model.parameters()}
        self._plain = copy.deepcopy(model, cast("dict[int, Any]", empty))
        self._is_whole = False

    def divide(self, model: nn.Module, groups: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """Divide a model in place; each block is gathered by itself, and all else at once.

        Args:
            model: On all processes the same.
            groups: Of its parameters, for an optimizer.

        Returns:
            The groups with the parameters that it has now.
        """
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        whole = {parameter for parameter in model.parameters() if parameter.ndim == 0}
        for parameter in whole:
            parameter.data = parameter.data.to(self._accelerator.device)
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: self._accelerator.reduce(gradient, "mean"))
        for module in model.modules():
            if isinstance(module, Block):
                self._fully_shard(module, mesh=self._mesh)
        self._fully_shard(model, mesh=self._mesh, ignored_params=whole)
        now = dict(model.named_parameters())
        return [{**group, "params": [now[names[id(one)]] for one in group["params"]]} for group in groups]

    def prepare(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[nn.Module, Any]:
        """What `Accelerator.prepare` does, but for its own way of training by several processes."""
        prepared = self._accelerator.prepare_model(model, evaluation_mode=True)
        return prepared, self._accelerator.prepare_optimizer(optimizer)

    # ---- to measure and write

    def whole(self, model: nn.Module) -> nn.Module:
        """A plain copy of a divided model, gathered when there is none. All processes have to ask for it.

        Args:
            model: Which was divided.
        """
        if not self._is_whole:
            state = {name: _whole(tensor) for name, tensor in model.state_dict().items()}
            self._plain.load_state_dict(state, assign=True)
            self._is_whole = True
        return self._plain

    def forget(self) -> None:
        """Free the memory of the plain copy; the model has changed."""
        if self._is_whole:
            self._plain.to("meta")
            self._is_whole = False

    # ---- checkpoints

    def gathered(self, state: Any) -> Any:
        """A state with whole tensors, as it is without sharding; one at a time. All processes have to ask for it.

        Args:
            state: Dicts and lists of divided tensors and other values.

        Returns:
            The same on the first process, divided tensors on the CPU; on the others it has None for these.
        """
        if isinstance(state, Mapping):
            return {name: self.gathered(value) for name, value in state.items()}
        if isinstance(state, list):
            return [self.gathered(value) for value in state]
        if isinstance(state, Tensor) and hasattr(state, "full_tensor"):
            whole = _whole(state)
            return whole.cpu() if self._accelerator.is_main_process else None
        return state

    def divide_state(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer, average: nn.Module | None
    ) -> None:
        """Divide a checkpoint, in place, as all processes have read it.

        Args:
            state: With ``model``, ``optimizer`` and ``average``.
            model: Which was divided.
            optimizer: Of its parameters.
            average: Of the model, divided too; None for none.
        """
        for name, of in (("model", model), ("average", average)):
            if of is not None:
                like = of.state_dict()
                state[name] = {
                    key: self._like(one, like[key]) if key in like else one for key, one in state[name].items()
                }
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, values in state["optimizer"]["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == parameters[index].shape:
                    values[name] = self._like(value, parameters[index])
        self.forget()

    def _like(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This process's part of a tensor that all have."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor):
            return tensor
        own = tensor.to(self._accelerator.device)
        return distribute_tensor(own, like.device_mesh, like.placements, src_data_rank=None)


def _whole(tensor: Tensor) -> Tensor:
    """All of a tensor, in memory of its own."""
    return cast("Any", tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def sharding_for(
    accelerator: Accelerator, model: nn.Module, precision: Precision, optimizer: Optimizer, say: Callable[[str], None]
) -> Sharding | None:
    """What divides the model of a run; None for one process, which has nothing to divide.

    Args:
        accelerator: Which runs it.
        model: As it is trained, with what is frozen marked so; it is not divided yet.
        precision: Of the arithmetic.
        optimizer: What takes the steps.
        say: Called with lines for people.

    Raises:
        ValueError: If it cannot be divided.
    """
    if precision == "fp16":
        raise ValueError("--shard does not go with --precision fp16, whose scales need whole gradients: choose bf16")
    if optimizer != "adamw":
        raise ValueError(f"--shard does not go with --optimizer {optimizer}, which needs whole matrices: choose adamw")
    if accelerator.num_processes == 1:
        say("--shard: there is one process, so nothing is divided")
        return None
    return Sharding(accelerator, model)
