"""The lab's tab for attention: the weights of one layer and head, and the mask that allowed them.

Values of the page's components in, new values out, as in ``handlers.py``. Only our own encoder returns its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

import gradio as gr
from torch import Tensor

from ...encoder.attention_weights import allowed_keys
from ...encoder.config import TextConfig
from ...weighting.chunking import ChunkedSection
from ...weighting.chunks import TokenChunk
from ...weighting.encode import EncodeOptions, ReadPrompt, plan_prompt
from ...weighting.masks import mask_tensor
from ...weighting.schemes.plan import Ask
from ...weighting.towers import Reader, read_for_towers
from ...weighting.view import counted
from ..pictures.figures import SHOWN_PADDING, mask_labels
from . import markup
from .attention_chart import Attended, attention_chart
from .handlers import MAX_POSITIONS, Handlers, inputs_of
from .model import LabError, LabModel
from .study import chunk_of
from .values import explained

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


class AttentionHandlers:
    """Handlers of the tab.

    Args:
        handlers: Handlers of the page, which read its components.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def show(self, is_open: bool, *values: Any) -> tuple[Any, ...]:
        """Ranges of the numbers, in the order of `Choice`, and the weights. Nothing changes if the tab is not open.

        Args:
            is_open: Whether the tab is open.
            values: The numbers of `Choice`, the prompt, the options.
        """
        if not is_open:
            return (gr.update(),) * 6
        numbers, text, options = values[:5], values[5], values[6:]
        inputs = inputs_of(text, options)
        try:
            parts, shown = self._shown(Choice(*map(_number, numbers)), text, options)
        except Exception as error:  # the page is the only place where the user can see it
            return *(gr.update(),) * 5, markup.current(markup.message(explained(error)), inputs)
        return *parts, markup.current(shown, inputs)

    def _shown(self, choice: Choice, text: str, values: Sequence[Any]) -> tuple[list[Any], str]:
        model = self._handlers.source()
        if not isinstance(model, AttentionModel):
            raise LabError("This encoder does not show its attention: only those that the lab itself has loaded do.")
        options = self._handlers.options(text, values)
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
        labels = mask_labels(version.chunk, read.prompt.source)
        count = min(length, version.chunk.num_content + 2 + SHOWN_PADDING, MAX_POSITIONS)
        attended = Attended(
            labels[:count],
            (weights.mean(0) if head == 0 else weights[head - 1])[:count, :count].tolist(),
            allowed[:count, :count].tolist(),
            version.ask.is_causal,
            _told(options, tower, towers, layer, head, config, number, read, version, versions),
            num_more=length - count,
        )
        parts = [
            _update(config.num_layers, choice.layer),
            _update(config.num_heads, choice.head),
            _hidden(f"Version, 1 to {len(versions)}", len(versions)),
            _hidden(f"Chunk, 1 to {len(read.chunks)} ", len(read.chunks)),  # not the label of the tab Masks
            _hidden("Text encoder: " + ", ".join(f"{i} {name}" for i, name in enumerate(towers, 1)), len(towers)),
        ]
        return parts, attention_chart(attended)


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


def _number(value: Any) -> int:
    """A number from the page, or anything else in a request; NaN compares as false."""
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1e6 else 1


def _update(most: int, chosen: int) -> Any:
    """Slider up to the model's limit."""
    return gr.update(maximum=most, value=most) if chosen > most else gr.update(maximum=most)


def _hidden(label: str, count: int) -> Any:
    """Number input, visible only if there is a choice."""
    return gr.update(label=label, visible=count > 1)
