"""Hooks on the attention by which Forge's models read text, where that is known: which texts, for which place.

Here are those on the cross attention of its U-Net. What acts in them acts in models in which text and picture share an
attention as well, through ``joint_attention.py``.

They are there while an image is sampled, and always removed afterwards.

Source: docs/reference/hosts.md, "Places in the WebUI"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ..engines import Generation, WebUIError, is_ended, unet_of
from .joint_models import FAMILIES, family_of
from .known_texts import RecognizedText, Texts
from .pairs import check_one_unet

ATTENTIONS = ("attention_basic", "attention_pytorch", "attention_split", "attention_sub_quad")
"""Names of the host's functions that take a mask with a number for each query and key."""


def attention_of(module: nn.Module) -> Callable[..., Tensor] | None:
    """The host's function that an attention layer calls; None if there is none."""
    return getattr(sys.modules[type(module).__module__], "attention_function", None)


class AttentionHooks:
    """Hooks on the attention of a generation; subclasses say what they do there."""

    name = ""
    """Label of its control."""
    otherwise = ""
    """Advice for who wants to go without it."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._cells: tuple[int, ...] | None = None
        """Height and width of the latent that is sampled; None before the host has told."""
        self._grid = (0, 0)
        """Rows and columns of the layer that reads."""
        self._shape: torch.Size | None = None
        """Shape of the rows that the layers read in this call; None if nothing is to be done in it."""
        self._undone = ExitStack()
        self._is_called = False
        """Whether the model was called since it began to act."""

    # For subclasses

    def find(self) -> None:
        """Locate the requested words in the recorded texts; raise if they have no rows of their own."""
        raise NotImplementedError

    def _begin(self, p: Any, latent: Tensor, context: Tensor, options: Mapping[str, Any]) -> torch.Size | None:
        """Prepare a call of a U-Net: the shape of ``context`` if anything is to be done in it."""
        raise NotImplementedError

    def _hooked(self, attention: nn.Module) -> Iterable[RemovableHandle]:
        """Hooks on a cross attention."""
        raise NotImplementedError

    # Before an image is sampled

    def refuse_unknown(self, reason: str) -> None:
        """Raise for a prompt of which nobody can tell which rows are its words, for a reason."""
        raise WebUIError(
            f"{self.name} cannot tell which rows of this prompt are its words, {reason}: {self.otherwise}."
        )

    def check(self, p: Generation) -> None:
        """Raise if this cannot act in a generation."""
        check_one_unet(p, f"{self.name} works", self.otherwise)
        if family_of(p.sd_model) is not None:
            return
        unet = unet_of(p.sd_model)
        if unet is None or not hasattr(p.sd_model, "forge_objects"):
            raise WebUIError(
                f"{self.name} works in Forge with Stable Diffusion 1, 2 and XL, "
                f"{', '.join(family.title for family in FAMILIES)}, and does not know this model "
                f"({type(p.sd_model).__name__}) in this WebUI: {self.otherwise}."
            )
        attention = next(module for name, module in unet.named_modules() if name.endswith("attn2"))
        name = getattr(attention_of(attention), "__name__", "")
        if name not in ATTENTIONS:
            raise WebUIError(
                f"{self.name} does not work with this WebUI's attention ({name or 'unknown'}): start Forge with "
                f"--attention-pytorch and without xformers, or {self.otherwise}."
            )

    # While an image is sampled

    @contextmanager
    def acting(self, p: Generation) -> Iterator[None]:
        """Act for the duration of the context.

        Raises `WebUIError` if the model was not called within the context although nobody has interrupted it.
        """
        self._cells = self._shape = None
        self._is_called = False
        with ExitStack() as self._undone:
            if family_of(p.sd_model) is None:
                self._hook(p)
            yield
        if not self._is_called and not is_ended():
            raise WebUIError(
                f"This WebUI sampled without the model that Weighted CLIP knows, so {self.name} did not act: "
                f"{self.otherwise}."
            )

    def _hook(self, p: Generation) -> None:
        """Put hooks on the U-Net of a generation, until it stops acting."""
        unet = unet_of(p.sd_model)
        assert unet is not None

        def begin(_: nn.Module, args: tuple[Any, ...], inputs: Mapping[str, Any]) -> None:
            self.begin_call()
            self._shape = self._begin(p, args[0], inputs["context"], inputs["transformer_options"])

        hooked = self._undone.enter_context
        hooked(unet.register_forward_pre_hook(begin, with_kwargs=True))
        for name, module in unet.named_modules():
            if name.endswith("attn2"):
                layer = unet.get_submodule(name.partition(".transformer_blocks.")[0])
                hooked(layer.register_forward_pre_hook(self._see))
                for handle in self._hooked(module):
                    hooked(handle)

    def begin_call(self) -> None:
        """Note that the model is called; raise if the host has not told what it samples."""
        self._is_called = True
        if self._cells is None:
            raise WebUIError(f"This WebUI does not tell its scripts before it samples: {self.otherwise}.")

    def begin_pass(self, p: Any, latent: Tensor) -> None:
        """Note the size of the latent that is to be sampled."""
        self._cells = tuple(latent.shape[-2:])

    def _see(self, layer: nn.Module, args: tuple[Any, ...]) -> None:
        """Note the grid of a layer."""
        self._grid = tuple(args[0].shape[-2:])

    def _known(self, context: Tensor, options: Mapping[str, Any]) -> list[RecognizedText | None]:
        """Text that each image of a call reads; None for negative prompts."""
        kinds: Sequence[int] = options["cond_or_uncond"]
        each = len(context) // len(kinds)
        texts_read: list[RecognizedText | None] = []
        for index, rows in enumerate(context.cpu()):
            matches = [None] if kinds[index // each] == 1 else self._texts.known(rows, is_negative=False)
            if not matches:
                self.refuse_changed()
            texts_read.append(matches[0])
        return texts_read

    def refuse_changed(self) -> None:
        """Raise for rows of a prompt that are not those that were encoded."""
        raise WebUIError(
            f"Another extension has changed the rows of the prompt, so nobody can tell which of them are the words for "
            f"{self.name}: switch it off, or {self.otherwise}."
        )

    def _check_call(self, latent: Tensor, options: Mapping[str, Any]) -> None:
        """Raise if nobody can tell what the cross attention of a call reads, or for which place."""
        if options.get("patches_replace", {}).get("attn2"):
            raise WebUIError(
                f"Another extension, such as IP-Adapter, replaces the cross attention, where {self.name} acts: switch "
                f"it off, or {self.otherwise}."
            )
        if self._cells != tuple(latent.shape[-2:]):
            raise WebUIError(
                "Another extension cuts the picture into parts, such as tiles: nobody can tell then where in the "
                f"picture a part is. Switch it off, or {self.otherwise}."
            )

    def _check_layer(self, num_queries: int, context: Tensor | None) -> None:
        """Raise if a layer reads something else than the U-Net was given."""
        if context is None or context.shape != self._shape or num_queries != math.prod(self._grid):
            raise WebUIError(
                f"Another extension, such as Forge Couple, changes what the cross attention reads, where {self.name} "
                f"acts: switch it off, or {self.otherwise}."
            )
