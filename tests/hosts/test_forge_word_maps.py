"""Word maps of our script in a real Forge, through its API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.workshop.find_hosts import Host

from .test_forge_places import BOX, HIRES, TEXT
from .webui_server import Generation, WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _forge(webui_host: Host) -> None:
    if webui_host.kind != "Forge":
        pytest.skip("Word maps works in Forge")


@pytest.fixture(scope="module")
def make(webui: WebUIServer) -> Callable[..., Generation]:
    def make(fields: dict[str, Any], **settings: Any) -> Generation:
        script = list({**vars(Settings()), "enabled": True, **settings}.values())
        return webui.txt2img(**{"prompt": TEXT, **fields}, script=script, probe=True)

    return make


@pytest.mark.parametrize(
    ("settings", "fields", "num_pictures"),
    [
        ({}, {}, 1),
        ({"places": BOX}, {}, 1),
        ({"scheme": "negpip"}, {"prompt": "a red cat and a (blue:-0.5) dog"}, 1),
        ({}, {"batch_size": 2, "n_iter": 2}, 4),
        ({}, HIRES, 1),
    ],
    ids=["alone", "with Places", "in pairs", "batches", "hires. fix"],
)
def test_pictures_stay_and_each_has_a_grid_behind_them(
    make: Callable[..., Generation], settings: dict[str, Any], fields: dict[str, Any], num_pictures: int
) -> None:
    plain, watched = (make(fields, **settings, word_maps=word_maps) for word_maps in (False, True))
    count = len(plain.pictures)  # the host's own grid of a batch is one more
    assert len(watched.pictures) == count + num_pictures
    assert all(map(np.array_equal, plain.pictures, watched.pictures))
    assert plain.seen is not None and watched.seen is not None
    if plain.seen.samples is not None:
        assert watched.seen.samples is not None and torch.equal(watched.seen.samples, plain.seen.samples)
    grids = watched.pictures[count:]
    assert all(min(grid.shape[:2]) > 160 and grid.max() > 200 for grid in grids)
    assert len({grid.tobytes() for grid in grids}) == num_pictures
    assert "Weighted CLIP word maps: True" in watched.infotext
    assert "word maps" not in plain.infotext
    assert make(fields, **settings).equals(plain)


def test_the_tick_comes_back_when_pasted(webui: WebUIServer, make: Callable[..., Generation]) -> None:
    made = make({}, word_maps=True)
    pasted = webui.txt2img(TEXT, infotext=made.infotext, styles=[], hr_additional_modules=["Use same choices"])
    assert len(pasted.pictures) == 2
    assert pasted.equals(made)
