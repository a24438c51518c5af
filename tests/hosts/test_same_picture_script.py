"""Pictures that our script made in a real Forge, drawn again in a real ComfyUI from nothing but their generation data.

The texts of an edited prompt with weights, which Forge evens out together, are among them without our script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.workshop.find_hosts import Host

from .comfy_server import ComfyServer, running_server
from .test_same_picture import Drawn, draw
from .webui_server import LORA_TAG, Generation, running_webui

pytestmark = [pytest.mark.host, pytest.mark.slow]

PROMPT = "a (red cat:1.3) and a (blue dog:0.3) on a [mat]"
EDITED = "a [red:very blue:0.5] (cat:1.4) on a [mat|(sofa:0.7)]"
SCRIPTS: dict[str, tuple[str, Settings, str]] = {
    "a new page": (PROMPT, Settings(True, "masked_blend", above_one="as the WebUI"), "Original"),
    "no norm": (PROMPT, Settings(True, "masked_blend", above_one="as the WebUI"), "No norm"),
    "fading": (PROMPT, Settings(True, "masked_blend", law="compel", mask_method="remove", padding="clean"), "Original"),
    "normalized": (PROMPT, Settings(True, "comfy", "length+mean"), "Original"),
    "dropped": (f"{EDITED} AND a (dog:0.5):0.6", Settings(True, "masked_blend", padding="drop"), "Original"),
    "ComfyUI's syntax": (PROMPT, Settings(True, "comfy", syntax="comfy"), "Original"),
    "compel": (
        "a (red cat)1.3 and a (blue dog)0.3",
        Settings(True, "compel", syntax="compel", law="compel"),
        "Original",
    ),
    "repeat": (
        PROMPT.replace("1.3", "2").replace("0.3", "0").replace("[mat]", "mat"),
        Settings(True, "repeat"),
        "Original",
    ),
    "negpip": (PROMPT.replace("0.3", "-0.5"), Settings(True, "negpip"), "Original"),
    "bound": (PROMPT, Settings(True, "a1111", bind="red cat\nblue dog", bind_strength=0.8), "Original"),
    "places": (
        PROMPT,
        Settings(True, "comfy", places="red cat: left half, outside 0.1\nblue dog: inside 3, 0-2 steps"),
        "",
    ),
    "edited": (EDITED, Settings(True, "masked_blend", above_one="as the WebUI"), "Original"),
    "LoRA": (f"{PROMPT} <lora:{LORA_TAG}:0.8>", Settings(True, "masked_blend"), "Original"),
    "edited without the script": (EDITED, Settings(False), "Original"),
    "AND without the script": (f"{EDITED} AND a (dog:0.5):0.6", Settings(False), "No norm"),
}


@pytest.fixture(scope="module")
def made(webui_host: Host, webui_models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Generation]:
    """The pictures, by Forge, which has ended."""
    if webui_host.kind != "Forge":
        pytest.skip("the samplers are Forge's")
    base = tmp_path_factory.mktemp("forge") / "data"
    with running_webui(webui_host, webui_models, base, with_ours=True, arguments=("--clip-in-fp32",)) as webui:
        found: dict[str, Generation] = {}
        for number, (name, (prompt, settings, mode)) in enumerate(SCRIPTS.items()):
            options = {"randn_source": "CPU", "emphasis": mode or "Original"}
            fields = {
                "negative_prompt": "(ugly:1.4), blurry AND dull",
                "steps": 6,
                "seed": number,
                "scheduler": "Automatic",
            }
            script = list(vars(settings).values())
            found[name] = webui.txt2img(prompt, script=script, probe=True, override_settings=options, **fields)
        return found


@pytest.fixture(scope="module")
def server(
    host: Host, models: Path, made: dict[str, Generation], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyServer]:
    """A ComfyUI with Forge's kernel for attention; not beside Forge."""
    kernels = ("--use-quad-cross-attention",)
    with running_server(host, models, tmp_path_factory.mktemp("comfyui"), with_pack=True, kernels=kernels) as server:
        yield server


def apart(drawn: Drawn, made: Generation) -> tuple[int, float]:
    """Largest difference of 8-bit values, and the share that is equal."""
    found = np.abs(np.stack(drawn.pictures).astype(int) - np.stack(made.pictures[-1:]).astype(int))
    return int(found.max()), float((found == 0).mean())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_picture_of_our_script_is_drawn_again(server: ComfyServer, made: dict[str, Generation], name: str) -> None:
    picture = made[name]
    drawn = draw(server, picture.infotext, 1)
    undone = [line for line in drawn.report if not line.startswith(("→", "AND", "rounding", "LoRA", "RNG"))]
    assert undone == []
    levels, equal = apart(drawn, picture)
    assert levels <= 1
    assert equal >= 0.99


def test_the_scripts_entries_make_the_picture(server: ComfyServer, made: dict[str, Generation]) -> None:
    for name in ("a new page", "bound", "ComfyUI's syntax"):
        text = re.sub(r', Weighted CLIP[^:]*: (?:"(?:\\.|[^"\\])*"|[^,]*)', "", made[name].infotext)
        assert "Weighted" not in text
        levels, _ = apart(draw(server, text, 1), made[name])
        assert levels > 1


def test_the_report_names_each_entry(server: ComfyServer, made: dict[str, Any]) -> None:
    report = "\n".join(draw(server, made["places"].infotext.replace("Steps: 6", "Steps: 5"), 1).report)
    [line] = [line for line in report.splitlines() if line.startswith("→ settings")]
    assert "Weighted CLIP comfy" in line and "Weighted CLIP places red cat: left half" in line
