"""Names in prompts in a real ComfyUI: A1111's LoRA tags and embeddings, compared with stock nodes that load them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from .comfy_server import LORA, TEXT_ENCODER, ComfyServer, Graph, add_checkpoint, add_picture, with_clip
from .parity import Figures

pytestmark = pytest.mark.host

A1111 = "WeightedCLIPA1111Encode"
NAME = LORA.removesuffix(".safetensors")
CLOSE = 1e-5


TAGGED = {
    f"<lora:{NAME}:0.8>": ((0.8, 0.8),),
    f"<lora:{NAME}>": ((1.0, 1.0),),
    f"<lora:{NAME}:0.5:-0.3>": ((0.5, -0.3),),
    f"<lora:{NAME}:0.8> on a mat <lyco:{NAME}:te=-0.3:unet=0>": ((0.8, 0.8), (-0.3, 0.0)),
}
"""Ends of a prompt, and the strengths for CLIP and model of the stock nodes that do the same."""


@pytest.mark.parametrize("tags", TAGGED)
def test_tags_load_what_stock_loaders_load(server: ComfyServer, figures: Figures, tags: str) -> None:
    graph = Graph()
    model, clip, _ = add_checkpoint(graph)
    ours = graph.add("WeightedCLIPLoadPromptLoras", model=model, clip=clip, text=f"a (red:1.3) cat {tags}")
    patched: tuple[Any, Any] = model, clip
    for for_clip, for_model in TAGGED[tags]:
        strengths = {"strength_model": for_model, "strength_clip": for_clip}
        loader = graph.add("LoraLoader", model=patched[0], clip=patched[1], lora_name=LORA, **strengths)
        patched = loader[0], loader[1]
    text = "a (red:1.3) cat  on a mat " if "on a mat" in tags else "a (red:1.3) cat "
    expected, measured, plain = server.conditionings(
        graph,
        graph.add("CLIPTextEncode", clip=patched[1], text=text),
        graph.add("CLIPTextEncode", clip=ours[1], text=ours[2]),
        graph.add("CLIPTextEncode", clip=clip, text=text),
    )
    figures.add("LoRA tags and stock Text Encode, with stock LoRA loaders", measured.difference(expected))
    assert measured == expected
    assert measured != plain


def test_a_lora_that_is_not_there_is_named_and_the_image_is_drawn(server: ComfyServer) -> None:
    graph = Graph()
    model, clip, _ = add_checkpoint(graph)
    ours = graph.add("WeightedCLIPLoadPromptLoras", model=model, clip=clip, text=f"a <lora:gone:0.8> <lora:{NAME}>cat")
    graph.add("WeightedCLIPTestShowText", text=ours[3])
    saved = add_picture(graph, graph.add("CLIPTextEncode", clip=ours[1], text=ours[2]))
    result = server.run(graph)
    (problem,) = result.outputs[ours.id]["text"]
    assert "“gone”" in problem
    (report,) = (out["shown"][0] for out in result.outputs.values() if "shown" in out)
    assert problem in report
    assert f"{LORA}: model 1, CLIP 1" in report
    assert server.picture(result, saved).std() > 10


def test_a_tag_in_an_a1111_prompt_is_listed_and_not_encoded(server: ComfyServer, figures: Figures) -> None:
    graph, clip = with_clip()
    tagged = server.add_ours(graph, A1111, clip=clip, text=f"a (red:1.3) <lora:{NAME}:0.8>cat on a [mat]")
    bare = server.add_ours(graph, A1111, clip=clip, text="a (red:1.3) cat on a [mat]")
    probes = [server.probe(graph, node) for node in (bare, tagged)]
    result = server.run(graph)
    expected, measured = (server.conditioning(result, probe) for probe in probes)
    figures.add("A1111/Forge Prompt with a LoRA tag, with the prompt without it", measured.difference(expected))
    assert measured == expected
    (problem,) = result.outputs[tagged.id]["text"]
    assert f"“{NAME}” at 0.8" in problem
    assert not result.outputs[bare.id]["text"]


BARE = {"seeded-eight": 8, "SEEDED-one": 1, "nested-two": 2}
"""Embeddings as written in a prompt, to the number of their vectors; the last is in a sub-folder."""


@pytest.fixture(scope="module")
def nested_embedding(server: ComfyServer) -> None:
    folder = server.base / "models" / "embeddings" / "styles" / "more"
    folder.mkdir(parents=True, exist_ok=True)
    vectors = 0.05 * torch.randn(2, 768, generator=torch.Generator().manual_seed(9))
    save_file({"clip_l": vectors}, folder / "nested-two.safetensors")


@pytest.mark.usefixtures("nested_embedding")
@pytest.mark.parametrize("name", BARE)
def test_a_bare_name_is_the_embedding(server: ComfyServer, figures: Figures, name: str) -> None:
    graph, clip = with_clip()
    native = server.add_ours(graph, "WeightedCLIPLoad", file=f"text_encoders/{TEXT_ENCODER}")
    text = f"a ({name}:1.2) cat and {name}"
    stored = {"seeded-eight": "seeded-eight", "SEEDED-one": "seeded-one", "nested-two": "styles/more/nested-two"}[name]
    ours, of_native, ignored, stock, words = server.conditionings(
        graph,
        server.add_ours(graph, A1111, clip=clip, text=text, emphasis="No norm"),
        server.add_ours(graph, A1111, clip=native, text=text, emphasis="No norm"),
        server.add_ours(graph, A1111, clip=clip, text=text, emphasis="Ignore"),
        graph.add("CLIPTextEncode", clip=clip, text=f"a embedding:{stored} cat and embedding:{stored}"),
        graph.add("CLIPTextEncode", clip=clip, text=f"a {name} cat and {name}"),
    )
    difference = ours.difference(of_native)
    figures.add("Bare embedding names, with the native encoder", difference, required="at most 1e-5")
    assert difference <= CLOSE
    figures.add("Bare embedding names, weights ignored, with stock embedding:name", ignored.difference(stock))
    assert ignored.difference(stock) == 0
    assert stock != words
