"""The setting *Above 1* of our script in a real WebUI (Forge, A1111), through its API."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from weighted_clip.hosts.webui.settings import Settings

from .test_forge import CLOSE, difference
from .webui_server import LORA_TAG, APIError, Generation, WebUIServer

pytestmark = [pytest.mark.host, pytest.mark.slow]

OFF = (False,)
BLEND = (True, "masked_blend")
SETTINGS = {**vars(Settings()), "enabled": True, "scheme": "masked_blend"}
WEBUI = tuple({**SETTINGS, "above_one": "as the WebUI"}.values())
LONG = "a (photo:1.2) of a very (small:1.4) cat, " * 12
RAISED: dict[str, dict[str, Any]] = {
    "weights": {"prompt": "a photo of a (red:1.3) cat", "negative_prompt": "(ugly:1.4), blurry"},
    "editing and alternation": {"prompt": "a [(cat:1.3):dog:0.5] on a [mat::1], [red|(blue:1.6)]", "steps": 3},
    "AND": {"prompt": "a (cat:1.3) AND a (dog:1.7) on a mat :0.6"},
    "several chunks": {"prompt": f"{LONG} BREAK a (dog:1.7)", "negative_prompt": LONG},
    "LoRA": {"prompt": f"a (red:1.3) cat <lora:{LORA_TAG}:0.8>, (seeded-embedding:1.2)"},
    "hires fix": {
        **{"prompt": "a (cat:1.3)", "enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent"},
        **{"hr_second_pass_steps": 2, "denoising_strength": 0.7, "hr_prompt": "a (dog:1.3), [blue:green:0.5]"},
        **{"hr_negative_prompt": "(bad:1.5)", "hr_cfg": 7.0, "hr_additional_modules": ["Use same choices"]},
    },
}
LOWERED = {"prompt": "a [(cat:0.4):dog:0.5] on a [mat|(rug:0.7)]", "negative_prompt": "[ugly], (bad:0)", "steps": 3}
MODES = ("Original", "No norm", "Ignore", "None")


def made(webui: WebUIServer, mode: str, request: dict[str, Any], script: tuple[Any, ...]) -> Generation:
    return webui.txt2img(**request, script=script, probe=True, override_settings={"emphasis": mode})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", RAISED)
def test_without_weights_below_1_nothing_changes_by_a_bit(webui: WebUIServer, name: str, mode: str) -> None:
    off, ours = (made(webui, mode, RAISED[name], script) for script in (OFF, WEBUI))
    assert difference(ours, off) == 0
    assert ours.equals(off)
    assert "Weighted CLIP above one: as the WebUI" in ours.infotext


@pytest.mark.parametrize("mode", MODES)
def test_without_weights_above_1_it_is_masked_blend_to_the_bit(webui: WebUIServer, mode: str) -> None:
    off, comfy, ours = (made(webui, mode, LOWERED, script) for script in (OFF, BLEND, WEBUI))
    assert difference(ours, comfy) == 0
    assert ours.equals(comfy)
    assert (difference(ours, off) > 0.01) == (mode != "None")  # which leaves no weights


@pytest.mark.parametrize("mode", ["Original", "No norm", "Ignore"])
def test_with_both_the_emphasis_acts_on_the_blended_rows(webui: WebUIServer, native: Any, mode: str) -> None:
    ours = made(webui, mode, {"prompt": "a (red:1.4) cat and a (dog:0.5)"}, WEBUI)
    assert ours.seen is not None
    rows = native("a red cat and a (dog:0.5)", scheme="masked_blend")
    scaled = rows.clone()
    scaled[2] *= 1.0 if mode == "Ignore" else 1.4
    expected = scaled * (rows.mean() / scaled.mean()) if mode == "Original" else scaled
    assert (ours.seen.cond - expected).abs().max() <= CLOSE
    comfy = made(webui, mode, {"prompt": "a (red:1.4) cat and a (dog:0.5)"}, BLEND)
    assert difference(ours, comfy) > 0.01


def test_parameters_come_back_when_pasted(webui: WebUIServer) -> None:
    text = "a (red:1.4) cat and a (dog:0.5)"
    comfy, ours = (webui.txt2img(text, script=script) for script in (BLEND, WEBUI))
    assert not ours.equals(comfy)
    assert "above one" not in comfy.infotext
    paste = partial(webui.txt2img, text, styles=[], hr_additional_modules=["Use same choices"])
    for one in (ours, comfy):
        pasted = paste(infotext=one.infotext)
        assert pasted.equals(one)
        assert pasted.infotext == one.infotext
    with pytest.raises(APIError, match="Above 1 must be one of: as ComfyUI, as the WebUI; got 'NaN'"):
        paste(infotext=ours.infotext.replace("as the WebUI", "NaN"))


@pytest.mark.parametrize("value", [None, "nan", "as A1111", True])
def test_another_value_is_refused_and_quoted(webui: WebUIServer, value: Any) -> None:
    with pytest.raises(APIError) as caught:
        webui.txt2img("a cat", script=tuple({**SETTINGS, "above_one": value}.values()))
    assert caught.value.status == 422
    assert f"Above 1 must be one of: as ComfyUI, as the WebUI; got {value!r}" in caught.value.body
