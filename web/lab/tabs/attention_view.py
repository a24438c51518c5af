"""Attention weights of one layer and head of a model, for a chunk of a prompt; and the same as markup.

The markup has attending words beside attended words, and both matrices. ``scripts/attention.js`` shows the weights of
the word under the pointer or with the focus; ``style.css`` draws. Without gradio: commands use it, too.

Source: the view of heads of BertViz (J. Vig, "A Multiscale Visualization of Attention in the Transformer Model", 2019).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from ....encoder.models.attention_weights import allowed_keys
from ....encoder.models.config import TextConfig
from ....weighting.chunking import ChunkedSection
from ....weighting.options import EncodeOptions
from ....weighting.pipeline import plan_prompt
from ....weighting.plan import Ask, mask_tensor
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.view import counted
from ....weighting.text.chunks import TokenChunk
from ....weighting.towers import Reader, read_for_towers
from ...pictures.masks import SHOWN_PADDING, mask_labels
from ...pictures.matrices import Scale
from ..model import LabModel
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
    """Attention weights of a layer and head for one chunk of a prompt, of ``limit`` positions at most."""
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
    parts = [tower] if len(towers) > 1 else []
    parts += [f"layer {layer} of {config.num_layers}"]
    parts += [f"head {head} of {config.num_heads}" if head else f"mean of {counted(config.num_heads, 'head')}"]
    parts += [f"chunk {number} of {len(read.chunks)}"] if len(read.chunks) > 1 else []
    parts += [f"{options.scheme}: {version.title}"] if len(versions) > 1 else []
    attended = Attended(
        mask_labels(version.chunk, read.prompt.source)[:count],
        (weights.mean(0) if head == 0 else weights[head - 1])[:count, :count].tolist(),
        allowed[:count, :count].tolist(),
        version.ask.is_causal,
        ", ".join(parts),
        num_more=length - count,
    )
    return Found(attended, config, len(versions), len(read.chunks), towers)


def versions_of(read: ReadPrompt, chunk: int, reader: Reader) -> list[Version]:
    """Distinct encodings of one chunk needed by a prompt's scheme, the prompt's own first; at most `MAX_VERSIONS`."""
    alone = read._replace(sections=(ChunkedSection(((chunk_of(read, chunk),),)),), kept=None)
    found: dict[Ask, Version] = {}
    for variant in islice(plan_prompt(alone, reader.tokenize).variants(), 4 * MAX_VERSIONS):
        if variant.is_aside:
            continue
        for one, ask in zip(variant.chunks, variant.asks(), strict=True):
            found.setdefault(ask, Version(variant.title, one, ask))
    return list(found.values())[:MAX_VERSIONS]


ROW = 26
"""Distance between words in pixels, as in ``style.css``."""
LEVELS = 16
"""Steps of opacity in the matrix of weights."""
NAMED = 3
"""Number of words named in the line above."""
_PERCENT = Scale(0.0, 1.0, True)
NOTE = (
    "How much of each word on the right a head takes into the one on the left, 100 % in all. Point at a word, or use "
    "the arrow keys; strength is drawn as a square root."
)


@dataclass(frozen=True)
class Attended:
    """Content of the chart."""

    labels: Sequence[str]
    """Labels of the positions shown, from the first."""
    weights: Sequence[Sequence[float]]
    """Query by key, 0 to 1."""
    allowed: Sequence[Sequence[bool]]
    """Query by key: True where mask and causality allow attention."""
    is_causal: bool
    told: str
    """Description of the weights."""
    num_more: int = 0
    """Number of further positions not shown."""


def attention_chart(attended: Attended) -> str:
    """Draw the weights of a head, initially those of the last word."""
    labels = attended.labels
    rows = [row_of(attended, query) for query in range(len(labels))]
    query = max((i for i, name in enumerate(labels) if name not in ("BOS", "EOS", "PAD")), default=len(labels) - 1)
    names = ["&nbsp;" if not name.strip() else escape(name) for name in labels]
    words = "".join(
        f"<button type='button' role='radio' aria-checked='{'true' if i == query else 'false'}' "
        f"tabindex='{0 if i == query else -1}' title='{escape(labels[i])}'>{name}</button>"
        for i, name in enumerate(names)
    )
    told, texts, shares = rows[query]
    keys = "".join(
        f"<li><b title='{escape(label)}'>{name}</b><span><u style='width: {100 * share:.1f}%'></u></span>"
        f"<em>{text}</em></li>"
        for label, name, share, text in zip(labels, names, shares, texts, strict=True)
    )
    height = ROW * len(labels)
    lines = "".join(
        f"<line x1='0' y1='{ROW * (query + 0.5):g}' x2='100' y2='{ROW * (key + 0.5):g}' "
        f"stroke-opacity='{share**0.5:.3f}'/>"
        for key, share in enumerate(shares)
    )
    more = f" {attended.num_more} positions of padding behind these are not shown." if attended.num_more else ""
    return (
        f"<section class='weighted-clip-attention' data-rows='{escape(json.dumps(rows, separators=(',', ':')))}'>"
        f"<h2>{escape(attended.told)}</h2><p class='weighted-clip-told' role='status'>{escape(told)}</p>"
        "<div class='weighted-clip-head-view'><div class='weighted-clip-from' role='radiogroup' "
        f"aria-label='Word that attends'>{words}</div>"
        f"<svg viewBox='0 0 100 {height}' style='height: {height}px' preserveAspectRatio='none' aria-hidden='true'>"
        f"{lines}</svg><ol class='weighted-clip-to' aria-label='Words that are attended'>{keys}</ol></div>"
        f"<div class='weighted-clip-matrices'>{_matrix('Weights', _weights(attended.weights), len(labels), query)}"
        f"{_matrix('Mask', _open(attended.allowed), len(labels), query)}</div>"
        f"</section><p class='weighted-clip-note'>{NOTE}{more}</p>"
    )


def row_of(attended: Attended, query: int) -> tuple[str, list[str], list[float]]:
    """Text about a word, texts at each word that it could attend to, and its shares."""
    labels, weights, allowed = attended.labels, attended.weights[query], attended.allowed[query]
    texts = [
        _PERCENT.text(weight) if is_open else "later" if attended.is_causal and key > query else "hidden"
        for key, (weight, is_open) in enumerate(zip(weights, allowed, strict=True))
    ]
    most = sorted(range(len(weights)), key=lambda key: -weights[key])[:NAMED]
    named = ", ".join(f"{labels[key]} {texts[key]}" for key in most if allowed[key])
    shut = [f"{count} {why}" for why in ("later", "hidden") if (count := texts.count(why))]
    told = f"{labels[query]} attends {named}" + (f"; not seen: {' and '.join(shut)}" if shut else "")
    return told, texts, [round(weight, 4) for weight in weights]


def _weights(weights: Sequence[Sequence[float]]) -> str:
    """Path for each step of opacity."""
    cells: dict[int, list[str]] = {}
    for y, row in enumerate(weights):
        for x, weight in enumerate(row):
            level = round(LEVELS * weight**0.5)
            if level:
                cells.setdefault(level, []).append(f"M{x} {y}h1v1h-1z")
    return "".join(
        f"<path fill-opacity='{level / LEVELS:g}' d='{''.join(some)}'/>" for level, some in sorted(cells.items())
    )


def _open(allowed: Sequence[Sequence[bool]]) -> str:
    cells = (f"M{x} {y}h1v1h-1z" for y, row in enumerate(allowed) for x, is_open in enumerate(row) if is_open)
    return f"<path fill-opacity='0.55' d='{''.join(cells)}'/>"


def _matrix(title: str, cells: str, count: int, query: int) -> str:
    told = {
        "Weights": "the stronger, the more a row's word attends a column's",
        "Mask": "filled is what a row's word may attend",
    }[title]
    return (
        f"<figure><svg viewBox='0 0 {count} {count}' role='img' aria-label='{title}: {escape(told)}' "
        f"shape-rendering='crispEdges'>{cells}<rect x='0' y='{query}' width='{count}' height='1'/></svg>"
        f"<figcaption>{title}: {escape(told)}</figcaption></figure>"
    )
