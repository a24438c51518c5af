"""Workflows as somebody might queue them in an evening: drawn at random over all our encode nodes and their options."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from ..hosts.comfy_server import LORA, TEXT_ENCODER, ComfyServer, Graph, Node, add_checkpoint
from .prompts import STEPS, WORDS, draw_options, draw_text, draw_timed

End = Literal["done", "refused", "failed", "interrupted"]
MESSAGE = "the third layer is on strike"
WIDE_EMBEDDING = "wide"
"""An embedding for another model."""
CLIPS = ("checkpoint", "remembering", "LoRAs of the prompt", "last layer", "native", "SDXL")
CLIP_WEIGHTS = (4, 4, 2, 2, 1, 4)
EMBEDDINGS = ("seeded-embedding", "seeded-one", "seeded-eight", "missing", WIDE_EMBEDDING)
MENUS = ("syntax", "scheme", "normalization", "chunking", "padding", "pooled")


@dataclass
class Queued:
    """A workflow, and how it should end."""

    graph: Graph
    end: End
    kind: str
    """Kind, for the count."""
    message: str = ""
    """Part of what the host says of a failure."""
    probes: list[Node] = field(default_factory=list)
    """Nodes that save conditionings."""


def draw_workflow(server: ComfyServer, number: int) -> Queued:
    """The workflow of a number. Every one has the checkpoint's loader, so that the host keeps it loaded."""
    draw = random.Random(number)
    kind = draw.random()
    if kind < 0.04:
        return _faulty(server, draw)
    if kind < 0.06:
        return _interrupted(server, draw)
    if kind < 0.12:
        return _read_only(server, draw)
    return _encoding(server, draw)


def _encoding(server: ComfyServer, draw: random.Random) -> Queued:
    """One or two encode nodes on one CLIP, now and then sampled with."""
    graph = Graph()
    model, clip, vae = add_checkpoint(graph)
    name = draw.choices(CLIPS, CLIP_WEIGHTS)[0]
    text = draw_text(draw, draw.choice(("comfy", "a1111", "compel")), draw.choice((2, 3, 4, 5, 6, 8, 10, 12, 14, 90)))
    if name == "remembering":
        clip = server.add_ours(graph, "WeightedCLIPRemember", clip=clip, remember=draw.choice((1, 8, 64)))
    elif name == "LoRAs of the prompt":
        tags = f"<lora:{LORA.removesuffix('.safetensors')}:{draw.choice((0.3, 0.8, -0.5))}> <lora:missing:1> {text}"
        loaded = server.add_ours(graph, "WeightedCLIPLoadPromptLoras", model=model, clip=clip, text=tags)
        model, clip, text = loaded, loaded[1], loaded[2]
    elif name == "last layer":
        clip = graph.add("CLIPSetLastLayer", clip=clip, stop_at_clip_layer=draw.choice((-1, -2, -5)))
    elif name == "native":
        choices = {"clip_skip": draw.choice((1, 2)), "remember": draw.choice((0, 64))}
        clip = server.add_ours(graph, "WeightedCLIPLoad", file=f"text_encoders/{TEXT_ENCODER}", **choices)
    elif name == "SDXL":
        clip = graph.add("WeightedCLIPTestTinySDXL")[1]
    encode = _sdxl if name == "SDXL" else draw.choice((_text, _text, _a1111, _blend, _mask))
    nodes = [encode(server, graph, draw, clip, text) for _ in range(draw.choice((1, 1, 2)))]
    queued = Queued(graph, "done", name, probes=[server.probe(graph, node) for node in nodes])
    _show(graph, nodes[0][2 if encode is _mask else 1])
    if name != "SDXL" and draw.random() < 0.05:
        _sample(graph, model, clip if name != "native" else None, vae, nodes)
        queued.kind += ", sampled"
    return queued


def _text(server: ComfyServer, graph: Graph, draw: random.Random, clip: Any, text: Any) -> Node:
    options = draw_options(draw)
    choices = {name: options[name] for name in MENUS}
    if isinstance(text, str) and draw.random() < 0.3:
        text = f"{text} (embedding:{draw.choice(EMBEDDINGS)}:{draw.choice((0.5, 1, 1.3))})"
    return server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=text, **choices)


def _a1111(server: ComfyServer, graph: Graph, draw: random.Random, clip: Any, text: Any) -> Node:
    choices = {
        "emphasis": draw.choice(("Original", "No norm", "Ignore", "None")),
        "comma_backtrack": draw.choice((0, 20)),
        "padding": draw_options(draw)["padding"],
        "steps": STEPS,
        "counter": draw.choice(("as the WebUI counts", "as written")),
    }
    text = draw_timed(draw) if isinstance(text, str) and draw.random() < 0.7 else text
    return server.add_ours(graph, "WeightedCLIPA1111Encode", clip=clip, text=text, **choices)


def _blend(server: ComfyServer, graph: Graph, draw: random.Random, clip: Any, text: Any) -> Node:
    options = draw_options(draw)
    choices = {name: options[name] for name in ("law", "mask_method", "padding", "pooled")}
    return server.add_ours(graph, "WeightedCLIPMaskedBlend", clip=clip, text=text, **choices)


