"""Timed prompts in a real ComfyUI, through /prompt: editing, alternation and AND in whole workflows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .comfy_server import (
    ComfyServer,
    Conditioning,
    Graph,
    Node,
    PromptError,
    add_checkpoint,
    add_picture,
    add_scheduled_lora,
    pixel_difference,
    with_clip,
)
from .parity import Figures

pytestmark = pytest.mark.host

A1111 = "WeightedCLIPA1111Encode"
WEBUI, WRITTEN = "as the WebUI counts", "as written"
STEPS = 3
CFG = 30.0
"""High, so that a single word is seen in the pictures of random weights."""


def add_timed_picture(server: ComfyServer, graph: Graph, text: str, counter: str) -> Node:
    """Sample a text in three steps by SIGMAS, also connected to its node, decode and save: the SaveImage node."""
    model, clip, vae = add_checkpoint(graph)
    sigmas = graph.add("BasicScheduler", model=model, scheduler="sgm_uniform", steps=STEPS, denoise=1.0)
    latent = graph.add(
        "SamplerCustom",
        model=model,
        add_noise=True,
        noise_seed=1,
        cfg=CFG,
        positive=server.add_ours(graph, A1111, clip=clip, text=text, counter=counter, sigmas=sigmas),
        negative=graph.add("CLIPTextEncode", clip=clip, text=""),
        sampler=graph.add("KSamplerSelect", sampler_name="euler"),
        sigmas=sigmas,
        latent_image=graph.add("EmptyLatentImage", width=64, height=64, batch_size=1),
    )
    return graph.add("SaveImage", images=graph.add("VAEDecode", samples=latent, vae=vae), filename_prefix="timed")


def conditioning(server: ComfyServer, text: str, **inputs: Any) -> Conditioning:
    """Result of the node for a text."""
    graph, clip = with_clip()
    return server.conditionings(graph, server.add_ours(graph, A1111, clip=clip, text=text, **inputs))[0]


CAT, DOG = "a cat", "oil painting of (dogs:1.4) in the rain"
CHANGING = (CAT, DOG, f"[{CAT}:{DOG}:0.5]", f"[{CAT}|{DOG}]", f"{CAT} AND {DOG}", f"{CAT} AND {DOG}:0.5")
UNCHANGING = {f"[{CAT}:{DOG}:3]": CAT, f"[{CAT}:{DOG}:0]": DOG, f"{CAT} AND {DOG}:0": CAT}
"""Timed prompts that are the same text all the time, to that text."""
LATER = {f"[{CAT}:{DOG}:1]": f"[{CAT}:{DOG}:2]"}
"""A prompt as the WebUI counts, to the one that gives the same as written."""


@pytest.fixture(scope="module")
def pictures(server: ComfyServer) -> dict[tuple[str, str], np.ndarray]:
    """Picture for each text and counter."""
    wanted = [(text, WRITTEN) for text in (*CHANGING, *UNCHANGING, *LATER, *LATER.values())]
    wanted += [(text, WEBUI) for text in LATER]
    graph = Graph()
    saved = {key: add_timed_picture(server, graph, *key) for key in wanted}
    result = server.run(graph)
    return {key: server.picture(result, node) for key, node in saved.items()}


def test_edits_alternations_and_ands_change_the_picture(pictures: dict[tuple[str, str], np.ndarray]) -> None:
    for index, text in enumerate(CHANGING):
        picture = pictures[text, WRITTEN]
        assert picture.std() > 10
        assert all(pixel_difference(picture, pictures[other, WRITTEN]) > 1 for other in CHANGING[:index]), text


@pytest.mark.parametrize("text", UNCHANGING)
def test_a_timed_prompt_of_one_text_gives_its_pixels(
    pictures: dict[tuple[str, str], np.ndarray], figures: Figures, text: str
) -> None:
    one, other = pictures[text, WRITTEN], pictures[UNCHANGING[text], WRITTEN]
    subject = "Pixels of timed prompts that stay the same text, with that text"
    figures.add(subject, pixel_difference(one, other), required="equal, byte for byte")
    assert np.array_equal(one, other)


@pytest.mark.parametrize("text", LATER)
def test_the_webui_counts_one_step_later(
    pictures: dict[tuple[str, str], np.ndarray], figures: Figures, text: str
) -> None:
    one, other = pictures[text, WEBUI], pictures[LATER[text], WRITTEN]
    subject = "Pixels, [from:to:1] as the WebUI counts, with [from:to:2] as written"
    figures.add(subject, pixel_difference(one, other), required="equal, byte for byte")
    assert np.array_equal(one, other)
    assert not np.array_equal(one, pictures[text, WRITTEN])


def test_without_times_ksampler_gives_the_pixels_of_text_encode(server: ComfyServer, figures: Figures) -> None:
    graph, clip = with_clip()
    text = "a photo of a (red:1.3) cat on a [mat], oil painting"
    nodes = (
        server.add_ours(graph, A1111, clip=clip, text=text),
        server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=text, syntax="a1111", scheme="a1111"),
    )
    saved = [add_picture(graph, node) for node in nodes]
    result = server.run(graph)
    one, other = (server.picture(result, node) for node in saved)
    subject = "Pixels, A1111/Forge Prompt without times, with Text Encode on a1111"
    figures.add(subject, pixel_difference(one, other), required="equal, byte for byte")
    assert np.array_equal(one, other)


def test_ksampler_changes_the_text_at_the_steps_that_the_node_was_told(server: ComfyServer) -> None:
    graph, clip = with_clip()
    texts = ("a cat", "a dog", "a [cat:dog:1]")
    saved = [
        add_picture(graph, server.add_ours(graph, A1111, clip=clip, text=text, steps=2, counter=WRITTEN))
        for text in texts
    ]
    result = server.run(graph)
    cat, dog, timed = (server.picture(result, node) for node in saved)
    assert not np.array_equal(timed, cat)
    assert not np.array_equal(timed, dog)


def test_a_request_from_before_timed_prompts_still_runs(server: ComfyServer) -> None:
    graph, clip = with_clip()
    node = server.add_ours(graph, A1111, clip=clip, text="")
    required = {"clip", "text", "emphasis", "comma_backtrack", "padding"}
    assert graph.nodes[node.id]["inputs"].keys() == required
    for text in ("a (cat:1.2)", "a [cat:dog:0.5]"):
        told = conditioning(server, text, steps=20, counter=WEBUI)
        assert conditioning(server, text) == told
        assert len(told.others) == (1 if "(" in text else 2)


@pytest.mark.parametrize("weights", [(1, -1), (0, 0), (0.5, -2)])
def test_weights_of_and_that_cannot_be_averaged_are_explained(
    server: ComfyServer, weights: tuple[float, float]
) -> None:
    with pytest.raises(PromptError) as caught:
        conditioning(server, "a cat:{} AND a dog:{}".format(*weights))
    assert caught.value.status == 200
    assert caught.value.details["exception_type"] == "ValueError"
    message = caught.value.details["exception_message"]
    assert f"sum to {sum(weights):g} ({weights[0]:g} + {weights[1]:g})" in message
    assert "negative prompt" in message


def test_the_report_says_when_each_text_stands(server: ComfyServer) -> None:
    graph = Graph()
    model, clip, _ = add_checkpoint(graph)
    sigmas = graph.add("BasicScheduler", model=model, scheduler="normal", steps=10, denoise=1.0)
    text = "a [cat:dog:0.4] AND mist:0.5"
    shown: list[Node] = []
    for inputs in ({"sigmas": sigmas, "model": model}, {"steps": 10}):
        node = server.add_ours(graph, A1111, clip=clip, text=text, counter=WRITTEN, **inputs)
        shown.append(graph.add("WeightedCLIPTestShowText", text=node[1]))
    result = server.run(graph)
    timed, uniform = (result.outputs[node.id]["shown"][0] for node in shown)
    for line in (
        "steps 1 to 4, AND weight 1: “a cat”",
        "steps 5 to 10, AND weight 1: “a dog”",
        "AND weight 0.5: “ mist”",
    ):
        assert line in timed
        assert line in uniform
    assert "10 steps, timed by sigmas and the model's noise levels" in timed
    assert "10 steps, assumed to be of equal length" in uniform


def test_a_scheduled_lora_hook_gives_an_entry_for_each_text_and_keyframe_that_meet(server: ComfyServer) -> None:
    graph, clip = with_clip()
    hooked = add_scheduled_lora(graph, clip, {0.0: 0.2, 0.6: 1.0})
    node = server.add_ours(graph, A1111, clip=hooked, text="a [cat:dog:1]", steps=2, counter=WRITTEN)
    probe, saved = server.probe(graph, node), add_picture(graph, node)
    result = server.run(graph)
    found = server.conditioning(result, probe)
    times = [(entry["start_percent"], entry["clip_start_percent"]) for entry in found.others]
    (first, second) = sorted({start for start, _ in times})
    assert (first, second) == (0.0, pytest.approx(0.25, abs=1e-6))
    assert times == [(first, 0.0), (second, 0.0), (second, 0.6)]
    assert server.picture(result, saved).std() > 10
