"""Results of a run: files that hosts load."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ...encoder.files.checkpoint import config_of, hugging_face_tensors, position_metadata
from ...encoder.files.folders import Files, Parts, files_for
from ...encoder.files.tensor_file import CheckpointError
from ...encoder.models.clip import FullClip
from ..output.export import save_tensors, write_tensors
from ..output.files import folder_written_whole, write_text
from .checkpoint import check_weights
from .data.image_inputs import read_again
from .finetuning.lora import lora_tensors, merged, model_of
from .finetuning.textual_inversion import word_tensors
from .options import TrainOptions, file_name
from .scaling.grad_cache import Towers

CONFIG_NAME = "config.json"
"""Heads and activation, for a model whose tensors alone would suggest others."""
TEXT_NAME, WHOLE_NAME, LORA_NAME = "text_encoder.safetensors", "clip.safetensors", "lora.safetensors"


@dataclass(frozen=True)
class Results:
    """Writer of the trained weights into a run's folder."""

    folder: Path
    clip: FullClip
    """Model at the start of training."""
    weights: Path
    """File it was read from."""
    options: TrainOptions
    vision_digest: str
    """`digest_of` the image tower if it was dropped; empty if it was trained."""

    def write(self, towers: Towers, step: int) -> None:
        """Write the text encoder, a LoRA and the whole CLIP in the hosts' formats; or a new word alone."""
        metadata = self.options.metadata(self.clip.name, step) | position_metadata(towers.text.config)
        text: dict[str, Tensor] = {}
        if towers.word is not None:
            files = {file_name(self.options.word or ""): word_tensors(towers.word.vectors)}
        else:
            text = merged(towers.text)
            files = {TEXT_NAME: hugging_face_tensors(towers.text, text)}
            if self.options.lora:
                width = towers.text.config.hidden_dim
                files[LORA_NAME] = lora_tensors(towers.text, self.options.lora_for or model_of(width))
        for tensors in (towers.state_dict(), *files.values()):  # weights themselves, and merged ones
            check_weights(tensors)
        for name, tensors in files.items():
            write_tensors(self.folder / name, tensors, metadata)
        if towers.word is None:
            config = config_of(towers.text.config, self.clip.vision.config)
            if config is not None:
                write_text(self.folder / CONFIG_NAME, json.dumps(config, indent=2))
            self._write_whole(towers, text, metadata)

    def _write_whole(self, towers: Towers, text: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the whole CLIP, as a file and as folders; an untrained image tower is read again."""
        numbers = {name: tensor.detach().cpu().contiguous() for name, tensor in towers.loss.named_parameters()}
        if towers.vision is not None:
            vision: Mapping[str, Tensor] = dict(towers.vision.named_parameters())
        else:
            try:
                vision = read_again(self.clip.vision, self.weights, self.vision_digest)
            except CheckpointError as error:
                raise ValueError(
                    f"{error}. So {WHOLE_NAME} is not written; {TEXT_NAME} is. Put the file back, and use --resume"
                ) from error
        tensors = {**hugging_face_tensors(towers.text, text), **hugging_face_tensors(self.clip.vision, vision)}
        write_tensors(self.folder / WHOLE_NAME, {**tensors, **numbers}, metadata)
        clip = Parts(towers.text, text, self.clip.vision, vision, numbers, self.options.crop)
        for library in self.options.write_for:
            write_folder(self.folder / library, files_for(library, clip), metadata)


def write_folder(folder: Path, files: Files, metadata: Mapping[str, str]) -> None:
    """Write a folder whole, in the place of an older one."""
    with folder_written_whole(folder, may_replace=True) as whole:
        for name, content in files.items():
            place = whole / name
            place.parent.mkdir(exist_ok=True)
            if isinstance(content, str):
                place.write_text(content, encoding="utf-8")
            elif place.suffix == ".json":
                place.write_text(json.dumps(content, indent=2), encoding="utf-8")
            else:
                save_tensors(content, place, {**metadata, "format": "pt"})
            with place.open("rb+") as file:
                os.fsync(file.fileno())
