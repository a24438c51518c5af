"""Checks of prompts beside pictures: the host's edit nodes on a Weighted CLIP, with rows that are seen to move.

Which row is a word's is found without any table: encoders of language read from left to right, so that the first row
that another word changes is that word's.

Run by test_comfyui_inprocess.py; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import SkipTest

import torch
import toys_pictures  # noqa: F401  # adds its families to the toys
import toys_video  # noqa: F401
from inprocess import compares, difference, main
from inprocess_traces import leaves_nothing
from served_clip import effects, served
from toys import make_text_encoder, there, weighable

PLAIN = "a red cat on a mat"
TEXT = "a (red:1.7) cat on a (mat:0.4)"
WEIGHTS = {"red": 1.7, "mat": 0.4}
OTHER = "dog"
"""A word of one token, as those of the prompt are."""
BEHIND = "<|vision_start|><|image_pad|><|vision_end|> from above"
"""A picture behind the prompt, as some nodes put it."""
TEMPLATE = (
    "<|im_start|>system\nSay what a red cat does.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
Encode = Callable[..., Any]


class Eyes(torch.nn.Module):
    """A stand-in for a vision model: rows that depend on the picture, of the width of the text's."""

    def __init__(self, dim: int, has_layers: bool) -> None:
        super().__init__()
        self.dim, self.has_layers = dim, has_layers

    def forward(self, pixels: torch.Tensor, grid: torch.Tensor) -> Any:
        number = int(grid.prod()) // 4
        rows = torch.linspace(-1, 1, number * self.dim).view(number, self.dim) * (1 + pixels.mean())
        return (rows, []) if self.has_layers else rows


def edit(module: str, name: str, **more: Any) -> Encode:
    """One of the host's edit nodes, as a function of a CLIP, a prompt and pictures."""

    def encode(clip: Any, text: str, images: list[torch.Tensor]) -> Any:
        node = getattr(importlib.import_module(f"comfy_extras.{module}"), name)
        return node.execute(clip, text, **{**more, **named(images)}).result[0]

    def named(images: list[torch.Tensor]) -> dict[str, Any]:
        if name == "TextEncodeQwenImageEdit":
            return {"image": images[0]}
        if name == "TextEncodeQwenImageEditPlus":
            return {f"image{number}": image for number, image in enumerate(images, 1)}
        return {"images": {f"image_{number}": image for number, image in enumerate(images, 1)}}

    return encode


def omni(clip: Any, text: str, images: list[torch.Tensor]) -> Any:
    node = importlib.import_module("comfy_extras.nodes_zimage").TextEncodeZImageOmni
    return node.execute(clip, text, image1=images[0], image3=images[1]).result[0]


def image_to_video(clip: Any, text: str, images: list[torch.Tensor]) -> Any:
    """As from a vision model whose rows of the picture the text encoder takes."""
    node = importlib.import_module("comfy_extras.nodes_hunyuan").TextEncodeHunyuanVideo_ImageToVideo
    rows = images[0].flatten()[: 7 * 64].view(1, 7, 64)
    return node.execute(clip, SimpleNamespace(mm_projected=rows), text, 2).result[0]


def with_system_prompt(clip: Any, text: str, images: list[torch.Tensor]) -> Any:
    del images
    node = importlib.import_module("comfy_extras.nodes_lumina2").CLIPTextEncodeLumina2
    return node.execute(clip, text, "alignment").result[0]


def before_a_picture(clip: Any, text: str, images: list[torch.Tensor]) -> Any:
    return clip.encode_from_tokens_scheduled(clip.tokenize(text + BEHIND, images=images[:1], llama_template=TEMPLATE))


NODES: dict[str, tuple[tuple[str, Encode], ...]] = {
    "Qwen-Image": (
        ("Edit", edit("nodes_qwen", "TextEncodeQwenImageEdit")),
        ("Edit Plus", edit("nodes_qwen", "TextEncodeQwenImageEditPlus")),
        ("before a picture", before_a_picture),
    ),
    "Boogu": (("Edit", edit("nodes_boogu", "TextEncodeBooguEdit", negative_prompt="")),),
    "Mage-Flow": (("Edit", edit("nodes_mage", "TextEncodeMageFlowEdit", negative_prompt="", width=64, height=64)),),
    "JoyImage": (("Edit", edit("nodes_joyimage", "TextEncodeJoyImageEdit")),),
    "Z-Image": (("Omni", omni),),
    "Hunyuan Video": (("image to video", image_to_video),),
    "Lumina 2": (("system prompt", with_system_prompt),),
}


def with_eyes(family: str) -> Any:
    """A small CLIP of a family that sees pictures."""
    clip = make_text_encoder(family)
    for _, tower in clip.cond_stage_model.named_children():
        network = tower.transformer
        dim = network.get_input_embeddings().weight.shape[1]
        network.visual = Eyes(dim, hasattr(network, "build_image_inputs"))
    return clip


def row_of(word: str, encode: Callable[[str], Any]) -> int:
    """Row of a word: the first that changes when another stands there."""
    one, other = (encode(text)[0][0] for text in (PLAIN, PLAIN.replace(word, OTHER)))
    return int((one != other).any(-1)[0].nonzero()[0])


@compares(
    "Edit nodes with pictures on a Weighted CLIP, small: rows with stock, effects with rows that are seen to move"
)
def check_words_beside_pictures_are_weighed() -> None:
    images = [torch.rand(1, 64, 96, 3, generator=torch.Generator().manual_seed(number)) for number in range(2)]
    families = [family for family in weighable(*there(*NODES))]
    if not families:
        raise SkipTest("this ComfyUI has no edit nodes")
    for family in families:
        clip = with_eyes(family)
        for title, encode in NODES[family]:
            plain = encode(clip, PLAIN, images)
            with leaves_nothing(clip, f"{family}, {title}"):
                work = served(clip, scheme="attention: value")
                difference(encode(work, PLAIN, images)[0][0], plain[0][0])
                found = encode(work, TEXT, images)
            difference(found[0][0], plain[0][0])
            rows = {row_of(word, partial(encode, clip, images=images)): word for word in WEIGHTS}
            factors = effects(found)[0].view(2, -1)[1].tolist()
            expected = [float(torch.tensor(WEIGHTS.get(rows.get(row, ""), 1.0))) for row in range(len(factors))]
            assert factors == expected, (family, title, rows, [row for row, one in enumerate(factors) if one != 1])


if __name__ == "__main__":
    main(globals())
