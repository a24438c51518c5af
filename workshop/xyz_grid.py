"""Draw the X/Y/Z plot of docs/webui.md again, by the script of a running WebUI.

Start a WebUI with this extension and ``--api``, then ``python workshop xyz_grid http://127.0.0.1:7860``. It
overwrites ``docs/images/xyz-grid.png``. The picture there was made in Forge with the seeded Stable Diffusion 1.5 of
``tests/hosts/make_checkpoint.py``, whose images are meaningless: any other checkpoint makes another picture.
"""

from __future__ import annotations

import argparse
import base64
import json
import urllib.request
from pathlib import Path
from typing import Any

from ..encoder.image_file import open_image

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "images" / "xyz-grid.png"
PLOT = "x/y/z plot"
AXES: tuple[tuple[str, str], ...] = (
    ("[Weighted CLIP] Weight of a word", "dog: 0-1 [3]"),
    ("[Weighted CLIP] Scheme", "off, masked_blend, compel"),
)
FIELDS: dict[str, Any] = {
    **{"prompt": "a red cat and a dog in a bowl", "seed": 1, "steps": 2, "cfg_scale": 7.0},
    **{"width": 128, "height": 128, "sampler_name": "Euler", "script_name": PLOT},
}
NUM_COLORS = 64
"""Number of colours in the file, which is only for viewing."""


def main(arguments: list[str]) -> None:
    """Request the grid from the WebUI and write it."""
    parser = argparse.ArgumentParser(description="Draw docs/images/xyz-grid.png by a running WebUI.")
    parser.add_argument("address", help="where the WebUI is, such as http://127.0.0.1:7860")
    address = parser.parse_args(arguments).address.rstrip("/")
    scripts = ask(f"{address}/sdapi/v1/script-info")
    known = next(one["args"][0]["choices"] for one in scripts if one["name"] == PLOT and not one["is_img2img"])
    # index, values and chosen values of each axis; legend, cells, sub-grids, seeds (4), margin, values as text
    values = [part for label, text in AXES for part in (known.index(label), text, [])]
    options = [True, False, False, False, False, False, False, 0, True]
    answer = ask(f"{address}/sdapi/v1/txt2img", {**FIELDS, "script_args": [*values, 0, "", [], *options]})
    grid = open_image(TARGET, base64.b64decode(answer["images"][0]))
    grid.convert("RGB").quantize(NUM_COLORS).save(TARGET, optimize=True)
    print(f"{TARGET} has {TARGET.stat().st_size} bytes")


def ask(address: str, data: object = None) -> Any:
    """GET, or POST if there is data."""
    body = None if data is None else json.dumps(data).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as response:
        return json.load(response)
