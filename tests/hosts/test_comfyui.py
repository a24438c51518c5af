"""Our nodes in a real ComfyUI, through /prompt: they sample, and with everything on comfy they equal the stock node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from weighted_clip.workshop.find_hosts import Host

from .comfy_server import (
    CHECKPOINT,
    LORA,
    TEXT_ENCODER,
    ComfyServer,
    Conditioning,
    Graph,
    Node,
    add_checkpoint,
    add_picture,
    add_scheduled_lora,
    assert_is_picture,
    pixel_difference,
    running_server,
    with_clip,
)
from .parity import Figures
from .stock import StockOutputs, run_stock

pytestmark = pytest.mark.host

TEXT = "a photo of a (red:1.3) cat on a (mat:0.4), oil painting"

PROMPTS = {
    "plain": "a photo of a cat",
    "empty": "",
    "spaces": "  \n\t ",
    "weights": "a (red:1.3) cat on a (mat:0.4)",
    "nested": "a ((very (red:1.5)) small) (cat (on a:0.7) mat:1.2)",
    "escapes": r"a \(literal\) (cat \(tabby\):1.2), \\( back\slash \[x\]",
    "negative": "a cat, (dog:-0.5), (bird:0), (fish:-2)",
    "unclosed": "a (red cat on (a mat:1.3",
    "unopened": "a cat) on a (mat)) and) so on",
    "odd weights": "(a:b:1.2) (b:) (c:abc) (d: 0.8 ) (e:1e-1) (f:1_0) (:1.5) () (g:+.5) (h:-0)",
    "square": "[cat] BREAK dog AND bird [a:b:0.5] {x|y} <lora:a:1> __wild__",
    "unicode": "café 東京 (🐈‍⬛:1.4) ÅÉ ﬁ ½ ① İstanbul don't l'été",
    "special": "<|startoftext|>cat<|endoftext|> dog (<|endoftext|>:1.3)",
    "missing embedding": "a embedding:missing cat, (embedding:gone:1.2), embedding:lost",
    "embedding": "a embedding:seeded-embedding cat, (embedding:seeded-embedding:1.3), embedding:seeded-embedding, dog",
    "embedding of 1 vector": "a embedding:seeded-one cat, (embedding:seeded-one:0.6), embedding:seeded-one.safetensors",
    "embedding of 8 vectors": "a (embedding:seeded-eight:1.3) cat, embedding:seeded-eight, (embedding:seeded-one:-0.5)",
    "embedding across chunks": "cat " * 71 + "(embedding:seeded-eight:1.2) dog, embedding:seeded-one",
    "75 tokens": "cat " * 75,
    "3 chunks": "a photo of a cat on a mat, oil painting, " * 18,
    "3 chunks weighted": "a (photo:1.2) of a (cat (on a:0.6) mat:0.8), oil painting, " * 18,
    "long words": "cat " * 70 + "(pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism:1.3) dog",
}
CHUNKS = {"embedding across chunks": 2, "3 chunks": 3, "3 chunks weighted": 3, "long words": 2}
SAMPLED = ("weights", "3 chunks weighted", "embedding")


def stock_and_ours(
    server: ComfyServer, graph: Graph, clip: Any, text: str
) -> tuple[tuple[Node, Node], tuple[Node, Node]]:
    """Encode a text with the stock node and with ours on its defaults: both nodes, and a probe on each."""
    nodes = (
        graph.add("CLIPTextEncode", clip=clip, text=text),
        server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=text),
    )
    return nodes, (server.probe(graph, nodes[0]), server.probe(graph, nodes[1]))


def encode(server: ComfyServer, class_type: str, text: str = TEXT, *, clip: Any = None, **choices: Any) -> Conditioning:
    """Result of a node for a text, on the checkpoint's CLIP."""
    graph, checkpoint_clip = with_clip()
    if class_type != "CLIPTextEncode":
        node = server.add_ours(graph, class_type, clip=clip or checkpoint_clip, text=text, **choices)
    else:
        node = graph.add(class_type, clip=clip or checkpoint_clip, text=text)
    return server.conditionings(graph, node)[0]


def native(graph: Graph, server: ComfyServer, file: str, clip_skip: int = 1) -> Node:
    return server.add_ours(graph, "WeightedCLIPLoad", file=file, clip_skip=clip_skip)


