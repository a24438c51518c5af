"""NegPip in the WebUI's sampler: rows in pairs, one to be read as key and one as value.

Pairs survive everything the host does with conditioning on its way to the U-Net: stacking, batching, repeating. While
an image is sampled, hooks on the U-Net's cross attention pass the first row of each pair to its key layers and the
second to its value layers. The hooks are always removed afterwards.

Source: docs/reference/schemes.md, "NegPip"; behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge
dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ..engines import Generation, HostModel, WebUIError, is_ended, unet_of

PARTS = {"to_k": 0, "to_v": 1}
"""Layers of an attention by name, with the row of each pair that they read."""
THEIR_TITLE = "negpip"
"""Title of sd-webui-negpip's script, in lower case."""
SAME_MODEL = (None, "", "None", "none", "Use same checkpoint")
"""Values that name no other checkpoint."""


@contextmanager
def reading_pairs(model: HostModel) -> Iterator[None]:
    """Let the cross attention of a model's U-Net read rows in pairs for the duration of the context.

    Raises `WebUIError` if the U-Net is unknown, a ControlNet is active, or nothing was read within the context although
    nobody has interrupted it.
    """
    unet = unet_of(model)
    if unet is None:
        raise WebUIError(
            f"The schemes negpip and negpip_apart do not know the U-Net of this model ({type(model).__name__}): take "
            "another scheme."
        )
    num_calls = 0

    def refuse_control(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("control") is not None:
            raise WebUIError(
                "The schemes negpip and negpip_apart do not work beside a ControlNet, which would read keys and values "
                "as rows of one text: switch the ControlNet off, or take another scheme."
            )

    def rows_of(part: int) -> Any:
        def give_rows(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            nonlocal num_calls
            num_calls += 1
            return args[0][:, part::2], *args[1:]

        return give_rows

    with ExitStack() as hooks:
        hooks.enter_context(unet.register_forward_pre_hook(refuse_control, with_kwargs=True))
        for name, module in unet.named_modules():
            attention, _, part = name.rpartition(".")
            if part in PARTS and attention.endswith("attn2"):
                hooks.enter_context(module.register_forward_pre_hook(rows_of(PARTS[part])))
        yield
    if not num_calls and not is_ended():
        raise WebUIError(
            "This WebUI sampled without the U-Net that Weighted CLIP knows, so the schemes negpip and negpip_apart did "
            "not act: take another scheme."
        )


def check_one_unet(p: Generation, what_works: str, instead: str) -> None:
    """Raise if a generation switches to another U-Net.

    Args:
        p: The generation.
        what_works: Subject and verb of the message.
        instead: Alternative to taking the same checkpoint.
    """
    hires = getattr(p, "hr_checkpoint_name", None) if getattr(p, "enable_hr", False) else None
    for what, name in (("hires. fix", hires), ("the refiner", getattr(p, "refiner_checkpoint", None))):
        if name not in SAME_MODEL:
            raise WebUIError(
                f"{what_works} with one checkpoint in a generation, and {what} is to change to {name}: take the same, "
                f"or {instead}."
            )


def is_theirs_active(p: Generation) -> bool:
    """Whether the extension sd-webui-negpip subtracts words in this generation."""
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", ())
    return any(script.title().lower() == THEIR_TITLE and getattr(script, "active", False) for script in scripts)
