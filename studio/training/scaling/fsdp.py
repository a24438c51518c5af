"""Sharding of a model over processes, by PyTorch's ``fully_shard``: parameters, gradients and optimizer state.

Each process keeps a part of each tensor. While a block computes, its parameters are gathered, and its gradients are
sharded as soon as they are ready. Numbers, files and checkpoints are those of training without sharding. Scalar
parameters stay whole on each process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ....encoder.models.layers import Block
from ..options import Optimizer, Precision

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.distributed.device_mesh import DeviceMesh


class Sharding:
    """Shards the model of a run, and gathers it again to measure and write it."""

    def __init__(self, accelerator: Accelerator, model: nn.Module) -> None:
        """Record a model that is not sharded yet."""
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
        """Shard a model in place; each block is gathered by itself, and all else at once."""
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
        """Same as `Accelerator.prepare`, without its own handling of several processes."""
        prepared = self._accelerator.prepare_model(model, evaluation_mode=True)
        return prepared, self._accelerator.prepare_optimizer(optimizer)

    # ---- measuring and writing

    def whole(self, model: nn.Module) -> nn.Module:
        """Plain copy of a sharded model, gathered if there is none yet. All processes must call this."""
        if not self._is_whole:
            state = {name: _whole(tensor) for name, tensor in model.state_dict().items()}
            self._plain.load_state_dict(state, assign=True)
            self._is_whole = True
        return self._plain

    def forget(self) -> None:
        """Free the memory of the plain copy, as the model has changed."""
        if self._is_whole:
            self._plain.to("meta")
            self._is_whole = False

    # ---- checkpoints

    def gathered(self, state: Any) -> Any:
        """Gather a state to whole tensors, one at a time, on the first process's CPU. All processes must call this."""
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
        """Shard a checkpoint in place; every process has read the whole."""
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
        """This process's shard of a tensor that all processes have."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(like, DTensor):
            return tensor
        own = tensor.to(self._accelerator.device)
        return distribute_tensor(own, like.device_mesh, like.placements, src_data_rank=None)


def _whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor, in separate memory."""
    return cast("Any", tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()


def sharding_for(
    accelerator: Accelerator, model: nn.Module, precision: Precision, optimizer: Optimizer, say: Callable[[str], None]
) -> Sharding | None:
    """Sharding for the model of a run, or None for a single process."""
    if precision == "fp16":
        raise ValueError("--shard does not go with --precision fp16, whose scales need whole gradients: choose bf16")
    if optimizer != "adamw":
        raise ValueError(f"--shard does not go with --optimizer {optimizer}, which needs whole matrices: choose adamw")
    if accelerator.num_processes == 1:
        say("--shard: there is one process, so nothing is divided")
        return None
    return Sharding(accelerator, model)
