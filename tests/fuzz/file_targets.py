"""Targets that read files: each raises nothing but what is documented, and what it reads is whole and finite."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from weighted_clip.commands.prompt_lines import MAX_LINE_BYTES, PromptLines
from weighted_clip.encoder.clip import load_full_clip
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.files.textual_inversion import MAX_VECTORS, EmbeddingFileError, read_embedding_file
from weighted_clip.encoder.prefix import encoders_for
from weighted_clip.output.shards import ShardError, read_shards
from weighted_clip.weighting.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.embeddings import EmbeddingError

from .drawing import Draw
from .files import Header, checkpoint_header, embedding_header, folder, shard_header


def _written(name: str, header: Header | None, draw: Draw) -> Path:
    """A mutated file, or with no header one of the bytes themselves."""
    path = folder() / name
    if header is None:
        path.write_bytes(draw.take(2**20))
    else:
        header.write(path, draw)
    return path


def checkpoint(data: bytes) -> None:
    draw = Draw(data)
    path = _written("model.safetensors", checkpoint_header(draw) if draw.number(15) else None, draw)
    try:
        models, report = load_text_models(path)
    except CheckpointError as error:
        assert str(error).startswith(str(path))
        assert len(str(error)) < 2000
        return
    assert [tower.tower for tower in report.towers] == list(models)
    assert len(str(report)) < 10_000
    for model in models.values():
        _check_model(model)
    try:
        encoders_for(models)
    except ValueError as error:
        assert "no model family" in str(error)


def whole_clip(data: bytes) -> None:
    draw = Draw(data)
    path = _written("whole.safetensors", checkpoint_header(draw) if draw.number(15) else None, draw)
    try:
        clip = load_full_clip(path)
    except CheckpointError as error:
        assert str(error).startswith(str(path))
        return
    _check_model(clip.text)
    _check_model(clip.vision)
    assert math.isfinite(clip.logit_scale)
    assert clip.vision.config.grid >= 1


def _check_model(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.device.type == "cpu"
        assert parameter.numel()
        assert bool(parameter.isfinite().all())


def embedding(data: bytes) -> None:
    draw = Draw(data)
    path = _written("x.safetensors", embedding_header(draw) if draw.number(3) else None, draw)
    try:
        towers = read_embedding_file(path)
    except EmbeddingFileError as error:
        assert str(error).startswith(path.name)
        assert len(str(error)) < 2000
        return
    assert towers
    for vectors in towers.values():
        assert vectors.dtype == torch.float32
        assert vectors.ndim == 2
        assert 1 <= len(vectors) <= MAX_VECTORS
        assert bool(vectors.isfinite().all())


def embedding_name(data: bytes) -> None:
    """Any name leads to a file of the folder or to none."""
    draw = Draw(data)
    place = folder() / "embeddings"
    place.mkdir(exist_ok=True)
    embedding_header(draw).write(place / draw.pick(["a.safetensors", "..safetensors", "b c.safetensors"]), Draw(b""))
    embeddings = EmbeddingFolder([place, place / "none"], "clip_l", 8)
    name = draw.pick([draw.rest(), *embeddings.names()])
    try:
        found = embeddings.find(name)
    except EmbeddingError as error:
        assert str(error)
        return
    if found is not None:
        known = {form for stem in embeddings.names() for form in (stem, f"{stem}.safetensors")}
        assert name.replace("\\", "/") in known
        assert all(tuple(vector.shape) == (8,) for vector in found)


def shard(data: bytes) -> None:
    draw = Draw(data)
    place = folder() / "shards"
    place.mkdir(exist_ok=True)
    header = shard_header(draw) if draw.number(7) else None
    _written("shards/prompts-00000000.safetensors", header, draw)
    try:
        lines = list(read_shards(place))
    except ShardError as error:
        assert str(error)
        return
    assert lines
    assert [line.line for line in lines] == list(range(len(lines)))


def lines(data: bytes) -> None:
    path = folder() / "prompts.txt"
    path.write_bytes(data)
    try:
        found = PromptLines(str(path), SimpleNamespace(num_processes=1))
        texts = list(found)
    except ValueError as error:
        assert str(path) in str(error)
        return
    assert len(texts) == found.num_lines
    assert all(len(text.encode()) <= MAX_LINE_BYTES and "\n" not in text for text in texts)


FILE_TARGETS = {
    "checkpoint": checkpoint,
    "whole_clip": whole_clip,
    "embedding": embedding,
    "embedding_name": embedding_name,
    "shard": shard,
    "lines": lines,
}
