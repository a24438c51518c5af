"""Results of ComfyUI's own nodes, which our pack must not change."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .comfy_server import LORA, ComfyServer, Conditioning, Graph, add_checkpoint, add_picture

TEXTS = (
    "a photo of a (cat:1.3) on a (mat:0.4)",
    "",
    "((nested)) and [square] brackets, " * 20,
)


@dataclass(frozen=True)
class StockOutputs:
    """Outputs of a run of stock nodes."""

    conditionings: list[Conditioning]
    picture: np.ndarray
    cached: frozenset[str]
    """Nodes that were not run again, among `encoders`."""


def run_stock(server: ComfyServer, number: int) -> StockOutputs:
    """Encode and sample with stock nodes only: plain, with clip skip, and with a LoRA.

    Args:
        server: The server.
        number: Another one makes ComfyUI run everything after the loader again.
    """
    graph = Graph()
    model, clip, _ = add_checkpoint(graph, number=number)
    clips = [
        clip,
        graph.add("CLIPSetLastLayer", clip=clip, stop_at_clip_layer=-2),
        graph.add("LoraLoader", model=model, clip=clip, lora_name=LORA, strength_model=0.0, strength_clip=0.8)[1],
    ]
    encoders = [graph.add("CLIPTextEncode", clip=clip, text=text) for clip in clips for text in TEXTS]
    probes = [server.probe(graph, encoder) for encoder in encoders]
    picture = add_picture(graph, encoders[0], number=number)
    result = server.run(graph)
    return StockOutputs(
        conditionings=[server.conditioning(result, probe) for probe in probes],
        picture=server.picture(result, picture),
        cached=result.cached & {encoder.id for encoder in encoders},
    )