def test_the_server_is_the_host_that_was_found(server: ComfyServer, host: Host, figures: Figures) -> None:
    system = server.get("/system_stats")["system"]
    assert system["comfyui_version"] == host.version
    figures.about["torch"] = system["pytorch_version"]
    figures.about["Python"] = system["python_version"].split()[0]
    figures.about["system"] = str(system["os"])


def test_all_our_nodes_are_loaded_from_the_folder_with_the_awkward_name(server: ComfyServer) -> None:
    known = server.get("/object_info")
    ours = {name: info for name, info in known.items() if info["category"].partition("/")[0] == "Weighted CLIP"}
    assert {
        "WeightedCLIPTextEncode",
        "WeightedCLIPA1111Encode",
        "WeightedCLIPMaskedBlend",
        "WeightedCLIPInspect",
        "WeightedCLIPLoad",
    } <= ours.keys()
    assert {info["python_module"] for info in ours.values()} == {"custom_nodes.ComfyUI weighted-clip"}
    assert all(info["display_name"] != name for name, info in ours.items())


def test_the_defaults_are_those_that_equal_stock(server: ComfyServer) -> None:
    graph = Graph()
    node = server.add_ours(graph, "WeightedCLIPTextEncode", clip=["0", 1], text="")
    inputs = graph.nodes[node.id]["inputs"]
    assert (inputs["syntax"], inputs["scheme"], inputs["chunking"]) == ("comfy", "comfy", "as syntax")


@pytest.mark.parametrize("name", PROMPTS)
def test_conditioning_equals_stock(
    server: ComfyServer, stock_before: StockOutputs, figures: Figures, name: str
) -> None:
    graph, clip = with_clip()
    nodes = [
        graph.add("CLIPTextEncode", clip=clip, text=PROMPTS[name]),
        server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=PROMPTS[name]),
        server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=PROMPTS[name], chunking="comfy segment"),
    ]
    expected, *measured = server.conditionings(graph, *nodes)
    for ours in measured:
        figures.add("Conditioning, everything on comfy, with stock", ours.difference(expected))
        assert ours == expected
    assert expected.is_finite()
    assert expected.hidden.shape == (1, 77 * CHUNKS.get(name, 1), 768)
    empty = stock_before.conditionings[1].hidden
    assert torch.equal(expected.hidden, empty) == (name in ("empty", "spaces"))


@pytest.mark.parametrize("name", SAMPLED)
def test_pixels_equal_stock(server: ComfyServer, figures: Figures, name: str) -> None:
    graph, clip = with_clip()
    nodes, _ = stock_and_ours(server, graph, clip, PROMPTS[name])
    saved = [add_picture(graph, node) for node in nodes]
    result = server.run(graph)
    compare_pictures(figures, "Pixels, everything on comfy, with stock", server, result, saved)


def compare_pictures(figures: Figures, subject: str, server: ComfyServer, result: Any, saved: list[Node]) -> None:
    expected, measured = (server.picture(result, node) for node in saved)
    figures.add(subject, pixel_difference(expected, measured), required="equal, byte for byte")
    assert np.array_equal(expected, measured)
    assert_is_picture(measured)


LORAS = (1.0, 0.35, -0.7)
LAYERS = (-1, -2, -5)


@pytest.mark.parametrize("strength", LORAS)
def test_a_lora_changes_ours_exactly_as_stock(server: ComfyServer, figures: Figures, strength: float) -> None:
    def patched(graph: Graph, model: Any, clip: Any) -> Any:
        return add_lora(graph, model, clip, strength)

    compare_patched(server, figures, f"CLIP LoRA at {', '.join(map(str, LORAS))}, with stock", patched)


@pytest.mark.parametrize("layer", LAYERS)
def test_clip_set_last_layer_changes_ours_exactly_as_stock(server: ComfyServer, figures: Figures, layer: int) -> None:
    def patched(graph: Graph, model: Any, clip: Any) -> Any:
        return graph.add("CLIPSetLastLayer", clip=clip, stop_at_clip_layer=layer)

    subject = f"CLIP Set Last Layer at {', '.join(map(str, LAYERS))}, with stock"
    compare_patched(server, figures, subject, patched, changes=layer != -1)


