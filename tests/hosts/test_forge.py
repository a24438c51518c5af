"""Our extension in a real WebUI (Forge, A1111), through its API: with the script switched off, and switched on."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.workshop.find_hosts import Host

from .webui_server import LORA_TAG, TITLE, APIError, Generation, WebUIServer, pixels_of, running_webui

pytestmark = [pytest.mark.host, pytest.mark.slow]

CLOSE = 1e-4
"""Largest difference of two programs' conditioning in float32; its values are around 1."""
TEXT = "a photo of a (red:1.3) cat on a (mat:0.4)"
LONG = "a (photo:1.2) of a [very (small:1.4)] cat, " * 12
OFF = (False,)
A1111 = (True, "a1111")
BLEND = (True, "masked_blend")
"""Values of our script's controls, the first of them."""

REQUESTS: dict[str, dict[str, Any]] = {
    "weights": {"prompt": TEXT},
    "editing and alternation": {"prompt": "a [(cat:1.3):dog:0.5] on a [mat::1], [red|(blue:0.6)]", "steps": 3},
    "AND": {"prompt": "a (cat:1.3) AND a (dog:0.7) on a mat :0.6"},
    "batch of 2": {"prompt": TEXT, "batch_size": 2},
    "hires fix": {
        **{"prompt": TEXT, "enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "hr_second_pass_steps": 2},
        **{"denoising_strength": 0.7, "hr_prompt": "a (dog:1.3), [blue:green:0.5]", "hr_negative_prompt": "(bad:0.5)"},
        **{"hr_cfg": 7.0, "hr_additional_modules": ["Use same choices"]},  # of Forge
    },
    "textual inversion": {"prompt": "a (seeded-embedding:1.3) cat, seeded-one, (seeded-embedding seeded-one:0.7)"},
    "LoRA": {"prompt": f"a (red:1.3) cat <lora:{LORA_TAG}:0.8>"},
    "negative": {"prompt": "a cat", "negative_prompt": "(ugly:1.4), [blurry], a (dog:-0.5)"},
    "several chunks": {"prompt": f"{LONG} BREAK a (dog:0.7)\nBREAK", "negative_prompt": LONG},
    "clip skip": {"prompt": TEXT, "override_settings": {"CLIP_stop_at_last_layers": 2}},
    "no emphasis": {"prompt": TEXT, "override_settings": {"emphasis": "None"}},
}
PARTS = {"aaa-other": ("encoder", "nodes"), "zzz-other": ("weighting", "web", "hosts", "studio")}
"""Other extensions, loaded before and after ours, and their top-level packages, named as folders of ours."""
OTHER_SCRIPT = """
from modules import scripts
import {imports}

class Other(scripts.Script):
    def title(self): return "{name}"
    def show(self, is_img2img): return scripts.AlwaysVisible
    def process(self, p): p.extra_generation_params["{name}"] = " ".join([{owners}])
"""


@pytest.fixture(scope="session")
def bare(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Generation]:
    """Results of every request in the WebUI without our extension, with the first one repeated at the end."""
    with running_webui(webui_host, webui_models, tmp_path_factory.mktemp("bare") / "data", with_ours=False) as server:
        with pytest.raises(APIError, match="'weighted clip' not found"):
            server.txt2img(TEXT, script=OFF)
        requests = {**REQUESTS, "weights again": REQUESTS["weights"]}
        return {name: server.txt2img(**request, probe=True) for name, request in requests.items()}


@pytest.fixture(scope="session")
def webui(
    webui_host: Host,
    webui_models: Path,
    bare: dict[str, Generation],  # not two servers at a time
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WebUIServer]:
    """A running WebUI with our extension, and others whose packages have the names of our folders."""
    others = {name: tmp_path_factory.mktemp(name) for name in PARTS}
    for name, folder in others.items():
        write_other_extension(folder, name)
    base = tmp_path_factory.mktemp("webui") / "data"
    with running_webui(webui_host, webui_models, base, with_ours=True, extensions=others) as server:
        yield server


def write_other_extension(folder: Path, name: str) -> None:
    """Write an extension that tells in an image's parameters whose packages it got."""
    for package in PARTS[name]:
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text(f"OWNER = {name!r}\n")
    (folder / "scripts").mkdir()
    owners = ", ".join(f"{package}.OWNER" for package in PARTS[name])
    script = OTHER_SCRIPT.format(name=name, imports=", ".join(PARTS[name]), owners=owners)
    (folder / "scripts" / f"{name.replace('-', '_')}.py").write_text(script)


def difference(one: Generation, other: Generation) -> float:
    """The largest difference between what the steps of two generations were given."""
    assert one.seen is not None
    assert other.seen is not None
    assert len(one.seen.steps) == len(other.seen.steps)
    return max(
        float((ours - theirs).abs().max())
        for mine, its in zip(one.seen.steps, other.seen.steps, strict=True)
        for ours, theirs in ((mine.cond, its.cond), (mine.uncond, its.uncond))
    )


def seen_cond(generation: Generation) -> torch.Tensor:
    """The only conditioning of a generation's prompt."""
    assert generation.seen is not None
    return generation.seen.cond


# The harness itself


def test_the_webui_repeats_itself(bare: dict[str, Generation]) -> None:
    assert bare["weights again"].equals(bare["weights"])
    assert difference(bare["weights again"], bare["weights"]) == 0


@pytest.mark.parametrize("name", REQUESTS)
def test_what_the_webui_makes_are_pictures(bare: dict[str, Generation], name: str) -> None:
    sizes = {"hires fix": 96}
    counts = {"batch of 2": 2}
    pictures = bare[name].pictures
    assert len(pictures) >= counts.get(name, 1)  # with a grid, where there are several
    for picture in pictures[-counts.get(name, 1) :]:
        size = sizes.get(name, 64)
        assert picture.shape == (size, size, 3)
        assert picture.std() > 10
        assert 10 < picture.mean() < 245
    assert sum(one.equals(bare[name]) for one in bare.values()) == (2 if name == "weights" else 1)


def test_the_probe_sees_schedules_parts_and_passes(bare: dict[str, Generation]) -> None:
    seen = {name: generation.seen for name, generation in bare.items()}
    ends = {
        name: {key: [end for end, _ in entries] for key, entries in one.schedules.items()}
        for name, one in seen.items()
        if one is not None
    }
    assert ends["weights"] == {"0.0.0": [2], "0.0.negative": [2]}
    assert ends["editing and alternation"]["0.0.0"] == [1, 2, 3]
    assert ends["AND"].keys() == {"0.0.0", "0.0.1", "0.0.negative"}
    assert ends["batch of 2"].keys() == {"0.0.0", "0.0.negative", "0.1.0", "0.1.negative"}
    assert ends["hires fix"].keys() == {"0.0.0", "0.0.negative", "1.0.0", "1.0.negative"}
    assert seen_cond(bare["weights"]).shape == (77, 768)
    assert seen_cond(bare["several chunks"]).shape == (77 * 3, 768)


@pytest.mark.parametrize("name", ["weights", "several chunks"])
def test_the_webui_encodes_as_our_encoder_does_in_its_scheme(
    bare: dict[str, Generation], native: Any, name: str
) -> None:
    expected = native(REQUESTS[name]["prompt"], scheme="a1111")
    assert (seen_cond(bare[name]) - expected).abs().max() <= CLOSE


# Our extension, switched off


def test_our_extension_starts_without_a_word_of_trouble(webui: WebUIServer) -> None:
    log = webui.log_text()
    for word in ("Error loading script", "Error calling", "Error running", "Error executing"):
        assert word not in log


@pytest.mark.parametrize("name", REQUESTS)
def test_switched_off_nothing_changes(webui: WebUIServer, bare: dict[str, Generation], name: str) -> None:
    for script in (OFF, ()):
        generation = webui.txt2img(**REQUESTS[name], script=script, probe=True)
        assert difference(generation, bare[name]) == 0
        assert generation.equals(bare[name])
        assert "Weighted CLIP" not in generation.infotext
        if name not in ("weights", "LoRA"):
            break  # the other is the same code


# Our extension, switched on


@pytest.mark.parametrize("name", REQUESTS)
def test_the_scheme_a1111_is_what_the_webui_does(webui: WebUIServer, bare: dict[str, Generation], name: str) -> None:
    generation = webui.txt2img(**REQUESTS[name], script=A1111, probe=True)
    assert "Weighted CLIP: a1111" in generation.infotext
    assert difference(generation, bare[name]) <= CLOSE
    assert generation.equals(bare[name])


@pytest.mark.parametrize("name", REQUESTS)
def test_masked_blend_makes_other_pictures(webui: WebUIServer, bare: dict[str, Generation], name: str) -> None:
    generation = webui.txt2img(**REQUESTS[name], script=BLEND, probe=True)
    assert "Weighted CLIP: masked_blend" in generation.infotext
    is_other = name != "no emphasis"  # which leaves no weights
    assert generation.equals(bare[name]) != is_other
    assert (difference(generation, bare[name]) > 0.01) == is_other


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_that_of_our_own_encoder(webui: WebUIServer, native: Any, scheme: str) -> None:
    negative = "(ugly:1.4), [blurry]"
    generation = webui.txt2img(TEXT, negative_prompt=negative, steps=1, script=(True, scheme), probe=True)
    assert generation.seen is not None
    copies = 2 if SCHEMES[scheme].is_signed else 1  # pairs of key and value, alike without weights below 0
    for rows, text in ((generation.seen.cond, TEXT), (generation.seen.uncond, negative)):
        own = native(text, scheme=scheme).repeat_interleave(copies, dim=0)
        assert (rows - own).abs().max() <= CLOSE


def test_on_and_off_in_turn(webui: WebUIServer, bare: dict[str, Generation]) -> None:
    request = partial(webui.txt2img, **REQUESTS["weights"])
    blended = request(script=BLEND)
    assert not blended.equals(bare["weights"])
    for script, expected in (
        *((OFF, bare["weights"]), (BLEND, blended), (BLEND, blended), ((), bare["weights"]), (OFF, bare["weights"])),
        *((A1111, bare["weights"]), (BLEND, blended), (OFF, bare["weights"])),
    ):
        assert request(script=script).equals(expected)


def test_hires_fix_on_and_off_in_turn(webui: WebUIServer, bare: dict[str, Generation]) -> None:
    request = partial(webui.txt2img, **REQUESTS["hires fix"])
    blended = request(script=BLEND)
    assert not blended.equals(bare["hires fix"])
    assert request(script=OFF).equals(bare["hires fix"])
    assert request(script=BLEND).equals(blended)


def test_loopback_uses_one_generation_object_again(webui: WebUIServer) -> None:
    """img2img's script Loopback goes through ``process`` for each of its pictures, as batches from a folder do."""
    image = io.BytesIO()
    Image.new("RGB", (64, 64), (90, 140, 60)).save(image, "PNG")
    request = {
        **{"prompt": TEXT, "steps": 4, "seed": 1, "width": 64, "height": 64, "sampler_name": "Euler"},
        **{"do_not_save_grid": True, "scheduler": "Normal", "denoising_strength": 0.8, "script_name": "Loopback"},
        "script_args": [3, 0.8, "Linear", "None"],
        "init_images": [base64.b64encode(image.getvalue()).decode()],
    }

    def pictures(*script: Any) -> list[str]:
        answer = webui.api("/sdapi/v1/img2img", {**request, "alwayson_scripts": {TITLE: {"args": list(script)}}})
        assert len(answer["images"]) >= 3
        return [hashlib.sha256(pixels_of(picture).tobytes()).hexdigest() for picture in answer["images"]]

    pictures(*OFF)  # Forge's first pictures made from an image differ by a few levels from all later ones
    off = pictures(*OFF)
    assert pictures(*A1111) == off
    blended = pictures(*BLEND)
    assert all(one != other for one, other in zip(blended, off, strict=True))
    assert pictures(*OFF) == off


# Errors and interrupts


@pytest.mark.parametrize("script", [A1111, BLEND])
@pytest.mark.parametrize("name", ["weights", "textual inversion", "LoRA"])
def test_an_error_inside_our_encoding_reaches_the_user_and_leaves_nothing(
    webui: WebUIServer, bare: dict[str, Generation], script: tuple[Any, ...], name: str
) -> None:
    with pytest.raises(APIError) as caught:
        webui.txt2img(**REQUESTS[name], script=script, fail_at=2)
    assert caught.value.status == 500
    assert "the probe was told to fail at call 2, inside of: " in caught.value.body
    assert "hosts.webui" in caught.value.body
    assert webui.txt2img(**REQUESTS[name], script=OFF, probe=True).equals(bare[name])


def test_the_probe_fails_the_webuis_own_encoding_too(webui: WebUIServer, bare: dict[str, Generation]) -> None:
    with pytest.raises(APIError, match="inside of: no one else"):
        webui.txt2img("another text", script=OFF, fail_at=2)
    assert webui.txt2img(TEXT).equals(bare["weights"])


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ((True, "nonsense"), ("Scheme must be one of", "masked_blend", "'nonsense'")),
        ((True, "a1111", "nonsense"), ("Normalization must be one of", "'nonsense'")),
        ((True, "a1111", "none", "nested", "attention", "attend", "nonsense"), ("Syntax must be one of",)),
        ((True, None), ("Scheme must be one of", "None")),
    ],
)
def test_a_choice_that_is_not_in_the_menu_is_an_error_in_words(
    webui: WebUIServer, bare: dict[str, Generation], script: tuple[Any, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(APIError) as caught:
        webui.txt2img(TEXT, script=script)
    for word in words:
        assert word in caught.value.body
    assert webui.txt2img(TEXT).equals(bare["weights"])


@pytest.mark.parametrize("script", [BLEND, OFF])
def test_an_interrupt_leaves_nothing(webui: WebUIServer, bare: dict[str, Generation], script: tuple[Any, ...]) -> None:
    made: list[Generation] = []
    thread = threading.Thread(target=lambda: made.append(webui.txt2img(TEXT, steps=60, script=script, probe=True)))
    thread.start()
    while thread.is_alive() and progress(webui).get("sampling_step", 0) < 2:
        time.sleep(0.1)
    webui.api("/sdapi/v1/interrupt", {})
    thread.join()
    (interrupted,) = made
    assert interrupted.seen is not None
    assert 2 <= len(interrupted.seen.steps) < 60
    assert webui.txt2img(TEXT).equals(bare["weights"])


def progress(webui: WebUIServer) -> Mapping[str, Any]:
    return webui.api("/sdapi/v1/progress?skip_current_image=true")["state"]


# Parameters of an image


def test_parameters_come_back_when_pasted(webui: WebUIServer, bare: dict[str, Generation]) -> None:
    script = (True, "masked_blend", "length+mean", "compel", "token", "mask", "comfy")
    made = webui.txt2img(TEXT, script=script)
    extra = made.info["extra_generation_params"]
    ours = {key: value for key, value in extra.items() if key.startswith("Weighted CLIP")}
    assert ours == {
        "Weighted CLIP": "masked_blend",
        "Weighted CLIP normalization": "length+mean",
        "Weighted CLIP law": "compel",
        "Weighted CLIP mask method": "token",
        "Weighted CLIP padding": "mask",
        "Weighted CLIP syntax": "comfy",
    }
    assert not made.equals(webui.txt2img(TEXT, script=BLEND))
    # Forge's API stumbles over parameters of an image unless its lists are given
    paste = partial(webui.txt2img, TEXT, styles=[], hr_additional_modules=["Use same choices"])
    pasted = paste(infotext=made.infotext)
    assert pasted.infotext == made.infotext
    assert pasted.equals(made)
    assert paste(infotext=bare["weights"].infotext).equals(bare["weights"])


def test_problems_of_a_prompt_are_told_below_the_image(webui: WebUIServer) -> None:
    for script, is_told in ((A1111, True), (OFF, False)):
        made = webui.txt2img("a (cat on a mat", steps=1, script=script, probe=True)
        assert made.seen is not None
        assert ("Weighted CLIP: " in made.seen.comments) == is_told


# Neighbours


def test_other_extensions_have_their_own_packages(webui: WebUIServer) -> None:
    for script in (BLEND, OFF):
        extra = webui.txt2img(TEXT, steps=1, script=script).info["extra_generation_params"]
        for name, packages in PARTS.items():
            assert extra[name] == " ".join([name] * len(packages))


def test_after_reloading_the_page_all_is_as_before(webui: WebUIServer, bare: dict[str, Generation]) -> None:
    blended = webui.txt2img(TEXT, script=BLEND)
    webui.reload_ui()
    test_our_extension_starts_without_a_word_of_trouble(webui)
    assert webui.txt2img(TEXT, script=BLEND).equals(blended)
    assert webui.txt2img(TEXT).equals(bare["weights"])
    assert not np.array_equal(blended.pictures[0], bare["weights"].pictures[0])
