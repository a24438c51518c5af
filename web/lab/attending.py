"""Attention weights of one layer and head of a model, for a chunk of a prompt. Without gradio: commands use it, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from ...encoder.attention_weights import allowed_keys
from ...encoder.config import TextConfig
from ...weighting.chunking import ChunkedSection
from ...weighting.chunks import TokenChunk
from ...weighting.options import EncodeOptions
from ...weighting.pipeline import plan_prompt
from ...weighting.plan import Ask, mask_tensor
from ...weighting.reading import ReadPrompt
from ...weighting.towers import Reader, read_for_towers
from ...weighting.view import counted
from ..pictures.masks import SHOWN_PADDING, mask_labels
from .attention_chart import Attended
from .model import LabModel
from .study import chunk_of

MAX_VERSIONS = 200
"""Maximum number of encoded versions of a prompt to choose from."""


@runtime_checkable
class AttentionModel(LabModel, Protocol):
    """A model that returns its attention."""

    def sizes(self) -> Mapping[str, TextConfig]:
        """Sizes of each text tower, by name, as in `readers`."""
        ...

    def attention(self, tower: str, ask: Ask, layer: int) -> Tensor:
        """Weights ``[heads, positions, positions]`` of a layer, counted from 1, for one encoding of a tower."""
        ...


class Choice(NamedTuple):
    """Selection of weights, each number from 1. A number that is too large means the last one."""

    layer: int
    head: int
    """0 for the mean of all heads."""
    version: int
    """Version of the prompt, as the scheme encodes it."""
    chunk: int
    tower: int


class Version(NamedTuple):
    """One encoding of a chunk."""

    title: str
    chunk: TokenChunk
    ask: Ask


class Found(NamedTuple):
    """Weights of a chunk, and what there is to choose from."""

    attended: Attended
    config: TextConfig
    """Sizes of the tower."""
    num_versions: int
    num_chunks: int
    towers: Sequence[str]


def find_attention(model: AttentionModel, text: str, options: EncodeOptions, choice: Choice, limit: int) -> Found:
    """Attention weights of a layer and head for one chunk of a prompt.

    Args:
        model: The model.
        text: The prompt.
        options: Options for reading and encoding it.
        choice: The selection.
        limit: Maximum number of positions.

    Raises:
        LabError: If the weights cannot be loaded.
        ValueError: If an option is out of range.
    """
    towers = list(model.sizes())
    tower = towers[min(choice.tower, len(towers)) - 1]
    read = read_for_towers(text, options, model.readers())[tower]
    number = min(choice.chunk, len(read.chunks))
    versions = versions_of(read, number - 1, model.readers()[tower])
    version = versions[min(choice.version, len(versions)) - 1]
    config = model.sizes()[tower]
    layer, head = min(choice.layer, config.num_layers), min(choice.head, config.num_heads)
    weights = model.attention(tower, version.ask, layer).double().cpu()  # [heads, s, s]
    length = read.layout.length
    mask = mask_tensor([version.ask.visible], length)
    allowed = allowed_keys(1, length, mask, is_causal=version.ask.is_causal)[0]
    count = min(length, version.chunk.num_content + 2 + SHOWN_PADDING, limit)
    attended = Attended(
        mask_labels(version.chunk, read.prompt.source)[:count],
        (weights.mean(0) if head == 0 else weights[head - 1])[:count, :count].tolist(),
        allowed[:count, :count].tolist(),
        version.ask.is_causal,
        _told(options, tower, towers, layer, head, config, number, read, version, versions),
        num_more=length - count,
    )
    return Found(attended, config, len(versions), len(read.chunks), towers)


def versions_of(read: ReadPrompt, chunk: int, reader: Reader) -> list[Version]:
    """Distinct encodings of one chunk needed by a prompt's scheme, the prompt's own first.

    Args:
        read: The prompt.
        chunk: Number of the chunk, from 0.
        reader: Its prompt reader.

    Returns:
        At most `MAX_VERSIONS`.

    Raises:
        LabError: If there is no such chunk.
    """
    alone = read._replace(sections=(ChunkedSection(((chunk_of(read, chunk),),)),), kept=None)
    found: dict[Ask, Version] = {}
    for variant in islice(plan_prompt(alone, reader.tokenize).variants(), 4 * MAX_VERSIONS):
        if variant.is_aside:
            continue
        for one, ask in zip(variant.chunks, variant.asks(), strict=True):
            found.setdefault(ask, Version(variant.title, one, ask))
    return list(found.values())[:MAX_VERSIONS]


def _told(
    options: EncodeOptions,
    tower: str,
    towers: Sequence[str],
    layer: int,
    head: int,
    config: TextConfig,
    number: int,
    read: ReadPrompt,
    version: Version,
    versions: Sequence[Version],
) -> str:
    """Description of the weights shown."""
    parts = [tower] if len(towers) > 1 else []
    parts += [f"layer {layer} of {config.num_layers}"]
    parts += [f"head {head} of {config.num_heads}" if head else f"mean of {counted(config.num_heads, 'head')}"]
    parts += [f"chunk {number} of {len(read.chunks)}"] if len(read.chunks) > 1 else []
    parts += [f"{options.scheme}: {version.title}"] if len(versions) > 1 else []
    return ", ".join(parts)
