"""Refusals of our script in a real WebUI (Forge, A1111), as its API and its page tell them; and Interrupt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from weighted_clip.hosts.webui.settings import NAMES

from ..web.chromium import Tab
from .webui_server import TITLE, APIError, WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]

TEXT = "a (red:1.3) cat"
PARAMETERS = (
    "a (dog:0.5)\nSteps: 2, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, Weighted CLIP: quantum, "
    "Weighted CLIP law: compel, Weighted CLIP padding: zoom, Weighted CLIP bind strength: 7"
)
CUTOFF = (
    "a (dog:0.5)\nSteps: 2, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 64x64, Weighted CLIP: {}, "
    "Weighted CLIP bind hide: cutoff"
)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"args": [True, "nonsense"]}, "Scheme must be one of"),
        ({"args": ["false"]}, "enabled must be true or false, got 'false'"),
        (
            {"args": [True, "a1111", *["none", "nested", "attention", "attend", "a1111", "auto", "", "full"], True]},
            "True",
        ),
        ({"args": [True, *["a1111"] * len(NAMES)]}, f"takes {len(NAMES)} values"),
        ({"args": {"enabled": True, "scheme": "comfy"}}, "a list of values in this order: enabled, scheme"),
        ({"enabled": True, "scheme": "comfy"}, "a list of values in this order: enabled, scheme"),
        ([True, "comfy"], "a list of values in this order: enabled, scheme"),
    ],
)
def test_a_wrong_request_answers_422_with_the_words_in_detail(webui: WebUIServer, entry: Any, words: str) -> None:
    with pytest.raises(APIError) as caught:
        webui.txt2img(TEXT, alwayson_scripts={TITLE: entry})
    assert caught.value.status == 422
    answer = json.loads(caught.value.body)
    assert words in answer["detail"]
    assert answer["error"] == "Weighted CLIP"


@pytest.mark.parametrize("scheme", ["masked_blend", "negpip"])
def test_an_interrupt_while_encoding_ends_as_the_webuis_own(webui: WebUIServer, scheme: str) -> None:
    """The picture is as far as it got: the noise that it began with."""
    # the WebUI encodes nothing that it has encoded last
    words = scheme + " ".join(f"(word{number}:0.{number + 100})" for number in range(20))
    own = webui.txt2img(words, fail_at=-1)
    ours = webui.txt2img(words, script=(True, scheme), fail_at=-1)
    assert ours.equals(own)
    assert not own.equals(webui.txt2img(words))
    # nothing is left of it
    done = webui.txt2img(words, script=(True, scheme))
    assert not done.equals(own)
    assert done.equals(webui.txt2img(words, script=(True, scheme)))


def paste(webui_tab: Tab, parameters: str) -> None:
    """Let the arrow below Generate read the parameters of an image out of the prompt box."""
    webui_tab.run("const box = document.querySelector('#txt2img_prompt textarea'); box.focus(); box.select()")
    webui_tab.paste(parameters)
    webui_tab.wait("document.querySelector('#paste').click(); return true")


def test_what_cannot_be_pasted_is_said_and_no_menu_is_left_blank(webui_tab: Tab) -> None:
    paste(webui_tab, PARAMETERS)
    told = "document.querySelector('#tab_txt2img [id$=weighted_clip_pasted]')?.innerText ?? ''"
    text = webui_tab.wait(f"const told = {told}; return told.includes('quantum') && told")
    assert "'zoom'" in text
    assert "Strength must be 0 to 1, got 7.0" in text
    value = (
        "const value = (name) => [...document.querySelectorAll(`#tab_txt2img [id$=weighted_clip_${name}]`)]"
        "  .map((one) => one.matches('input') ? one : one.querySelector('input')).filter(Boolean)[0]?.value;"
    )
    webui_tab.wait(
        f"{value} const shown = ['scheme', 'padding', 'law'].map((name) => value(name)?.split(':')[0]);"
        "return shown.join() === 'a1111,attend,compel'"
    )
    # what the user goes on to change is no longer what was pasted
    webui_tab.run(
        "const box = document.querySelector('#script_txt2img_weighted_clip_bind textarea'); box.value = 'cat';"
        "box.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    webui_tab.wait(f"return !({told})")
    paste(webui_tab, PARAMETERS)
    webui_tab.wait(f"const told = {told}; return told.includes('quantum') && told")
    paste(webui_tab, CUTOFF.format("comfy"))
    webui_tab.wait(f"return !({told})")
