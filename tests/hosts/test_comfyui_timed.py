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
    add_checkpoint,
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


def test_a_request_from_before_timed_prompts_still_runs(server: ComfyServer) -> None:
    graph, clip = with_clip()
    node = server.add_ours(graph, A1111, clip=clip, text="")
    required = {"clip", "text", "emphasis", "comma_backtrack", "padding"}
    assert graph.nodes[node.id]["inputs"].keys() == required
    for text in ("a (cat:1.2)", "a [cat:dog:0.5]"):
        told = conditioning(server, text, steps=20, counter=WEBUI)
        assert conditioning(server, text) == told
        assert len(told.others) == (1 if "(" in text else 2)
