"""Notes below an image, in the console and in the API's ``info``: problems of a prompt, each once.

Also messages about ADetailer, which leaves out scripts that its setting does not name; with fakes of its script.
"""

import copy
import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.generation import PROBLEMS, arm, report
from weighted_clip.hosts.webui.model_readers import readers_of
from weighted_clip.hosts.webui.script.notes import SCRIPT, sampler_lines
from weighted_clip.hosts.webui.script.routes import inspected
from weighted_clip.hosts.webui.script.typed_prompts import read_for_generation
from weighted_clip.hosts.webui.settings import INFOTEXT, Settings

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


def lines_below(forge: fake.ForgeModel, prompt: str, texts: str, negative: str = "") -> list[str]:
    """Lines below the image of a prompt, of which the host makes these texts."""
    generation: Any = fake.armed(forge)
    generation.all_prompts, generation.all_negative_prompts, generation.steps = [prompt] * 3, [negative] * 3, 20
    generation.setup_conds(texts, negative=negative)
    return [line.removeprefix(f"{INFOTEXT}: ") for line in generation.comments]


@pytest.mark.parametrize(
    ("prompt", "texts", "starts"),
    [
        ("some (cat AND a (dog", "some (cat => a (dog", [5, 16]),
        ("[x:yyyy:0.5] a (cat", "x a (cat=>yyyy a (cat", [15]),
        ("<lora:ink:1>a (cat", "a (cat", [14]),
        ("a (dog AND a (dog", "a (dog => a (dog", [2, 13]),
    ],
)
def test_problems_stand_at_their_place_in_the_whole_prompt_once(
    forge: fake.ForgeModel, models: SimpleNamespace, prompt: str, texts: str, starts: list[int]
) -> None:
    lines = lines_below(forge, prompt, texts)
    assert [int(line.partition("at ")[2].partition(":")[0]) for line in lines] == starts
    # as the strip has said before
    request = {"text": prompt, "is_negative": False, "steps": 20, "syntax": "a1111", "settings": {"enabled": True}}
    assert lines == [issue["message"] for view in inspected(request)["views"] for issue in view["issues"]]


def test_problems_of_a_text_of_the_second_pass_stand_at_their_place_too(forge: fake.ForgeModel) -> None:
    prompt = "[x:yyyy:15] a (cat"
    generation: Any = fake.armed(forge)
    generation.all_prompts, generation.steps, generation.hr_second_pass_steps = [prompt], 10, 20
    generation.setup_conds("x a (cat=>yyyy a (cat")
    (line,) = generation.comments
    assert line.startswith(f"{INFOTEXT}: at {prompt.index('(')}: ")


def test_what_is_text_in_a_negative_prompt_is_told_without_a_node_of_comfyui(forge: fake.ForgeModel) -> None:
    (line,) = lines_below(forge, "a", "a", "bad AND ugly")
    assert line.startswith("at 4: AND combines prompts in A1111. The WebUI does not read it in this place")


