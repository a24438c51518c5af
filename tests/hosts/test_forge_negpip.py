"""NegPip in a real Forge, compared with the extension sd-webui-negpip, which is in --hosts as well."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.workshop.find_hosts import Host

from .parity import Figures
from .webui_server import Generation, WebUIServer, running_webui

pytestmark = [pytest.mark.host, pytest.mark.slow]

EXTENSION = "sd-webui-negpip"
THEIRS = {"alwayson_scripts": {"negpip": {"args": [True]}}}
"""Their script, switched on."""
OURS = (True, "negpip_apart")
CLOSE = 1e-5
"""Largest difference of what is sampled, over the largest number."""
APART = "Scheme negpip_apart, latents of img2img, with sd-webui-negpip, relative to the largest"
PROMPTS = {
    "one term": ("a (red:1.3) cat on a mat, (oil painting:-1.2)", "blurry"),
    "two terms": ("a cat (dog:-1) on a [mat] (old, worn out rug:-0.7) in snow", "blurry"),
    "in both": ("a red cat, (oil painting:-1.3)", "(ugly:1.2), (sharp, bright:-0.8)"),
    "in the negative": ("a red cat on a mat", "blurry, (sharp:-1)"),
    "long": ("a photo of a (red:1.2) cat on a mat, " * 11 + "(oil painting:-1)", "blurry"),
    "nested": ("a ((red:1.2) cat:-0.9) and a (dog (big):-0.5)", "(low quality:-0.5)"),
}


@pytest.fixture(scope="module")
def webui(
    webui_host: Host,
    webui_models: Path,
    webui_figures: Figures,
    other_pack: Callable[[str, Figures], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WebUIServer]:
    """A running Forge with our extension and theirs."""
    if webui_host.kind != "Forge":
        pytest.skip("compared in Forge")
    theirs = other_pack(EXTENSION, webui_figures)
    base = tmp_path_factory.mktemp("negpip") / "data"
    base.mkdir()
    (base / "ui-config.json").write_text("{}")  # theirs reads it before the host has written it
    with running_webui(webui_host, webui_models, base, with_ours=True, extensions={EXTENSION: theirs}) as server:
        server.txt2img("a cat")  # in the first generation theirs gives other numbers than ever after
        yield server


@pytest.fixture(scope="module")
def picture() -> str:
    """A picture to start from, as the API takes one."""
    noise = np.random.default_rng(3).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(noise).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


@pytest.fixture(scope="module")
def changed(webui: WebUIServer, picture: str) -> Callable[..., Generation]:
    """A picture changed in half of its steps: their terms act in all but the last of all steps."""

    def make(prompt: str, negative: str, **fields: Any) -> Generation:
        half = {"init_images": [picture], "denoising_strength": 0.5, "steps": 6}
        return webui.txt2img(prompt, negative_prompt=negative, probe=True, **half, **fields)

    return make


def samples(generation: Generation) -> torch.Tensor:
    assert generation.seen is not None and generation.seen.samples is not None
    return generation.seen.samples


def rel(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("name", PROMPTS)
def test_negpip_apart_samples_what_theirs_samples(
    changed: Callable[..., Generation], webui_figures: Figures, name: str
) -> None:
    theirs, ours, without = (changed(*PROMPTS[name], **fields) for fields in (THEIRS, {"script": OURS}, {}))
    difference = rel(samples(ours), samples(theirs))
    webui_figures.add(APART, difference, required="at most 1e-5")
    assert difference <= CLOSE
    assert rel(samples(without), samples(theirs)) > 100 * CLOSE


def test_in_the_last_step_theirs_does_not_act_and_ours_does(webui: WebUIServer) -> None:
    prompt, negative = PROMPTS["one term"]
    left = prompt.replace("(oil painting:-1.2)", "")
    one = {"negative_prompt": negative, "probe": True, "steps": 1}
    theirs, ours = webui.txt2img(prompt, **one, **THEIRS), webui.txt2img(prompt, **one, script=OURS)
    without = webui.txt2img(left, **one)
    assert rel(samples(theirs), samples(without)) <= CLOSE
    assert rel(samples(ours), samples(without)) > 100 * CLOSE


def test_beside_theirs_it_is_theirs_that_acts_and_ours_says_so(changed: Callable[..., Generation]) -> None:
    prompt, negative = PROMPTS["in both"]
    both, theirs = changed(prompt, negative, **THEIRS, script=OURS), changed(prompt, negative, **THEIRS)
    assert rel(samples(both), samples(theirs)) <= CLOSE
    assert both.seen is not None
    assert "NegPiP is active" in both.seen.comments


def test_switched_off_again_all_is_as_before(changed: Callable[..., Generation]) -> None:
    prompt, negative = PROMPTS["one term"]
    before = changed(prompt, negative)
    for scheme in ("negpip", "negpip_apart"):
        assert rel(samples(changed(prompt, negative, script=(True, scheme))), samples(before)) > 100 * CLOSE
    assert changed(prompt, negative).equals(before)
