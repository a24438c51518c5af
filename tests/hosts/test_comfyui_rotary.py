"""A text encoder with rotary positions in a real ComfyUI: its own loader refuses the file, ours reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import (
    hugging_face_tensors,
    load_text_models,
    position_metadata,
    seeded_text_model,
)
from weighted_clip.encoder.models.config import CLIP_L

from .comfy_server import ComfyServer, Graph

pytestmark = [pytest.mark.host, pytest.mark.slow]

NAME = "rotary.safetensors"


@pytest.fixture(scope="module")
def file(server: ComfyServer) -> Iterator[str]:
    model = seeded_text_model(replace(CLIP_L, positions="rotary"))
    path = server.base / "models" / "text_encoders" / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(hugging_face_tensors(model), path, metadata=position_metadata(model.config))
    yield NAME
    path.unlink()


def test_the_stock_loader_refuses_the_file_by_its_table_of_positions(server: ComfyServer, file: str) -> None:
    graph = Graph()
    clip = graph.add("CLIPLoader", clip_name=file, type="stable_diffusion")
    server.probe(graph, graph.add("CLIPTextEncode", clip=clip, text="a red cat"))
    error = server.failure(graph)
    assert error.details["node_type"] == "CLIPLoader"
    message = error.details["exception_message"]
    assert "size mismatch for text_model.embeddings.position_embedding.weight" in message
    assert "torch.Size([77, 0])" in message


def test_our_loader_reads_it(server: ComfyServer, file: str) -> None:
    graph = Graph()
    clip = server.add_ours(graph, "WeightedCLIPLoad", file=f"text_encoders/{file}", clip_skip=1)
    [found] = server.conditionings(graph, server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a red cat"))
    [model] = load_text_models(server.base / "models" / "text_encoders" / file)[0].values()
    ids = torch.tensor([[49406, 320, 736, 2368, *[49407] * 73]])
    torch.testing.assert_close(found.hidden, model(ids).hidden, atol=1e-5, rtol=0)
