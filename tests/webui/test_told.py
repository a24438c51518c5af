"""Problems of a prompt in the WebUI: below the image, in the console and in the API's ``info``, each once."""

import copy
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from weighted_clip.hosts.webui.settings import INFOTEXT
from weighted_clip.hosts.webui.swap import PROBLEMS, arm, report

from . import fake_webui as fake

CUT = "a (cat on a mat"


def info_of(generation: fake.Generation) -> dict[str, Any]:
    """Final content of the API's ``info``."""
    processed = SimpleNamespace(extra_generation_params=generation.extra_generation_params)
    report(generation, processed)
    return processed.extra_generation_params


def test_a_problem_is_in_info_and_console_once(forge: fake.ForgeModel, caplog: pytest.LogCaptureFixture) -> None:
    """Twice as many images, timed texts and a second pass say nothing again."""
    generation = fake.Generation(forge)
    arm(generation, [True])
    for _ in range(3):
        generation.setup_conds(f"{CUT}=>{CUT}", negative=CUT)
    [record] = caplog.records
    [line] = generation.comments
    assert record.levelno == logging.WARNING
    assert record.getMessage() == line
    assert [f"{INFOTEXT}: {problem}" for problem in info_of(generation)[PROBLEMS]] == [line]
    assert PROBLEMS not in generation.extra_generation_params  # which the images' own parameters are made of


def test_without_problems_nothing_is_said(forge: fake.ForgeModel, caplog: pytest.LogCaptureFixture) -> None:
    for values in ([True], [False]):
        generation = fake.Generation(forge)
        arm(generation, values)
        generation.setup_conds("a cat" if values[0] else CUT)
        assert info_of(generation) is generation.extra_generation_params
    assert not caplog.records


def test_copies_of_a_generation_have_parameters_of_their_own(
    forge: fake.ForgeModel, caplog: pytest.LogCaptureFixture
) -> None:
    """As X/Y/Z plot makes them, one for each cell, from a generation that is never encoded itself."""
    generation = fake.Generation(forge)
    generation.extra_generation_params["Script"] = "X/Y/Z plot"
    made: list[dict[str, Any]] = []
    for values in ([True, "masked_blend", "mean", "compel"], [True, "comfy"], [False]):
        cell = copy.copy(generation)
        arm(cell, values)
        cell.setup_conds(CUT)
        made.append(cell.extra_generation_params)
    name = INFOTEXT
    assert made == [
        {"Script": "X/Y/Z plot", name: "masked_blend", f"{name} normalization": "mean", f"{name} law": "compel"},
        {"Script": "X/Y/Z plot", name: "comfy"},
        {"Script": "X/Y/Z plot"},
    ]
    assert len(caplog.records) == 1  # all cells have the same prompt
