"""transformers' CLIP with our weights and vocabulary: tokenizer, text model and whole CLIP.

Settings of `open_peer`: ``attention``, its attention implementation.
"""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...encoder.models.config import sizes_of
from ...encoder.tokenizer import default_tokenizer, read_merges

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ...encoder.models.text_model import TextModel
    from ...encoder.models.vision_model import VisionModel


def open_peer(model: TextModel) -> Callable[[dict[str, Any], str], Tensor]:
    """CLIPTextModel on our chunks of a prompt, without weights."""
    import torch

    from ...weighting.options import EncodeOptions
    from ...weighting.reading.prompt_reader import read_prompt

    towers: dict[str, Any] = {}

    def encode(settings: dict[str, Any], prompt: str) -> Tensor:
        attention = settings["attention"]
        if attention not in towers:
            towers[attention] = transformers_text_model(model, attention)
        ids = torch.tensor([chunk.ids for chunk in read_prompt(prompt, EncodeOptions(), default_tokenizer()).chunks])
        with torch.inference_mode():
            return towers[attention](ids).last_hidden_state.flatten(0, 1).unsqueeze(0)

    return encode


class Transformers(NamedTuple):
    """Tokenizer and text model, as functions that encode the next prompt of a sequence from its text."""

    tokenizer: Any
    model: Any

    def batch(self, prompts: Iterator[Sequence[str]], size: int) -> Callable[[], Tensor]:
        """Encode the next texts, each cut to its first chunk, ``size`` at once, to ``[prompts, 77, dim]``."""
        import torch

        def run() -> Tensor:
            tokens = self.tokenizer(next(prompts), padding="max_length", truncation=True, return_tensors="pt")
            batches = tokens["input_ids"].to(self.model.device).split(size)
            return torch.cat([self.model(ids).last_hidden_state for ids in batches])

        return run

    def one(self, prompts: Iterator[str]) -> Callable[[], Tensor]:
        """Encode the next text, cut to its first chunk, to ``[1, 77, dim]``."""
        return self.batch(([text] for text in prompts), 1)

    def long(self, prompts: Iterator[str]) -> Callable[[], Tensor]:
        """Encode the next text as one batch of chunks of 75 tokens, the last not full, to ``[1, 77 * chunks, dim]``."""
        import torch

        tokenizer = self.tokenizer

        def run() -> Tensor:
            ids = tokenizer(next(prompts), add_special_tokens=False, verbose=False)["input_ids"]
            bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
            parts = (ids[start : start + 75] for start in range(0, len(ids), 75))
            chunks = torch.tensor([[bos, *part, *[eos] * (76 - len(part))] for part in parts])
            return self.model(chunks).last_hidden_state.flatten(0, 1).unsqueeze(0)

        return run


def transformers_of(model: TextModel, attention: str = "sdpa") -> Transformers | None:
    """The peer with our weights on the same device; None if it is not installed."""
    if find_spec("transformers") is None:
        return None
    theirs = transformers_text_model(model, attention)
    return Transformers(transformers_tokenizer(), theirs.to(model.final_layer_norm.weight.device))


def transformers_text_model(model: TextModel, attention: str = "sdpa") -> Any:
    """CLIPTextModel of the same size on the same tensors as ours, in evaluation mode without gradients.

    ``attention`` is its implementation, ``sdpa`` or ``eager``.
    """
    from transformers import CLIPTextConfig, CLIPTextModel

    config = model.config
    make_config: Any = CLIPTextConfig  # its keywords differ between versions
    theirs = CLIPTextModel(
        make_config(
            vocab_size=config.vocab_size,
            **sizes_of(config),
            max_position_embeddings=config.context_length,
            hidden_act=config.activation,
            layer_norm_eps=config.layer_norm_eps,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            pad_token_id=config.pad_id,
            attn_implementation=attention,
        )
    )
    give_weights(theirs, model)
    return theirs.eval().requires_grad_(False)


def transformers_projected_model(model: TextModel) -> Any:
    """CLIPTextModelWithProjection of the same size and weights as ours; otherwise like `transformers_text_model`."""
    from transformers import CLIPTextModelWithProjection

    config = transformers_text_model(model).config
    config.projection_dim = model.config.projection_dim
    theirs: Any = CLIPTextModelWithProjection(config)
    give_weights(theirs, model)
    return theirs.eval().requires_grad_(False)


def give_weights(theirs: Any, model: TextModel) -> None:
    """Make a text model of transformers share our tensors."""
    ours, state = model.state_dict(), theirs.state_dict()
    for key in state:
        if not key.endswith("position_ids"):  # before 4.31 these are among the weights
            state[key] = ours[key.removeprefix("text_model.")]
    theirs.load_state_dict(state, assign=True)


def transformers_tokenizer() -> Any:
    """CLIPTokenizer, read from files like those of a downloaded model, made from the vocabulary we ship.

    In transformers 4 it is CLIPTokenizerFast, which became CLIPTokenizer in transformers 5. The slow one of version 4
    cleans texts by rules that depend on the installed packages.
    """
    library: Any = importlib.import_module("transformers")
    theirs = library.CLIPTokenizerFast if library.__version__.startswith("4.") else library.CLIPTokenizer
    ours = default_tokenizer()
    vocabulary = {ours.symbol(token_id): token_id for token_id in range(ours.vocab_size)}
    merges = [" ".join(pair) for pair in read_merges()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
        special = {"bos_token": ours.symbol(49406), "eos_token": ours.symbol(49407)}
        special |= {"unk_token": special["eos_token"], "pad_token": special["eos_token"]}
        kind = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True}
        (folder / "tokenizer_config.json").write_text(json.dumps({**kind, **special}), encoding="utf-8")
        return theirs.from_pretrained(folder)


def ids_of_transformers() -> Callable[[str], list[int]]:
    """Its tokenizer, without special tokens."""
    tokenizer = transformers_tokenizer()
    return lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]


class ImageTower(NamedTuple):
    """CLIPModel's image tower and the processor of its images."""

    pixels: Callable[[Sequence[Image.Image]], Tensor]
    encode: Callable[[Tensor], Tensor]
    """From pixels to features of unit length."""


def open_image_tower(model: VisionModel) -> ImageTower:
    """CLIPModel on the same weights, with a small unused text half."""
    import torch
    from torch.nn import functional
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    config = model.config
    vision = {
        **sizes_of(config),
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "hidden_act": config.activation,
    }
    text = {
        **{"vocab_size": 100, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1},
        **{"num_attention_heads": 1, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1},
    }
    make_config: Any = CLIPConfig  # its keywords differ between versions
    given = make_config(text_config=text, vision_config=vision, projection_dim=config.projection_dim)
    given._attn_implementation = "sdpa"
    theirs: Any = CLIPModel(given).eval().requires_grad_(False)
    named: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = name.replace("pre_layer_norm", "pre_layrnorm").replace("post_layer_norm", "post_layernorm")
        named[key if key.startswith("visual_projection") else f"vision_model.{key}"] = tensor
    unfilled, unknown = theirs.load_state_dict(named, strict=False)
    assert not unknown, unknown
    assert not [key for key in unfilled if key.startswith("vis") and "position_ids" not in key], unfilled
    size = config.image_size
    prepare: Any = CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size})

    def pixels(images: Sequence[Image.Image]) -> Tensor:
        return prepare(list(images), return_tensors="pt")["pixel_values"]

    def encode(prepared: Tensor) -> Tensor:
        found = theirs.get_image_features(pixel_values=prepared)
        return functional.normalize(found if isinstance(found, torch.Tensor) else found.pooler_output, dim=-1)

    return ImageTower(pixels, encode)
