"""Phrases kept apart by our script in a real WebUI (Forge, A1111), through its API."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from .webui_server import APIError, Generation, WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]

CLOSE = 1e-4
"""Largest difference of two programs' conditioning in float32; its values are around 1."""
TEXT = "a photo of a red cat, a blue dog and a (mat:1.2)"
PHRASES = "red cat\nblue dog"
CHOICES: dict[str, dict[str, Any]] = {
    "whole phrases": {"bind": PHRASES},
    "alone, half": {"bind": PHRASES, "bind_rest": "alone", "bind_strength": 0.5},
    "these words": {"bind": PHRASES, "bind_hide": "these words", "bind_words": "red\nblue"},
    "cutoff": {"scheme": "a1111_no_norm", "bind_hide": "cutoff", "bind_words": "red, blue", "bind_strength": 0.5},
}
DEFAULTS: dict[str, Any] = {
    **{"scheme": "a1111", "normalization": "none", "law": "nested", "mask_method": "attention", "padding": "attend"},
    **{"syntax": "a1111", "finest_step": "auto", "bind": "", "bind_rest": "full", "bind_strength": 1.0},
    **{"bind_hide": "whole phrases", "bind_words": ""},
}
"""Our script's controls after the first."""


def script(**choices: Any) -> tuple[Any, ...]:
    return (True, *{**DEFAULTS, **choices}.values())


@pytest.mark.parametrize("name", CHOICES)
def test_phrases_are_kept_apart_as_by_our_own_encoder(webui: WebUIServer, native: Any, name: str) -> None:
    made = webui.txt2img(TEXT, negative_prompt=TEXT, steps=1, script=script(**CHOICES[name]), probe=True)
    assert made.seen is not None
    expected = native(TEXT, **{"scheme": "a1111", **CHOICES[name]})
    assert (made.seen.cond - expected).abs().max() <= CLOSE
    plain = native(TEXT, scheme=CHOICES[name].get("scheme", "a1111"))
    assert (made.seen.cond - plain).abs().max() > 0.01
    assert (made.seen.uncond - plain).abs().max() <= CLOSE
    passes = 4 if name == "alone, half" else 3
    assert f"Weighted CLIP: 2 phrases kept apart in {passes} passes, {passes} encodings" in made.seen.comments


def test_strength_0_and_no_phrases_are_the_script_without_them(webui: WebUIServer) -> None:
    plain = webui.txt2img(TEXT, script=script())
    assert webui.txt2img(TEXT, script=script(bind=PHRASES, bind_strength=0.0)).equals(plain)
    assert webui.txt2img(TEXT, script=(True, "a1111")).equals(plain)
    assert not webui.txt2img(TEXT, script=script(bind=PHRASES)).equals(plain)


def test_each_text_of_an_edited_prompt_binds_the_phrases_it_has(webui: WebUIServer, native: Any) -> None:
    text = "a [red cat:green hat:0.5] and a blue dog"
    made = webui.txt2img(text, steps=2, script=script(bind=PHRASES), probe=True)
    assert made.seen is not None
    texts = {"a red cat and a blue dog": PHRASES, "a green hat and a blue dog": "blue dog"}
    for cond, (one, bind) in zip(made.seen.conds, texts.items(), strict=True):
        assert (cond - native(one, scheme="a1111", bind=bind)).abs().max() <= CLOSE


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"bind": "red cat\na bird"}, "“a bird” is not in the prompt"),
        ({"bind": "red cat\ncat"}, "overlap"),
        ({"bind_hide": "cutoff", "bind_words": "red"}, "With weights, cutoff goes with"),
    ],
)
def test_what_cannot_be_bound_stops_the_generation(webui: WebUIServer, choices: dict[str, Any], words: str) -> None:
    with pytest.raises(APIError) as caught:
        webui.txt2img(TEXT, script=script(**choices))
    assert words in caught.value.body
    assert webui.txt2img(TEXT, script=(False,)).equals(webui.txt2img(TEXT))


def test_parameters_come_back_when_pasted(webui: WebUIServer) -> None:
    """Lines of phrases too; the parameters of an image are one line."""
    choices = {**CHOICES["these words"], "bind_rest": "alone", "bind_strength": 0.35}
    made = webui.txt2img(TEXT, script=script(**choices))
    extra = made.info["extra_generation_params"]
    assert {key: value for key, value in extra.items() if key.startswith("Weighted CLIP bind")} == {
        "Weighted CLIP bind": PHRASES,
        "Weighted CLIP bind rest": "alone",
        "Weighted CLIP bind strength": 0.35,
        "Weighted CLIP bind hide": "these words",
        "Weighted CLIP bind words": "red\nblue",
    }
    paste = partial(webui.txt2img, TEXT, styles=[], hr_additional_modules=["Use same choices"])
    pasted: Generation = paste(infotext=made.infotext)
    assert pasted.equals(made)
    assert pasted.infotext == made.infotext
