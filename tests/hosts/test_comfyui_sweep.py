"""Sweep Weights and Sweep Grid in a real ComfyUI: each prompt as if typed, and all of them as one picture."""

from __future__ import annotations

import pytest

from .comfy_server import ComfyServer, template
from .test_comfyui_world import pictures_of, share_of

pytestmark = pytest.mark.host


def test_a_sweep_is_one_picture_in_which_a_weight_shows(server: ComfyServer) -> None:
    [picture] = pictures_of(server, template("20 Sweep a weight"))
    side, gap, margin = 96, 4, 22
    ends = [picture.shape[1] - margin - number * (side + gap) for number in range(5)][::-1]
    blue = [share_of("blue", picture[:, end - side : end]) for end in ends]
    assert blue[0] < 0.001 and blue[4] > 0.01, blue
