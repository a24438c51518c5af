"""The library compel, given the prompt as by its users.

Settings: arguments of its class ``Compel``, with ``downweight_mode`` by name, and ``split``, a list of the names of
``SplitLongTextMode``.
"""

# pyright: reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .transformers import transformers_text_model, transformers_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.models.text_model import TextModel


def open_peer(model: TextModel) -> Callable[[dict[str, Any], str], Tensor]:
    """The class ``Compel`` on transformers' tower with our weights."""
    import torch
    from compel import Compel, DownweightMode, SplitLongTextMode

    tower = transformers_text_model(model).to(model.final_layer_norm.weight.device)
    tokenizer = transformers_tokenizer()
    instances: dict[str, Any] = {}

    def make(settings: dict[str, Any]) -> Any:
        arguments = dict(settings)
        if "split" in arguments:
            flags = [SplitLongTextMode[flag] for flag in arguments.pop("split")]
            arguments["split_long_text_mode"] = flags[0] if len(flags) == 1 else flags[0] | flags[1]
            arguments["truncate_long_prompts"] = False
        if "downweight_mode" in arguments:
            arguments["downweight_mode"] = DownweightMode[arguments["downweight_mode"]]
        return Compel(tokenizer, tower, **arguments)

    def encode(settings: dict[str, Any], prompt: str) -> Tensor:
        name = repr(settings)
        with torch.inference_mode():
            instances[name] = instances.get(name) or make(settings)
            return instances[name].build_conditioning_tensor(prompt)

    return encode
