"""Pictures of our WebUI script drawn again: what its code writes into them gives ComfyUI's nodes its own rows."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.a1111.parameters import Parameters, read_parameters
from weighted_clip.hosts.comfy.attention.marker import fields_of
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.infotext import read_infotext
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.script_settings import as_emphasized
from weighted_clip.weighting.timed.schedule import COUNTERS, read_timed, runs
from weighted_clip.weighting.towers import Reader, read_together

from .fake_comfy import CONFIG, FakeClip, encode, native, node

PROMPT = "a (red cat:1.3) and a (blue dog:0.4) on a [mat], “old” house"
NUMBERS = "Steps: 20, Sampler: Euler, Schedule type: Automatic, CFG scale: 7, Seed: 1, Size: 64x64, RNG: CPU"
BOUND = {"bind": "red cat\nblue dog", "bind_strength": 0.5}
SCRIPTS: dict[str, dict[str, Any]] = {
    **{scheme: {"scheme": scheme} for scheme in SCHEMES},
    "a new page": {"scheme": "masked_blend", "above_one": "as the WebUI"},
    "fading": {"scheme": "masked_blend", "law": "compel", "mask_method": "remove", "padding": "mask"},
    "normalized": {"scheme": "comfy", "normalization": "length+mean", "padding": "clean"},
    "ComfyUI's syntax": {"scheme": "comfy", "syntax": "comfy"},
    "compel's syntax": {"scheme": "compel", "syntax": "compel", "law": "compel"},
    "no syntax": {"scheme": "masked_blend", "syntax": "none"},
    "repeated": {"scheme": "repeat", "finest_step": "4"},
    "bound": {"scheme": "a1111", **BOUND, "bind_rest": "alone"},
    "bound words": {**BOUND, "bind_hide": "these words", "bind_words": "red, blue"},
    "cutoff": {"scheme": "comfy", "bind_hide": "cutoff", "bind_words": "red, blue", "bind_strength": 0.5},
}


def quoted_by_the_webui(value: object) -> str:
    """A value of its infotext: quoted if it has a comma, a colon or a line break."""
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(mark in text for mark in ",:\n") else text


def infotext_of(
    settings: Settings, mode: str, prompt: str = PROMPT, negative: str = "(ugly:1.4), (red cat:0.7)"
) -> str:
    """Text of a picture made with our script."""
    values = {**settings.infotext(), **({} if mode == "Original" else {"Emphasis": mode})}
    more = "".join(f", {name}: {quoted_by_the_webui(value)}" for name, value in values.items())
    return f"{prompt}\nNegative prompt: {negative}\n{NUMBERS}{more}"


def read(text: str) -> Parameters:
    return read_parameters(read_infotext(text), "CPU")


def names(found: Parameters) -> list[str]:
    """Settings that are not used."""
    return [row.name for row in found.rows if row.advice]


def encoded(text: str, settings: Any, **inputs: Any) -> dict[str, Any]:
    return encode("A1111Encode", FakeClip(), text, settings=settings, **inputs)


@pytest.mark.parametrize("mode", ["Original", "No norm", "Ignore", "None"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_rows_are_the_scripts(script: dict[str, Any], mode: str) -> None:
    settings = Settings(True, **script)
    found = read(infotext_of(settings, mode))
    assert names(found) == []
    # the WebUI cleans texts by itself before the script has them
    options = replace(as_emphasized(settings.options(), mode), cleaning="as Forge")
    rows = encoded(found.prompt, found.settings)["result"][0][0][0]
    assert torch.equal(rows, native(PROMPT, **vars(options)))
    options = replace(options, bind_strength=0.0)
    rows = encoded(found.negative, found.negative_settings)["result"][0][0][0]
    assert torch.equal(rows, native("(ugly:1.4), (red cat:0.7)", **vars(options)))


@pytest.mark.parametrize("mode", ["Original", "No norm", "Ignore", "None"])
def test_a_picture_without_the_script_is_read_as_the_node_reads_by_emphasis(mode: str) -> None:
    text = infotext_of(Settings(), mode).replace(", Weighted CLIP: a1111", "")
    assert "Weighted" not in text
    found = read(text)
    assert names(found) == []
    for prompt, settings in ((found.prompt, found.settings), (found.negative, found.negative_settings)):
        by_menu = encode("A1111Encode", FakeClip(), prompt, emphasis=mode)["result"][0][0][0]
        assert torch.equal(encoded(prompt, settings)["result"][0][0][0], by_menu)


@pytest.mark.parametrize(
    ("data", "options"),
    [
        ({"positive_prompt": "a (red)1.3 cat-- AND a dog # 1", "seed": 1}, {"syntax": "compel", "scheme": "compel"}),
        ({"sui_image_params": {"prompt": "a (red:1.3) [cat:dog:0.5] AND # a"}}, {"syntax": "comfy"}),
        ({"v4_prompt": {}, "prompt": "{{red}} 1.5::cat::, [dog:x:0.5]"}, {"syntax": "novelai", "scheme": "a1111"}),
        ({"c": "a [cat:dog:0.5] (red:1.3) AND", "uc": "x"}, {"syntax": "a1111", "scheme": "a1111"}),
    ],
    ids=["InvokeAI", "SwarmUI", "NovelAI", "Draw Things"],
)
def test_a_prompt_of_another_program_is_read_in_its_syntax_without_times(
    data: dict[str, Any], options: dict[str, str]
) -> None:
    found = read(json.dumps(data))
    entries = encoded(found.prompt, found.settings)["result"][0]
    assert len(entries) == 1
    assert torch.equal(entries[0][0], native(found.prompt, **options))


EDITED = "a [red:very blue:0.5] (cat:1.4) on a [mat|(sofa:0.7)]"


def together(groups: list[list[str]], options: EncodeOptions) -> list[dict[str, torch.Tensor]]:
    """Rows of texts as our script encodes them, which the WebUI asks for in groups."""
    readers = {"clip_l": Reader(default_tokenizer())}
    encoders = Encoders(readers, {"clip_l": TextEncoder(seeded_text_model(CONFIG))})
    texts = [text for group in groups for text in group]
    kept = read_together(texts, options, readers)["clip_l"][0].kept or ()
    found = [encoders.prepare_together(group, options, kept).run() for group in groups]
    return [
        {text: one.hidden for text, one in zip(group, some, strict=True)}
        for group, some in zip(groups, found, strict=True)
    ]


@pytest.mark.parametrize("scheme", ["a1111", "masked_blend", "unweighted"])
@pytest.mark.parametrize("padding", ["attend", "drop"])
@pytest.mark.parametrize("prompt", [EDITED, f"{EDITED} AND a (dog:0.5):0.6", f"[{'red ' * 80}:blue:4] (cat:1.3)"])
def test_texts_of_an_edited_prompt_are_encoded_together(scheme: str, padding: str, prompt: str) -> None:
    settings = Settings(True, scheme, padding=padding)
    found = read(infotext_of(settings, "Original", prompt))
    conditioning = encoded(prompt, found.settings, steps=8)["result"][0]
    branches = read_timed(prompt, 8).branches
    groups = [[one.text for one in branch.texts] for branch in branches]
    rows = together(groups, replace(settings.options(), cleaning="as Forge"))
    expected = [
        own[run.fragment.text]
        for branch, own in zip(branches, rows, strict=True)
        for run in runs(branch, 8, COUNTERS[0])
    ]
    assert len(conditioning) == len(expected) > 1
    for (own, _), wanted in zip(conditioning, expected, strict=True):
        assert torch.equal(own, wanted)


def test_phrases_are_placed_as_by_place_phrase() -> None:
    places = "red cat: left half ~0.1, 0-0.4, outside 0.2\nblue dog: inside 2, 0-3 steps\ngreen bird: right half"
    found = read(infotext_of(Settings(True, "comfy", places=places), "Original"))
    conditioning, report = encoded(found.prompt, found.settings)["result"]
    expected = encoded(found.prompt, read(infotext_of(Settings(True, "comfy"), "Original")).settings)["result"][0]
    for inputs in (
        {"phrase": "red cat", "inside": 1.0, "outside": 0.2, "area": "left half ~0.1", "end": 0.4},
        {"phrase": "blue dog", "inside": 2.0, "outside": 0.0, "area": "", "end": 3.0, "unit": "steps"},
    ):
        placing = {"start": 0.0, "unit": "percent", **inputs}
        expected = node("Place").place(conditioning=expected, **placing)["result"][0]
    (rows, values), (wanted, others) = conditioning[0], expected[0]
    assert torch.equal(rows, wanted)
    assert [*map(str, fields_of(values))] == [*map(str, fields_of(others))]
    assert len(fields_of(values)) == 2
    assert "“green bird: right half” places nothing" in report
    assert not fields_of(encoded(found.negative, found.negative_settings)["result"][0][0][1])


def test_words_of_the_negative_prompt_that_are_text_in_the_webui_are_text() -> None:
    text = "a AND b <lora:ink:1>"
    found = read(infotext_of(Settings(True, "comfy"), "Original", negative=text))
    conditioning = encoded(found.negative, found.negative_settings)["result"][0]
    assert len(conditioning) == 1
    assert torch.equal(conditioning[0][0], native(text, syntax="a1111", has_tags=False))
    assert len(encoded("a AND b", found.settings)["result"][0]) == 2


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("Weighted CLIP: dadaism", "scheme must be one of"),
        ("Weighted CLIP: comfy, Weighted CLIP law: chaos", "law must be one of"),
        ("Weighted CLIP: comfy, Weighted CLIP bind strength: nan", "bind_strength must be 0 to 1"),
        ('Weighted CLIP: comfy, Weighted CLIP places: "red cat: nowhere"', "nowhere"),
        ("Weighted CLIP: comfy, Weighted CLIP quirks: False", "not used"),
        ("Weighted CLIP: comfy, Weighted CLIP of the future: yes", "not used"),
        ("Weighted CLIP law: compel", "not used"),
        ("Emphasis: Shouting", "Original, No norm, Ignore, None"),
    ],
)
def test_an_entry_that_is_not_used_is_the_first_line(entry: str, said: str) -> None:
    found = read(f"{PROMPT}\n{NUMBERS}, {entry}")
    first = found.report()[0]
    assert first.startswith(entry.rpartition(", ")[2].partition(":")[0])
    assert said in first
    assert isinstance(found.settings.options, EncodeOptions)


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="must come from Read Generation Data"):
        encoded("a cat", "masked_blend")
    with pytest.raises(ValueError, match="must come from"):
        encoded("a cat", SimpleNamespace())
