"""Workaround to import torchvision with a torch without CUDA, and with it transformers, compel and open_clip.

PyPI's torchvision is built for CUDA. If torch has none, its compiled part does not load, and its import fails for lack
of two operators. Nothing here calls them, so they are only declared.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@lru_cache(maxsize=1)
def declare_missing_operators() -> torch.library.Library | None:
    """Declare the operators that torchvision lacks, if any; they vanish with the result, so keep it alive."""
    import torch

    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return None  # nothing that needs it is installed either
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None
