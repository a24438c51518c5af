"""Phrases placed by our script in a real Forge, through its API and on its page; numbers are in forge_places.py."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.workshop.find_hosts import Host

from ..web.chromium import running_chromium
from .test_webui_axes import plotted
from .webui_server import APIError, Generation, WebUIServer, pixels_of

pytestmark = [pytest.mark.host, pytest.mark.slow]

TEXT = "a red cat and a blue dog on a mat"
BOX = "red cat: left half, 0-1 steps\nblue dog: 0.5 1, 0 1 ~0.1, outside 0.2"
HIRES = {
    **{"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "hr_second_pass_steps": 2},
    **{"denoising_strength": 0.5, "hr_cfg": 7.0, "hr_additional_modules": ["Use same choices"]},
}


@pytest.fixture(autouse=True)
def _forge(webui_host: Host) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("Places works in Forge")


def script(places: str) -> list[Any]:
    return list({**vars(Settings()), "enabled": True, "places": places}.values())


@pytest.fixture(scope="module")
def make(webui: WebUIServer) -> Callable[..., Generation]:
    def make(places: str | None = None, prompt: str = TEXT, **fields: Any) -> Generation:
        return webui.txt2img(prompt, script=() if places is None else script(places), probe=True, **fields)

    return make


def pictured(pixels: np.ndarray) -> str:
    """A picture as the API takes one."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def test_an_empty_box_is_the_host_and_nothing_is_left(make: Callable[..., Generation]) -> None:
    stock = make()
    assert make("").equals(stock)
    placed = make(BOX)
    assert not placed.equals(stock)
    assert make("").equals(stock)
    assert make().equals(stock)
    assert placed.seen is not None
    assert "“red cat: left half, 0-1 steps” acted in 1 of 2 steps." in placed.seen.comments


def test_parameters_come_back_when_pasted(webui: WebUIServer, make: Callable[..., Generation]) -> None:
    made = make(BOX)
    assert made.info["extra_generation_params"]["Weighted CLIP places"] == BOX
    pasted = webui.txt2img(TEXT, infotext=made.infotext, styles=[], hr_additional_modules=["Use same choices"])
    assert pasted.equals(made)
    assert pasted.infotext == made.infotext


def test_hires_fix_has_the_same_places_at_its_size(make: Callable[..., Generation]) -> None:
    """Pixels are those of the width before."""
    parts, pixels, plain = (make(places, **HIRES) for places in ("red cat: 0 0.5, 0 1", "red cat: 0 32, 0 64", ""))
    assert parts.equals(pixels)
    assert not parts.equals(plain)
    assert parts.seen is not None
    told = "“red cat: 0 0.5, 0 1” acted in 2 of 2 steps and in 2 of 2 steps of hires. fix."
    assert told in parts.seen.comments
    early = make("red cat: left, 0-0.1", **HIRES)
    assert early.seen is not None
    assert "in 0 of 2 steps of hires. fix." in early.seen.comments


def test_every_image_of_a_run_is_the_one_made_alone(make: Callable[..., Generation]) -> None:
    alone = [make(BOX, seed=seed).pictures[0] for seed in (1, 2)]
    for one, other in zip(make(BOX, n_iter=2).pictures[-2:], alone, strict=True):
        assert np.array_equal(one, other)
    for one, other in zip(make(BOX, batch_size=2).pictures[-2:], alone, strict=True):
        assert np.abs(one.astype(int) - other).max() <= 1  # numbers of a larger batch differ in their last bits


def test_only_masked_has_the_places_of_the_whole_picture(make: Callable[..., Generation]) -> None:
    """Pixels of a picture that is wider than what is drawn; Forge's inpainting draws another picture each time."""
    grey, mask = np.full((64, 128, 3), 90, dtype=np.uint8), np.zeros((64, 128, 3), dtype=np.uint8)
    mask[8:56, 90:110] = 255
    fields = {"init_images": [pictured(grey)], "mask": pictured(mask), "mask_blur": 0, "inpaint_full_res_padding": 0}
    made = make("red cat: 100 128, 0 64", **fields, inpaint_full_res=True)
    assert "Inpaint area: Only masked" in made.infotext
    assert made.seen is not None
    assert "acted in 2 of 2 steps" in made.seen.comments
    with pytest.raises(APIError, match="reaches to pixel 128, but the picture is 64 wide"):
        make("red cat: 100 128, 0 64", **fields, inpaint_full_res=False)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ("red cat: left half\nblue dog: upstairs", "“blue dog: upstairs”: The area “upstairs” is not understood"),
        ("a bird: left half", "“a bird” is in none of the prompts"),
        ("red cat: left half, 0.6-0.4", "start must be before end, got 0.6 and 0.4"),
        ("red cat: 0 65, 0 1", "reaches to pixel 65, but the picture is 64 wide"),
    ],
)
def test_what_cannot_be_placed_stops_the_generation(make: Callable[..., Generation], places: str, words: str) -> None:
    stock = make()
    with pytest.raises(APIError) as caught:
        make(places)
    assert caught.value.status == 422
    assert words in caught.value.body
    assert make().equals(stock)


def test_the_axis_draws_what_the_box_draws(webui: WebUIServer, make: Callable[..., Generation]) -> None:
    values = '"red cat: top, 0-0.5", red cat: left half, off'
    answer = plotted(webui, ("Places", values), script=script("blue dog: right half"), prompt=TEXT)
    lines = ["blue dog: right half\nred cat: top, 0-0.5", "blue dog: right half\nred cat: left half", ""]
    for cell, places in zip(map(pixels_of, answer["images"][1:]), lines, strict=True):
        assert np.array_equal(cell, make(places).pictures[0]), places


def test_the_box_is_folded_until_it_is_wanted(webui: WebUIServer, tmp_path: Path) -> None:
    box = "document.querySelector('#tab_txt2img [id$=weighted_clip_places] textarea')"
    with running_chromium(tmp_path, width=1366, height=768) as tab:
        tab.open(webui.address)
        tab.wait("return !!document.querySelector('#txt2img_prompt textarea')?.offsetParent")
        tab.wait("return document.readyState === 'complete' && !!document.querySelector('.input-accordion-checkbox')")
        for name in ("enabled", "advanced"):
            assert not tab.run(f"return !!{box}?.offsetParent")
            tab.run(f"document.querySelector('#script_txt2img_weighted_clip_{name} .label-wrap').click()")
            tab.wait(f"return !!document.querySelector('#script_txt2img_weighted_clip_{name} .label-wrap.open')")
        tab.wait(f"return !!{box}?.offsetParent")
        tab.run(f"const box = {box}; box.scrollIntoView(); box.focus()")
        tab.paste("red cat: left half\nblue dog: right half")
        note = "document.querySelector('#tab_txt2img [id$=weighted_clip_note]').innerText"
        tab.wait(f"return {note}.includes('Places')")
        assert not [line for line in tab.complaints() if "weighted" in str(line).lower()]
