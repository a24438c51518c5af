"""Checks of what our nodes ask of a GPU while ComfyUI's own models sample, counted on a pretended one.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from inprocess import main, pack_module

FAMILIES = ("Stable Diffusion 1.5", "Flux")
VIDEO, VIDEO_LAYERS = "Wan 2.1", 4
MOST = {"Attention Weights": 0, "Place Phrase": 0, "two regions": 0, "Watch Words": 4}
"""Most operators more than stock's in a later step, for each attention that reads text."""


@cache
def launches() -> Any:
    module = pack_module("workshop.launches")
    pack_module("workshop.bench.samplings").open_host(is_pretended=True)
    return module


def steps_of(family: str, way: str) -> list[dict[str, Any]]:
    model = pack_module("workshop.bench.samplings").MODELS[family]
    with torch.inference_mode(False):
        return launches().count_steps(family, way, model.sides[0])


def num_text_layers(family: str) -> int:
    return 16 if family == FAMILIES[0] else 6


def check_later_steps_wait_for_nothing_and_take_few_operators() -> None:
    for family in FAMILIES:
        *_, stock = steps_of(family, "stock")
        for way, most in MOST.items():
            first, *_, later = steps_of(family, way)
            assert later["waits"] == stock["waits"] == 0, (family, way, later)
            more = later["operators"] - stock["operators"]
            assert more <= most * num_text_layers(family) + 10 * (way == "Watch Words"), (family, way, more)
            assert first["waits"] > 0 and first["operators"] >= later["operators"]
            assert later["attentions"] == stock["attentions"] + num_text_layers(family) * (way == "Watch Words")


def check_what_is_made_again_in_each_step_is_seen() -> None:
    *_, stock = steps_of(FAMILIES[1], "stock")
    log = pack_module("hosts.comfy.attention.sampling_log").SamplingLog
    with patch.object(log, "weights", lambda self, key, make: make()):
        *_, later = steps_of(FAMILIES[1], "Place Phrase")
    assert later["waits"] > 0 and later["operators"] > stock["operators"]


def check_a_large_picture_takes_no_table() -> None:
    with torch.inference_mode(False):
        *_, stock = launches().count_steps(FAMILIES[1], "stock", 256)
        for way in ("Place Phrase", "two regions"):
            *_, later = launches().count_steps(FAMILIES[1], way, 256)
            assert later["masks"] == 0 and later["waits"] == 0, (way, later)
            assert later["operators"] == stock["operators"] + 2 * num_text_layers(FAMILIES[1]), (way, later)


def check_two_regions_of_a_video_take_an_attention_more_in_each_layer() -> None:
    *_, stock = steps_of(VIDEO, "stock")
    *_, later = steps_of(VIDEO, "two regions")
    assert later["operators"] == stock["operators"] + 2 * VIDEO_LAYERS, later
    assert later["attentions"] == stock["attentions"] + VIDEO_LAYERS
    assert later["waits"] == stock["waits"] and 0 < later["masks"] <= 2**26


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    # its modules choose their attention when they are imported
    import_module("comfy.cli_args").args.use_pytorch_cross_attention = True
    main(globals())