def test_the_host_parses_each_prompt_once(forge: fake.ForgeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host takes minutes for a few thousand characters."""
    name = "get_learned_conditioning_prompt_schedules"
    parse, calls = getattr(fake, name), list[tuple[str, ...]]()

    def counted(prompts: list[str], *others: Any) -> Any:
        calls.append(tuple(prompts))
        return parse(prompts, *others)

    monkeypatch.setattr(fake, name, counted)
    generation = fake.armed(forge, "masked_blend")
    [made] = generation.setup_conds("a (cat:0.5)=>a dog", negative="bad")
    assert calls == [("bad",), ("a (cat:0.5)=>a dog",)]
    assert getattr(fake, name) is counted
    monkeypatch.setattr(fake, name, parse)
    assert torch.equal(made, fake.armed(forge, "masked_blend").setup_conds("a (cat:0.5)=>a dog", negative="bad")[0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": "comfy", "law": "compel"}, ["Law compel changes nothing: the scheme comfy does not read it."]),
        ({"scheme": "masked_blend", "law": "compel"}, []),
        ({"bind_strength": 0.5}, ["Strength 0.5 changes nothing: Keep apart is empty."]),
        ({"bind": "cat", "bind_strength": 0.0}, ["Keep apart changes nothing: Strength is 0."]),
        (
            {"bind": "cat", "bind_words": "cat"},
            ["These words changes nothing: They hide from each other is at whole phrases."],
        ),
        (
            {"scheme": "comfy", "bind": "cat", "bind_hide": "cutoff", "bind_words": "cat"},
            ["Keep apart changes nothing: They hide from each other is at cutoff, which reads These words."],
        ),
        ({"scheme": "comfy", "above_one": "as the WebUI"}, []),  # as a new page has it
    ],
)
def test_settings_that_nothing_reads_are_named(
    forge: fake.ForgeModel, settings: dict[str, Any], words: list[str]
) -> None:
    generation = fake.armed(forge, **settings)
    generation.setup_conds("a cat")
    lines = [line.removeprefix(f"{INFOTEXT}: ") for line in generation.comments]
    assert [line for line in lines if "changes nothing" in line] == words
    assert set(words) <= set(info_of(generation).get(PROBLEMS, []))


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"scheme": "a1111"}, True),
        ({"scheme": "masked_blend"}, True),
        ({"scheme": "masked_blend", "above_one": "as the WebUI"}, False),
    ],
)
def test_an_emphasis_of_a_request_that_the_scheme_replaces_is_named(
    forge: fake.ForgeModel, settings: dict[str, Any], *, is_told: bool
) -> None:
    for mode in ("Ignore", "None"):
        generation: Any = fake.armed(forge, **settings)
        generation.override_settings = {"emphasis": mode}
        generation.setup_conds("a cat")
        told = any(f"emphasis '{mode}' has no effect" in line for line in generation.comments)
        assert told == (is_told and mode == "Ignore")


def taking(model: Any, x: Any, s_noise: float = 1.0, eta: float = 1.0) -> None:
    """Stands for a sampler's function that takes these two."""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, []),
        ({"s_churn": 5.0}, ["s_churn 5.0 does nothing: the sampler Euler a does not take it."]),
        ({"s_noise": 1.05}, ["s_noise 1.05 took effect, but is not in the image's parameters."]),
        ({"s_noise": 1.05, "extra_generation_params": {"Sigma noise": 1.05}}, []),
        ({"s_tmax": 3.0}, ["s_tmax 3.0 does nothing: the sampler Euler a does not take it."]),
        ({"eta": 0.5}, []),
    ],
)
def test_numbers_of_a_request_that_the_sampler_does_not_take_are_named(
    host_options: SimpleNamespace, fields: dict[str, Any], words: list[str]
) -> None:
    defaults = {"s_churn": 0.0, "s_tmin": 0.0, "s_tmax": 0.0, "s_noise": 1.0}
    vars(host_options).update(defaults)
    sampler = SimpleNamespace(func=taking, extra_params=["s_noise"])
    own = {**defaults, "s_tmax": math.inf, "eta": None, "extra_generation_params": {}, "sampler_name": "Euler a"}
    p = SimpleNamespace(**{**own, "sampler": sampler, **fields})
    assert list(sampler_lines(p)) == words


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


def test_comments_are_out_of_all_prompts_before_the_host_reads_them(forge: fake.ForgeModel) -> None:
    generation: Any = fake.Generation(forge)
    given = {
        "all_prompts": ["a cat // AND x", "a # dog"],
        "all_negative_prompts": ["/* y */ z", ""],
        "main_prompt": "a//b",
    }
    for comments, left in (
        ("as syntax", given),
        ("//", {"all_prompts": ["a cat ", "a # dog"], "all_negative_prompts": [" z", ""], "main_prompt": "a"}),
        ("# and //", {"all_prompts": ["a cat ", "a "], "all_negative_prompts": [" z", ""], "main_prompt": "a"}),
        ("both", given),  # refused when the prompts are encoded
    ):
        vars(generation).update(given)
        arm(generation, list(vars(Settings(enabled=True, comments=comments)).values()))
        assert {name: getattr(generation, name) for name in given} == left
    with pytest.raises(WebUIError, match="Comments must be one of"):
        generation.setup_conds("a cat")


def test_the_ruler_leaves_comments_out_by_the_host_and_by_the_script(host_options: SimpleNamespace) -> None:
    text = "a cat // AND x\n# [a:b:3]"
    for is_on, comments, expected in (
        (False, "as syntax", ["a cat //", " x\n# a", " x\n# b"]),
        (True, "//", ["a cat"]),
        (False, "# and //", ["a cat"]),
    ):
        host_options.enable_prompt_comments = is_on
        settings = Settings(enabled=True, comments=comments)
        reads = read_for_generation(text, 20, settings, readers_of(None)).reads
        assert [timed.text for timed in reads] == expected
        assert sum(issue.code == "comment" for timed in reads for issue in timed.read.issues) == 2 * (len(reads) == 1)
