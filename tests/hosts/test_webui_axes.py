"""Our axes in the X/Y/Z plot of a real WebUI: every cell is the image that is made alone, and mistakes end in words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from weighted_clip.hosts.webui.script.axes import BIND, LABEL, MENUS, PLACES
from weighted_clip.hosts.webui.script.axis_values import STRENGTH, WEIGHT, WEIGHT_STRENGTH

from .webui_server import TITLE, APIError, WebUIServer, pixels_of

pytestmark = [pytest.mark.host, pytest.mark.slow]

PLOT = "x/y/z plot"
PROMPT = "a cat and a (dog:0.8) in a bowl"
SMALL = {"steps": 2, "seed": 1, "width": 64, "height": 64, "cfg_scale": 7.0, "sampler_name": "Euler"}
CUT = "a (cat on a mat"


def axes_of(webui: WebUIServer) -> list[str]:
    """The choices of the plot's first menu."""
    scripts = webui.api("/sdapi/v1/script-info")
    [plot] = [script for script in scripts if script["name"] == PLOT and not script["is_img2img"]]
    return plot["args"][0]["choices"]


def plotted(
    webui: WebUIServer, *axes: tuple[str, str | Sequence[str]], script: Sequence[Any] = (), **fields: Any
) -> dict[str, Any]:
    """The answer to a request for a plot: the grid, and each cell."""
    known = axes_of(webui)
    args: list[Any] = []
    for title, values in axes:
        written = isinstance(values, str)
        args += [known.index(LABEL + title), values if written else "", [] if written else list(values)]
    args += [0, "", []] * (3 - len(axes))
    args += [True, True, False, False, False, False, False, 0, False]  # legend, cells, no sub-grids; menus
    data = {"prompt": PROMPT, **SMALL, **fields, "script_name": PLOT, "script_args": args}
    if script:
        data["alwayson_scripts"] = {TITLE: {"args": list(script)}}
    return webui.api("/sdapi/v1/txt2img", data)


def test_the_plot_has_our_axes(webui: WebUIServer) -> None:
    ours = [label.removeprefix(LABEL) for label in axes_of(webui) if label.startswith(LABEL)]
    menus = [title for title, _ in MENUS.values()]
    last = [STRENGTH, *menus[7:], WEIGHT_STRENGTH]
    assert ours == [*menus[:5], WEIGHT, PLACES, *menus[5:7], BIND, *last]  # a request counts them


def test_every_cell_is_the_image_made_alone(webui: WebUIServer) -> None:
    """Weights by schemes, with the script switched off in the request: the axis of schemes switches it on."""
    weights, schemes = ("0", "1"), ("off", "masked_blend")
    answer = plotted(webui, (WEIGHT, "dog: 0-1 [2]"), ("Scheme", schemes))
    grid, *cells = map(pixels_of, answer["images"])
    assert len(cells) == 4
    assert min(grid.shape[:2]) > 2 * 64
    infotexts = json.loads(answer["info"])["infotexts"][1:]
    for (scheme, weight), cell, infotext in zip(product(schemes, weights), cells, infotexts, strict=True):
        prompt = PROMPT.replace("(dog:0.8)", "dog" if weight == "1" else f"(dog:{weight})")
        alone = webui.txt2img(prompt, script=() if scheme == "off" else (True, scheme))
        assert np.array_equal(cell, alone.pictures[0]), (scheme, weight)
        assert infotext.splitlines()[0] == prompt
        assert (f"Weighted CLIP: {scheme}" in infotext) == (scheme != "off")
    assert not np.array_equal(cells[0], cells[2])
    assert np.array_equal(cells[1], cells[3])  # where all weights are 1 the scheme changes nothing


def test_axes_change_what_the_script_has(webui: WebUIServer) -> None:
    """Mask methods under the panel's own scheme and law."""
    prompt, panel = "a (red:0.3) cat and a (dog:0.5)", (True, "masked_blend", "none", "compel")
    methods = ("attention", "remove")
    cells = [*map(pixels_of, plotted(webui, ("Mask method", methods), script=panel, prompt=prompt)["images"][1:])]
    for method, cell in zip(methods, cells, strict=True):
        assert np.array_equal(cell, webui.txt2img(prompt, script=(*panel, method)).pictures[0]), method
    assert not np.array_equal(*cells)


def test_phrases_are_kept_apart_by_axes(webui: WebUIServer) -> None:
    prompt = "a red cat and a blue dog"
    axes = (BIND, "off, red cat / blue dog"), (STRENGTH, "0.5-1 [2]")
    cells = [*map(pixels_of, plotted(webui, *axes, script=(True, "comfy"), prompt=prompt)["images"][1:])]
    panel = (True, "comfy", "none", "nested", "attention", "attend", "a1111", "auto")
    alone = [
        webui.txt2img(prompt, script=(*panel, bind, "full", strength)).pictures[0]
        for strength in (0.5, 1.0)
        for bind in ("", "red cat\nblue dog")
    ]
    assert all(map(np.array_equal, cells, alone))
    assert not np.array_equal(cells[0], cells[1])
    assert not np.array_equal(cells[1], cells[3])


