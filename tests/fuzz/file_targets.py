"""Targets that read files: each raises nothing but what is documented, and what it reads is whole and finite.

They read small safetensors files, mutated by bytes that say how: headers that lie, odd types and sizes, cut ends.
"""

from __future__ import annotations

import json
import math
import struct
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.files.textual_inversion import MAX_VECTORS, EmbeddingFileError, read_embedding_file
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.encoder.models.prefix import encoders_for
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.models.vision_model import VisionModel
from weighted_clip.studio.commands.prompt_lines import MAX_LINE_BYTES, PromptLines
from weighted_clip.studio.output.shards import ShardError, read_shards
from weighted_clip.weighting.text.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.text.embeddings import EmbeddingError

from ..encoder.files import hugging_face, openclip, transformers_5
from .drawing import Draw

BITS = {"F32": 32, "F16": 16, "BF16": 16, "F64": 64, "I64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6}
"""Bits per number; 8 for other types."""
DTYPES = (*BITS, "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F99", "")
SIZES = (0, 1, 2, 3, 64, 65, 77, 128, 1001, 8193, 49408, 64_000_000, 2**31, 2**63, 2**64, -1)
LENGTHS = (0, 1, 7, 100_000_001, 2**31, 2**63, 2**64 - 1)
MAX_SPARSE = 2**40
"""A file's size, most of it a hole."""

TEXT = TextConfig(hidden_dim=64, num_heads=1, num_layers=1, mlp_dim=64, projection_dim=64)
VISION = VisionConfig(
    image_size=4, patch_size=2, hidden_dim=64, num_heads=1, num_layers=1, mlp_dim=64, projection_dim=64
)


@dataclass
class Header:
    """The tensors of a file, its metadata, and how the file lies about them."""

    tensors: dict[str, tuple[str, list[int]]]
    metadata: dict[str, str] = field(default_factory=dict)
    values: bytes = b""
    """The first bytes of the data; the rest is zeros."""
    max_bytes: int = MAX_SPARSE

    def write(self, path: Path, draw: Draw) -> None:
        """Write the file with as many mutations as there are bytes left."""
        shifts: dict[str, tuple[int, int]] = {}
        extra, cut, length = "", 0, None
        while draw:
            kind, keys = draw.number(11), list(self.tensors)
            key = draw.pick(keys) if keys else ""
            dtype, shape = self.tensors.get(key, ("F32", [1]))
            if kind == 0:
                self.tensors.pop(key, None)
            elif kind == 1:
                self.tensors[key] = draw.pick(DTYPES), shape
            elif kind == 2 and shape:
                axis = draw.number(len(shape) - 1)
                self.tensors[key] = dtype, [*shape[:axis], draw.pick(SIZES), *shape[axis + 1 :]]
            elif kind == 3:
                self.tensors[key] = dtype, draw.pick([shape[1:], [*shape, 1], shape[::-1], [], (shape * 20)[:40]])
            elif kind == 4:
                self.tensors[draw.pick([draw.text(40), f"{key}.{draw.text(9)}", key.replace("0", draw.text(20))])] = (
                    self.tensors.pop(key, (dtype, shape))
                )
            elif kind == 5:
                shifts[key] = draw.pick(SIZES), draw.pick(SIZES)
            elif kind == 6:
                extra += f',{json.dumps(key)}:{{"dtype":"F32","shape":[{draw.pick(SIZES)}],"data_offsets":[0,4]}}'
            elif kind == 7:
                self.metadata[draw.text(20)] = draw.text(40)
            elif kind == 8:
                self.values = draw.take(16) * (1 + draw.number(255))
            elif kind == 9:
                cut = draw.number(2**16 - 1)
            elif kind == 10:
                length = draw.pick(LENGTHS)
            else:
                extra += draw.text(60)
        header, end = self._json(shifts)
        body = (header[:-1] + extra + "}").encode("utf-8", "surrogatepass")
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(body) if length is None else length) + body + self.values[:end])
            file.truncate(max(0, 8 + len(body) + min(end, self.max_bytes) - cut))

    def _json(self, shifts: dict[str, tuple[int, int]]) -> tuple[str, int]:
        """The header, and how many bytes of data it speaks of."""
        entries: dict[str, object] = {"__metadata__": self.metadata} if self.metadata else {}
        end = 0
        for key, (dtype, shape) in self.tensors.items():
            start, end = end, end + max(0, BITS.get(dtype, 8) * math.prod(shape) // 8)
            more = shifts.get(key, (0, 0))
            entries[key] = {"dtype": dtype, "shape": shape, "data_offsets": [start + more[0], end + more[1]]}
        return json.dumps(entries), end


@cache
def folder() -> Path:
    """A folder of this process, which goes with it."""
    _folders.append(made := tempfile.TemporaryDirectory(prefix="fuzz-"))
    return Path(made.name)


_folders: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _shapes() -> tuple[dict[str, list[int]], ...]:
    """Keys and shapes of a small encoder in several namings, with and without its image half."""
    with torch.device("meta"):
        text, vision = dict(TextModel(TEXT).named_parameters()), dict(VisionModel(VISION).named_parameters())
    scale = {"logit_scale": torch.empty((), device="meta")}
    whole = hugging_face(text, "") | {
        ("" if "projection" in key else "vision_model.")
        + key.replace("pre_layer_norm", "pre_layrnorm").replace("post_layer_norm", "post_layernorm"): tensor
        for key, tensor in vision.items()
    }
    files = (
        transformers_5(text, ""),
        hugging_face(text, "cond_stage_model.transformer."),
        openclip(text, "conditioner.embedders.0.model."),
        hugging_face(text, "clip_l.transformer.") | openclip(text, "clip_g."),
        whole | scale,
    )
    return tuple({key: list(tensor.shape) for key, tensor in one.items()} for one in files)


def checkpoint_header(draw: Draw) -> Header:
    return Header({key: ("F8_E4M3", shape) for key, shape in draw.pick(_shapes()).items()})


def embedding_header(draw: Draw) -> Header:
    names = draw.pick(
        [
            ["emb_params"],
            ["clip_l", "clip_g"],
            ["string_to_param.*", "string_to_token.*"],
            ["bundle_emb.a.string_to_param.*", "bundle_emb.b.string_to_param.*"],
            ["bundle_emb.a.clip_l", "bundle_emb.a.clip_g"],
        ]
    )
    return Header({name: (draw.pick(DTYPES), [draw.number(3), 8]) for name in names}, values=draw.take(16))


def shard_header(draw: Draw) -> Header:
    metadata = {"format": "weighted-clip shard 1", "first_line": "0", "last_line": "1", "scheme": "comfy"}
    metadata |= {"00000000.text": "a", "00000001.text": "b"}
    tensors = {
        f"{line:08d}.{name}": ("F32", [3, 4] if name == "hidden" else [4])
        for line in range(2)
        for name in ("hidden", "pooled")
    }
    header = Header(tensors, metadata, max_bytes=2**16)
    for _ in range(draw.number(3)):
        header.metadata[draw.pick(list(metadata))] = draw.pick(["", "-1", "9" * 5000, "2", "１", draw.text(20)])
    return header


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
