"""transformers' whole CLIP, reading a file of ours, and its own way from image files to pixels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import config_of, hugging_face_tensors
from weighted_clip.encoder.models.config import TextConfig, VisionConfig, sizes_of
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.models.vision_model import VisionModel

from .libraries import library


def write_clip(path: Path, text: TextModel, vision: VisionModel, scale: float = math.exp(4)) -> Path:
    """A whole CLIP as a file of transformers, with its config if the tensors alone would be taken for another."""
    tensors = {**hugging_face_tensors(text), **hugging_face_tensors(vision), "logit_scale": torch.tensor(scale).log()}
    save_file(tensors, path)
    if config := config_of(text.config, vision.config):
        path.with_name("config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


class Reference:
    """transformers' CLIPModel with the weights of a file."""

    def __init__(self, weights: Path, text: TextConfig, vision: VisionConfig) -> None:
        """Read a file of Hugging Face's names.

        Args:
            weights: The file.
            text: Sizes of its text tower.
            vision: Sizes of its image tower.
        """
        transformers = library("transformers", "4.46")
        self._size = vision.image_size
        # of transformers 4 the one of this name works on Pillow's images too
        self._processor = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
        config = transformers.CLIPConfig(
            text_config={
                **sizes_of(text),
                "hidden_act": text.activation,
                "vocab_size": text.vocab_size,
                "bos_token_id": 49406,
                "eos_token_id": 49407,
            },
            vision_config={
                **sizes_of(vision),
                "hidden_act": vision.activation,
                "image_size": vision.image_size,
                "patch_size": vision.patch_size,
            },
            projection_dim=text.projection_dim,
        )
        self._model: Any = transformers.CLIPModel(config).eval()
        missing, unexpected = self._model.load_state_dict(load_file(weights), strict=False)
        assert unexpected == []
        assert all("position_ids" in key for key in missing)

    def pixels(self, paths: Iterable[Path]) -> Tensor:
        """Image files as its own processor prepares them."""
        processor = self._processor(
            size={"shortest_edge": self._size}, crop_size={"height": self._size, "width": self._size}
        )
        return torch.cat([processor(Image.open(path), return_tensors="pt")["pixel_values"] for path in paths])

    @torch.no_grad()
    def probabilities(self, ids: Sequence[Sequence[int]], pixels: Tensor) -> Tensor:
        """``[images, texts]``."""
        output = self._model(input_ids=torch.tensor(ids), pixel_values=pixels)
        return output.logits_per_image.softmax(-1)

    @torch.no_grad()
    def features(self, pixels: Tensor, ids: Sequence[Sequence[int]] = ((49406, 49407),)) -> tuple[Tensor, Tensor]:
        """Features of images and texts, of unit length."""
        output = self._model(input_ids=torch.tensor(ids), pixel_values=pixels)
        return output.image_embeds, output.text_embeds

    @property
    def scale(self) -> float:
        """Factor of cosines."""
        return self._model.logit_scale.exp().item()
