"""Libraries that tests compare with: a test is skipped, with the reason, where one is missing or too old.

The development set has all of them, which `test_compatibility.py` holds it to.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

import pytest
import torch

COMPARED = {
    "accelerate": "accelerate",
    "peft": "peft",
    "transformers": "transformers",
    "compel": "compel",
    "diffusers": "diffusers",
    "open_clip": "open_clip_torch",
    "tensorboard": "tensorboard",
    "torchvision": "torchvision",
    "webdataset": "webdataset",
}
"""Names of modules, and of what pip installs."""


def library(name: str, oldest: str = "0") -> ModuleType:
    """A library, for a test that compares with it.

    Args:
        name: A key of `COMPARED`.
        oldest: The first version that the test can compare with.

    Returns:
        The module. The test is skipped where there is none, or an older one.
    """
    try:
        module = importlib.import_module(name)
        found = importlib.metadata.version(COMPARED[name])
    except ImportError as error:
        pytest.skip(f"compares with {name}, which cannot be imported: {error}")
    if numbers(found) < numbers(oldest):
        pytest.skip(f"compares with {name} from {oldest} on; {found} is installed")
    return module


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparing: "2.13.0+cpu" is (2, 13, 0)."""
    return tuple(int(part) for part in version.partition("+")[0].split(".") if part.isdecimal())


def is_torch(oldest: str) -> bool:
    """Whether torch is this version or a newer one."""
    return numbers(torch.__version__) >= numbers(oldest)


def needs_masked_kernel() -> None:
    """Skip a test of equality to the bit where torch's attention without a mask rounds otherwise than with one."""
    if not is_torch("2.3"):
        pytest.skip(f"torch {torch.__version__} has other kernels for attention with a mask, which round otherwise")


def needs_half(dtype: torch.dtype) -> None:
    """Skip a test of a type in which torch cannot calculate on the CPU."""
    some = torch.zeros(2, 2, dtype=dtype)
    try:
        torch.nn.functional.linear(torch.nn.functional.layer_norm(some, (2,)), some)
    except RuntimeError as error:
        pytest.skip(f"torch {torch.__version__} has no arithmetic in {dtype} on the CPU: {error}")
