"""Generation data against Forge's reader, and what Forge's reader loses."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.infotext import Infotext, read_infotext


@pytest.mark.cases("infotext")
def test_generation_data_equals_forges(case: dict) -> None:
    found = read_infotext(case["text"])
    settings = {}
    for name, value in found.settings.items():
        if size := re.fullmatch(r"(\d+)x(\d+)", value):
            settings[f"{name}-1"], settings[f"{name}-2"] = size.groups()
        else:
            settings[name] = value
    assert {**settings, "Prompt": found.prompt, "Negative prompt": found.negative} == case["expected"]


def test_a_prompt_whose_last_line_has_three_weights_is_a_prompt() -> None:
    text = "a still life\n(red:1.2), (cat:1.3), (dog:1.1)"
    assert read_infotext(text) == Infotext(text)


def test_lists_of_civitai_stay_whole() -> None:
    resources = [{"type": "lora", "weight": 0.8, "modelName": 'a, "b": c'}, {"type": "embed"}]
    line = f"Steps: 20, Sampler: Euler a, Seed: 7, Civitai resources: {json.dumps(resources)}, Civitai metadata: {{}}"
    settings = read_infotext(f"a cat\nNegative prompt: x\n{line}").settings
    assert json.loads(settings["Civitai resources"]) == resources and settings["Civitai metadata"] == "{}"
    broken = read_infotext("a\nSteps: 20, Sampler: Euler a, Seed: 7, Civitai resources: [{, Size: 8x8").settings
    assert broken["Civitai resources"] == "[{" and broken["Size"] == "8x8"


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="\n"), min_size=1))
def test_a_quoted_setting_comes_back(prompt: str, value: str) -> None:
    line = f"Steps: 20, Sampler: Euler a, Seed: 7, Note: {json.dumps(value, ensure_ascii=False)}"
    found = read_infotext(f"{prompt}\n{line}")
    assert found.settings["Note"] == value and found.settings["Steps"] == "20"


@pytest.mark.parametrize(
    "text", ["aa:" * 300_000, 'aa:"' * 250_000, "Steps: 1, " * 90_000, "Civitai resources:[1," * 40_000]
)
def test_hostile_lines_are_read_in_one_pass(text: str) -> None:
    assert len(read_infotext(f"a\nSteps: 1, Sampler: b, Seed: 2, {text}").settings) >= 3