def _mask(server: ComfyServer, graph: Graph, draw: random.Random, clip: Any, text: Any) -> Node:
    choices = {
        "hide": text.split()[0] if isinstance(text, str) else draw.choice(WORDS),
        "hidden_from": draw.choice(("everything", "the phrases below", "padding rows only")),
        "from_phrases": draw.choice(WORDS),
        "causal": draw.random() < 0.8,
        "padding": draw_options(draw)["padding"],
    }
    node = server.add_ours(graph, "WeightedCLIPMaskControl", clip=clip, text=text, **choices)
    if draw.random() < 0.3:
        graph.add("PreviewImage", images=node[1])
    return node


def _sdxl(server: ComfyServer, graph: Graph, draw: random.Random, clip: Any, text: Any) -> Node:
    options = draw_options(draw)
    choices = {name: options[name] for name in MENUS}
    texts = {"text_g": text, "text_l": draw.choice((text, "", draw_text(draw, "comfy", 80)))}
    return server.add_ours(
        graph, "WeightedCLIPSDXLEncode", clip=clip, **texts, width=draw.choice((512, 1024)), **choices
    )


def _sample(graph: Graph, model: Any, clip: Any, vae: Any, nodes: list[Node]) -> None:
    """One step of 64 x 64 pixels, and the picture saved."""
    negative = nodes[-1] if clip is None else graph.add("CLIPTextEncode", clip=clip, text="")
    latent = graph.add("EmptyLatentImage", width=64, height=64, batch_size=1)
    settings = {"seed": 1, "steps": 1, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal", "denoise": 1.0}
    links = {"model": model, "positive": nodes[0], "negative": negative, "latent_image": latent}
    samples = graph.add("KSampler", **links, **settings)
    graph.add("SaveImage", images=graph.add("VAEDecode", samples=samples, vae=vae), filename_prefix="long")


def _read_only(server: ComfyServer, draw: random.Random) -> Queued:
    """Inspect and Convert, which encode nothing."""
    graph = Graph()
    _, clip, _ = add_checkpoint(graph)
    source = draw.choice(("comfy", "a1111", "compel"))
    choices = {
        "text": draw_text(draw, source, draw.randint(2, 90)),
        "from": source,
        "to": draw.choice(("a1111", "compel")),
    }
    converted = server.add_ours(graph, "WeightedCLIPConvert", **choices)
    inspected = server.add_ours(graph, "WeightedCLIPInspect", text=converted, clip=clip, syntax=choices["to"])
    graph.add("PreviewImage", images=inspected)
    _show(graph, inspected[2])
    return Queued(graph, "done", "Inspect and Convert")


def _faulty(server: ComfyServer, draw: random.Random) -> Queued:
    """Possible mistakes of a user, and an error in the host's encoder."""
    graph = Graph()
    _, clip, _ = add_checkpoint(graph)
    faults: dict[str, Callable[[], tuple[End, str, Node]]] = {
        "an option that does not exist": lambda: (
            "refused",
            "value_not_in_list",
            server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a cat", scheme="nonsense"),
        ),
        "weights of AND that sum to nothing": lambda: (
            "failed",
            "The weights of the parts between ANDs sum to 0",
            server.add_ours(graph, "WeightedCLIPA1111Encode", clip=clip, text="a cat AND a dog :-1"),
        ),
        "a filler of two tokens": lambda: (
            "failed",
            "the filler must be exactly one token",
            server.add_ours(graph, "WeightedCLIPMaskedBlend", clip=clip, text="a (cat:0)", filler="two words"),
        ),
        "SDXL's node on another CLIP": lambda: (
            "failed",
            "no clip_g: it is not SDXL's",
            server.add_ours(graph, "WeightedCLIPSDXLEncode", clip=clip, text_g="a cat", text_l="a cat"),
        ),
        "an error in a layer": lambda: (
            "failed",
            MESSAGE,
            server.add_ours(graph, "WeightedCLIPMaskedBlend", clip=_struck(graph, clip, 0.0), text="a (cat:0.5)"),
        ),
    }
    name = draw.choice(list(faults))
    end, message, node = faults[name]()
    server.probe(graph, node)
    return Queued(graph, end, name, message=message)


def _interrupted(server: ComfyServer, draw: random.Random) -> Queued:
    """A workflow that takes long enough to be interrupted while a node of ours encodes."""
    graph = Graph()
    _, clip, _ = add_checkpoint(graph)
    node = draw.choice((_text, _blend, _mask))
    slow = graph.add("WeightedCLIPTestFaultyClip", clip=clip, seconds=2.0, error="")
    server.probe(graph, node(server, graph, draw, slow, f"a (cat:0.5) {draw_text(draw, 'comfy', 90)}"))
    return Queued(graph, "interrupted", "interrupted")


def _struck(graph: Graph, clip: Any, seconds: float) -> Node:
    return graph.add("WeightedCLIPTestFaultyClip", clip=clip, seconds=seconds, error=MESSAGE)


def _show(graph: Graph, text: Any) -> None:
    graph.add("WeightedCLIPTestShowText", text=text)
