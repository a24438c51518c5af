"""Notes below an image, in the console and in the API's ``info``: problems of a prompt, each once.

Also messages about ADetailer, which leaves out scripts that its setting does not name; with fakes of its script.
"""

import copy
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from weighted_clip.hosts.webui.generation import PROBLEMS, SCRIPT, arm, report
from weighted_clip.hosts.webui.settings import INFOTEXT

from . import fake_webui as fake

CUT = "a (cat on a mat"


def info_of(generation: fake.Generation) -> dict[str, Any]:
    """Final content of the API's ``info``."""
    processed = SimpleNamespace(extra_generation_params=generation.extra_generation_params)
    report(generation, processed)
    return processed.extra_generation_params


def test_a_problem_is_in_info_and_console_once(forge: fake.ForgeModel, caplog: pytest.LogCaptureFixture) -> None:
    """Twice as many images, timed texts and a second pass say nothing again."""
    generation = fake.armed(forge)
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


# ADetailer

FIRST = {"ad_model": "face_yolov8n.pt", "ad_tab_enable": True}


class Script:
    """As ADetailer's script: a switch, another, and a dictionary for each of its tabs."""

    args_from, args_to = 2, 6

    def title(self) -> str:
        return "ADetailer"

    def is_ad_enabled(self, *values: Any) -> bool:
        assert len(values) == 4
        return values[0] and any(value["ad_model"] != "None" for value in values[2:])


def told(forge: fake.ForgeModel, *values: Any, script: Any = None, **attributes: Any) -> list[str]:
    """The lines below the image that are about ADetailer."""
    generation: Any = fake.Generation(forge)
    vars(generation).update(attributes)
    generation.scripts = SimpleNamespace(alwayson_scripts=[SimpleNamespace(title=lambda: "Other"), script or Script()])
    generation.script_args = (True, "other's", *values, "behind")
    arm(generation, [True])
    generation.setup_conds("a cat")
    return [comment for comment in generation.comments if "ADetailer" in comment]


def test_it_is_said_where_adetailer_is_on_and_we_are_not_listed(
    forge: fake.ForgeModel, host_options: SimpleNamespace
) -> None:
    off = {"ad_model": "None"}
    for names in (None, "", "negpip,wildcards", "weighted_clip2"):
        if names is not None:
            host_options.ad_script_names = names
        [line] = told(forge, True, False, FIRST, off)
        assert "add weighted_clip to its setting" in line
        assert told(forge, False, False, FIRST, off) == []
        assert told(forge, True, False, off, off) == []
        assert told(forge, True, False, FIRST, off, _ad_disabled=True) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("ad_script_names", "negpip, weighted_clip"), ("ad_only_selected_scripts", False)],
)
def test_nothing_is_said_where_we_take_part(
    forge: fake.ForgeModel, host_options: SimpleNamespace, name: str, value: Any
) -> None:
    setattr(host_options, name, value)
    assert told(forge, True, False, FIRST, FIRST) == []


def test_another_adetailer_stops_nothing(forge: fake.ForgeModel) -> None:
    class Changed(Script):
        def is_ad_enabled(self, *values: Any) -> bool:
            raise TypeError("other values")

    assert told(forge, True, False, FIRST, FIRST, script=Changed()) == []
    assert told(forge, True, False, FIRST, FIRST, script=SimpleNamespace(title=lambda: "ADetailer")) == []


def test_the_name_is_that_of_our_file() -> None:
    assert (Path(__file__).parents[2] / "scripts" / f"{SCRIPT}.py").is_file()