@pytest.mark.parametrize("lora_first", [True, False])
def test_lora_and_last_layer_together_change_ours_exactly_as_stock(
    server: ComfyServer, figures: Figures, lora_first: bool
) -> None:
    def patched(graph: Graph, model: Any, clip: Any) -> Any:
        if lora_first:
            clip = add_lora(graph, model, clip, 0.8)
        clip = graph.add("CLIPSetLastLayer", clip=clip, stop_at_clip_layer=-2)
        return clip if lora_first else add_lora(graph, model, clip, 0.8)

    compare_patched(server, figures, "LoRA and last layer, in both orders, with stock", patched)


def add_lora(graph: Graph, model: Any, clip: Any, strength: float) -> Any:
    return graph.add("LoraLoader", model=model, clip=clip, lora_name=LORA, strength_model=0.0, strength_clip=strength)[
        1
    ]


def compare_patched(server: ComfyServer, figures: Figures, subject: str, patch: Any, *, changes: bool = True) -> None:
    """Compare ours with stock on a changed CLIP, for two texts, and see that the change is one."""
    for text in (TEXT, PROMPTS["3 chunks weighted"]):
        graph = Graph()
        model, clip, _ = add_checkpoint(graph)
        _, probes = stock_and_ours(server, graph, patch(graph, model, clip), text)
        plain = server.probe(graph, graph.add("CLIPTextEncode", clip=clip, text=text))
        result = server.run(graph)
        expected, measured = (server.conditioning(result, probe) for probe in probes)
        figures.add(subject, measured.difference(expected))
        assert measured == expected
        assert (measured != server.conditioning(result, plain)) == changes


def test_a_scheduled_lora_hook_gives_the_same_list_of_entries_as_stock(server: ComfyServer, figures: Figures) -> None:
    graph, clip = with_clip()
    hooked = add_scheduled_lora(graph, clip, {0.0: 0.2, 0.3: 1.0, 0.7: -0.5})
    _, probes = stock_and_ours(server, graph, hooked, TEXT)
    _, plain_probes = stock_and_ours(server, graph, clip, TEXT)
    result = server.run(graph)
    expected, measured = (server.conditioning(result, probe) for probe in probes)
    figures.add("LoRA hook with three keyframes: entries of the list, with stock", measured.difference(expected))
    assert measured == expected
    assert [entry["clip_start_percent"] for entry in measured.others] == [0.0, 0.3, 0.7]
    assert all("hooks" in entry for entry in measured.others)
    entries = [measured.tensors[f"{index}.hidden"] for index in range(3)]
    assert not torch.equal(entries[0], entries[1])
    assert not torch.equal(entries[1], entries[2])
    # and after the hooked CLIP, the plain one is plain again
    expected, measured = (server.conditioning(result, probe) for probe in plain_probes)
    assert measured == expected
    assert not torch.equal(measured.hidden, entries[0])


ENCODE_NODES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "text encode": ("WeightedCLIPTextEncode", {}, False),
    "text encode, all else": (
        "WeightedCLIPTextEncode",
        {"syntax": "a1111", "scheme": "masked_blend", "normalization": "length+mean", "padding": "mask"},
        False,
    ),
    "a1111": ("WeightedCLIPA1111Encode", {}, False),
    "masked blend": ("WeightedCLIPMaskedBlend", {}, False),
    "text encode, native": ("WeightedCLIPTextEncode", {}, True),
    "a1111, native": ("WeightedCLIPA1111Encode", {}, True),
    "masked blend, native": ("WeightedCLIPMaskedBlend", {}, True),
}


@pytest.mark.parametrize("case", ENCODE_NODES)
def test_every_encode_node_samples(server: ComfyServer, stock_before: StockOutputs, case: str) -> None:
    class_type, choices, is_native = ENCODE_NODES[case]
    graph, clip = with_clip()
    if is_native:
        clip = native(graph, server, f"text_encoders/{TEXT_ENCODER}")
    node = server.add_ours(graph, class_type, clip=clip, text=TEXT, **choices)
    saved = add_picture(graph, node)
    result = server.run(graph)
    picture = server.picture(result, saved)
    assert_is_picture(picture)
    assert not np.array_equal(picture, stock_before.picture)
    (image,) = result.outputs[saved.id]["images"]
    assert Path(server.base, "output", image["subfolder"], image["filename"]).is_file()