def test_a_weight_is_written_in_the_syntax_of_its_cell(webui: WebUIServer) -> None:
    answer = plotted(
        webui, (WEIGHT, "dog: 0.5"), ("Syntax", ("a1111", "compel")), script=(True, "comfy"), prompt="a dog"
    )
    prompts = [text.splitlines()[0] for text in json.loads(answer["info"])["infotexts"][1:]]
    assert prompts == ["a (dog:0.5)", "a (dog)0.5"]


def test_numbers_that_the_sampler_does_not_take_are_said(webui: WebUIServer) -> None:
    """Forge's Euler takes the churn, and writes down that of its settings alone."""

    def told(script: tuple[Any, ...], **fields: Any) -> list[str]:
        made = webui.txt2img("a cat", script=script, **fields)
        lines = made.info["extra_generation_params"].get("Weighted CLIP problems", [])
        return [line for line in lines if line.startswith(("s_", "eta"))]

    on = (True, "comfy")
    assert told(on) == []
    assert told((), s_churn=5.0) == []
    assert told(on, s_churn=5.0, sampler_name="Euler a") == [
        "s_churn 5.0 does nothing: the sampler Euler a does not take it."
    ]
    assert told(on, s_churn=5.0) == ["s_churn 5.0 took effect, but is not in the image's parameters."]
    acting, plain = (webui.txt2img("a cat", script=on, steps=6, **fields) for fields in ({"s_churn": 50.0}, {}))
    assert not acting.equals(plain)
    assert told(on, eta=0.5) == ["eta 0.5 does nothing: the sampler Euler does not take it."]


@pytest.mark.parametrize(
    ("title", "values", "message"),
    [
        ("Scheme", ["masked_blend", "quantum"], "Scheme must be one of: off, comfy, a1111"),
        ("Padding", [], "Padding: choose at least one value"),
        (WEIGHT, "bird: 0-1 [3]", "“bird” is in none of the prompts"),
        (WEIGHT, "dog: some", "expected a number such as 0.5, or a range such as 0-1 [5]"),
        (WEIGHT, "dog: 0," + "1," * 100_000, "the values have 200,007 characters"),
        (PLACES, "cat: left half, bird: top", "“bird” is in none of the prompts"),
        (PLACES, "off, ,cat: left half", "Places: value 2 of 3 is empty"),
        (BIND, "cat, bird", "“bird” is not in the prompt"),
        (STRENGTH, "0-2 [3]", "Strength must be 0 to 1, got 2"),
        ("Syntax", ["nai"], "Syntax must be one of: comfy, a1111"),
    ],
)
def test_a_wrong_value_is_refused_before_any_image(
    webui: WebUIServer, title: str, values: str | list[str], message: str
) -> None:
    plots = webui.log_text().count("X/Y/Z plot will create")
    with pytest.raises(APIError) as caught:
        plotted(webui, (title, values))
    assert message in caught.value.body
    assert webui.log_text().count("X/Y/Z plot will create") == plots


def test_problems_are_in_info_and_console_once(webui: WebUIServer) -> None:
    before = webui.log_text().count("never closed")
    made = webui.txt2img(CUT, script=(True,), n_iter=2, negative_prompt=CUT, probe=True)
    [problem] = made.info["extra_generation_params"]["Weighted CLIP problems"]
    assert "is never closed" in problem
    assert made.seen is not None
    assert made.seen.comments.count(problem) == 1
    assert webui.log_text().count("never closed") == before + 1
    assert all("never closed" not in infotext for infotext in made.info["infotexts"])
    assert "Weighted CLIP problems" not in webui.txt2img(CUT).info["extra_generation_params"]


def test_the_comma_setting_counts_as_in_the_host(webui: WebUIServer) -> None:
    """A1111 reads it, Forge has 20 built in: with the scheme a1111 the image is the host's own under any setting."""
    prompt = "word " * 70 + ", " + "other " * 20
    made = []
    for setting in (0, 20):
        settings = {"comma_padding_backtrack": setting}
        webui.txt2img("a cat")  # the host keeps the conditioning of the last prompt, and for that ignores the setting
        stock, ours = (
            webui.txt2img(prompt, script=script, override_settings=settings) for script in ((), (True, "a1111"))
        )
        assert ours.equals(stock)
        made.append(stock)
    assert made[0].equals(made[1]) == (webui.host.kind == "Forge")