def scheme_names(server: ComfyServer) -> list[str]:
    return server.inputs("WeightedCLIPTextEncode")["scheme"][0]


def test_every_scheme_leaves_a_prompt_without_weights_as_stock_has_it(server: ComfyServer, figures: Figures) -> None:
    names = [name for name in scheme_names(server) if name != "lerp_last"]  # it has no padding
    graph, clip = with_clip()
    text = PROMPTS["plain"]
    nodes = [server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=text, scheme=name) for name in names]
    expected, *others = server.conditionings(graph, graph.add("CLIPTextEncode", clip=clip, text=text), *nodes)
    for measured in others:
        figures.add("Every scheme, prompt without weights, with stock", measured.difference(expected))
        assert measured == expected


def test_problems_of_a_prompt_reach_the_history(server: ComfyServer) -> None:
    graph, clip = with_clip()
    broken = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a (red cat")
    whole = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a (red) cat")
    server.probe(graph, broken)
    server.probe(graph, whole)
    graph.add("WeightedCLIPTestShowText", text=broken[1])
    result = server.run(graph)
    (problem,) = result.outputs[broken.id]["text"]
    assert "(" in problem
    assert result.outputs[whole.id].get("text", []) == []
    (report,) = (out["shown"][0] for out in result.outputs.values() if "shown" in out)
    assert problem in report


def test_a_value_that_is_not_in_the_menu_is_refused(server: ComfyServer) -> None:
    graph, clip = with_clip()
    node = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a cat", scheme="nonsense")
    server.probe(graph, node)
    error = server.failure(graph)
    assert error.status == 400
    (error,) = error.details["node_errors"][node.id]["errors"]
    assert error["type"] == "value_not_in_list"
    assert error["extra_info"]["input_name"] == "scheme"


def test_a_link_of_another_type_is_refused(server: ComfyServer) -> None:
    graph = Graph()
    model, _, _ = add_checkpoint(graph)
    node = server.add_ours(graph, "WeightedCLIPTextEncode", clip=model, text="a cat")
    server.probe(graph, node)
    error = server.failure(graph)
    assert error.status == 400
    assert error.details["node_errors"][node.id]["errors"][0]["type"] == "return_type_mismatch"


def assert_same_stock(figures: Figures, subject: str, measured: StockOutputs, expected: StockOutputs) -> None:
    """Compare two runs of the stock nodes, of which neither took its outputs from ComfyUI's memory."""
    assert not measured.cached
    for one, other in zip(measured.conditionings, expected.conditionings, strict=True):
        figures.add(f"{subject}, conditioning", one.difference(other))
        assert one == other
    pixels = pixel_difference(measured.picture, expected.picture)
    figures.add(f"{subject}, pixels", pixels, required="equal, byte for byte")
    assert np.array_equal(measured.picture, expected.picture)


def test_stock_is_the_same_after_our_nodes_ran(
    server: ComfyServer, stock_before: StockOutputs, figures: Figures
) -> None:
    graph = Graph()
    model, clip, _ = add_checkpoint(graph, number=2)
    for either in (clip, add_lora(graph, model, clip, 0.8), native(graph, server, f"checkpoints/{CHECKPOINT}")):
        for class_type in ("WeightedCLIPTextEncode", "WeightedCLIPA1111Encode", "WeightedCLIPMaskedBlend"):
            server.probe(graph, server.add_ours(graph, class_type, clip=either, text=TEXT, padding="mask"))
    server.run(graph)
    assert_same_stock(figures, "Stock after our nodes ran, with before", run_stock(server, number=3), stock_before)


def test_stock_is_the_same_without_our_pack(
    host: Host, models: Path, tmp_path: Path, stock_before: StockOutputs, figures: Figures
) -> None:
    with running_server(host, models, tmp_path / "comfyui", with_pack=False) as bare:
        assert "WeightedCLIP" not in json.dumps([name for name in bare.get("/object_info") if "Test" not in name])
        alone = run_stock(bare, number=0)
    assert_same_stock(figures, "Stock with our pack absent, with present", alone, stock_before)
