"""The script's setting *Above 1*: below 1 words are blended, above 1 the WebUI's own emphasis acts, bit for bit."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.webui.engines import WebUIError, engines_of
from weighted_clip.hosts.webui.settings import FIRST, Settings, first_values
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes import SCHEMES

from . import fake_webui as fake
from .test_webui import KINDS, LONG, PROMPT, conditioning

RAISED = "a (red:1.4) cat and a dog, (very:1.2) far"
RAISED_LONG = "a (photo:1.2) of a cat on a mat, " * 9
LOWERED = "a red cat and a (dog:0.5), (far:0.1) away, [bowl]"
NEGATIVE = "a (red:-1) cat and a (dog:1.5)"
TEXTS = ("=>".join((RAISED, RAISED_LONG, "plain")), RAISED, RAISED_LONG, "", "(all:1.5)")
MODES = ("Original", "No norm", "Ignore", None, "of another host")
WEBUI = {"scheme": "masked_blend", "above_one": "as the WebUI"}


def of_the_host(rows: Tensor, weights: Tensor, mode: str | None) -> Tensor:
    """The WebUI's emphasis: one chunk of every text, ``[texts, 77, dim]``, by weights ``[texts, 77]``."""
    if mode == "Ignore":
        return rows
    scaled = rows * weights.unsqueeze(-1)
    return scaled if mode == "No norm" else scaled * (rows.mean() / scaled.mean())


def chunks_of(texts: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
    """Ids and weights of each column of chunks of some texts, both ``[texts, 77]``."""
    options = EncodeOptions(syntax="a1111", scheme="a1111")
    reads = [read_prompt(text, options, default_tokenizer()).chunks for text in texts]
    [empty] = read_prompt("", options, default_tokenizer()).chunks
    columns = [[one[index] if index < len(one) else empty for one in reads] for index in range(max(map(len, reads)))]
    return [
        (torch.tensor([chunk.ids for chunk in some]), torch.tensor([chunk.weights for chunk in some]))
        for some in columns
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_below_1_it_is_the_webui_bit_for_bit(
    kind: str, mode: str | None, request: pytest.FixtureRequest, host_options: SimpleNamespace
) -> None:
    if mode is not None:
        host_options.emphasis = mode
    model = request.getfixturevalue(kind)
    engine = next(iter(engines_of(model).values())).owner
    for texts in TEXTS:
        [ours] = conditioning(model, texts, **WEBUI)
        with torch.no_grad():
            columns = [
                of_the_host(engine.encode_with_transformers(ids), weights, mode)
                for ids, weights in chunks_of(texts.split("=>"))
            ]
        assert torch.equal(ours, torch.hstack(columns))
        [comfy] = conditioning(model, texts, scheme="masked_blend")
        assert torch.equal(ours, comfy) == (not texts)


@pytest.mark.parametrize("mode", [*MODES, "None"])
@pytest.mark.parametrize("law", ["nested", "compel"])
@pytest.mark.parametrize("mask_method", ["attention", "token", "remove"])
def test_without_weights_above_1_it_is_masked_blend_bit_for_bit(
    forge: fake.ForgeModel, mode: str | None, law: str, mask_method: str, host_options: SimpleNamespace
) -> None:
    if mode is not None:
        host_options.emphasis = mode
    for texts in (LOWERED, "=>".join((LOWERED, "plain", LOWERED * 9))):
        choices = {"scheme": "masked_blend", "law": law, "mask_method": mask_method}
        [ours] = conditioning(forge, texts, **choices, above_one="as the WebUI")
        [theirs] = conditioning(forge, texts, **choices)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mode", ["Original", "No norm", "Ignore"])
@pytest.mark.parametrize("law", ["nested", "compel"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_both_the_emphasis_acts_on_the_blended_rows(
    kind: str, law: str, mode: str, request: pytest.FixtureRequest, host_options: SimpleNamespace
) -> None:
    host_options.emphasis = mode
    model = request.getfixturevalue(kind)
    texts = (PROMPT, LONG, "a (dog:0.5) alone", "a (cat:1.3)", NEGATIVE)
    [ours] = conditioning(model, "=>".join(texts), law=law, **WEBUI)
    blended = []
    for text in texts:  # words above 1 at 1, in brackets still
        cut = reduce(lambda text, weight: text.replace(weight, ":1"), (":1.2", ":1.3", ":1.4", ":1.5"), text)
        [rows] = conditioning(model, cut, law=law, scheme="masked_blend")
        blended.append(rows)
    [padding] = conditioning(model, "", scheme="a1111")
    blended = torch.cat(
        [torch.cat([rows, *[padding] * (ours.shape[1] // 77 - rows.shape[1] // 77)], 1) for rows in blended]
    )
    for index, (_, weights) in enumerate(chunks_of(texts)):
        rows = slice(77 * index, 77 * index + 77)
        theirs = of_the_host(blended[:, rows].double(), weights.clamp(min=1).double(), mode)
        torch.testing.assert_close(ours[:, rows].double(), theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("law", ["nested", "compel"])
def test_a_text_alone_is_the_same_as_by_its_own_chunks(forge: fake.ForgeModel, law: str) -> None:
    """In syntaxes with parts of a prompt, which no column can hold, each prompt has its own mean."""
    choices = {"syntax": "compel", "law": law, **WEBUI}
    [one] = conditioning(forge, "a (red)1.4 cat and a (dog)0.5", **choices)
    [two] = conditioning(forge, '("a (red)1.4 cat and a (dog)0.5", "a (bird)1.2").and()', **choices)
    torch.testing.assert_close(two[:, :77], one, atol=2e-5, rtol=0)
    [bird] = conditioning(forge, "a (bird:1.2)", scheme="a1111")
    torch.testing.assert_close(two[:, 77:], bird, atol=2e-5, rtol=0)


@pytest.mark.parametrize("padding", ["mask", "drop", "clean", "clean EOS too"])
def test_padding_is_treated_after_the_emphasis(forge: fake.ForgeModel, padding: str) -> None:
    [ours] = conditioning(forge, PROMPT, padding=padding, **WEBUI)
    if padding == "mask":
        [lowered] = conditioning(forge, LOWERED, padding=padding, **WEBUI)
        assert torch.equal(lowered, conditioning(forge, LOWERED, padding=padding, scheme="masked_blend")[0])
        [raised] = conditioning(forge, RAISED, padding=padding, **WEBUI)
        assert torch.equal(raised, conditioning(forge, RAISED, padding=padding, scheme="a1111")[0])
        return
    [plain] = conditioning(forge, PROMPT, **WEBUI)
    count = len(default_tokenizer()("a red cat and a dog in a bowl far away")) + 1
    torch.testing.assert_close(ours[:, :count], plain[:, :count], atol=0, rtol=0)
    [empty] = conditioning(forge, "", scheme="a1111")
    if padding == "drop":
        assert ours.shape[1] == count + 1
    else:
        torch.testing.assert_close(ours[:, count + 1 :], empty[:, count + 1 :], atol=1e-6, rtol=0)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "masked_blend"])
def test_no_other_scheme_reads_it(forge: fake.ForgeModel, scheme: str) -> None:
    for text in (PROMPT, "=>".join((PROMPT, "a (cat:1.3)"))):
        if scheme == "repeat" and "=>" in text:
            continue
        one, two = (fake.armed(forge, scheme=scheme, above_one=value) for value in ("as ComfyUI", "as the WebUI"))
        assert torch.equal(one.setup_conds(text)[0], two.setup_conds(text)[0])
        assert one.extra_generation_params == two.extra_generation_params


def test_emphasis_none_reads_no_brackets_and_applies_no_weight(
    forge: fake.ForgeModel, host_options: SimpleNamespace
) -> None:
    host_options.emphasis = "None"
    [ours] = conditioning(forge, "a (red:1.4) cat", **WEBUI)
    [plain] = conditioning(forge, "a (red:1.4) cat", syntax="none", scheme="unweighted")
    assert torch.equal(ours, plain)
    [ours] = conditioning(forge, "a (red)1.4 cat", syntax="compel", **WEBUI)
    [plain] = conditioning(forge, "a red cat", scheme="unweighted")
    assert torch.equal(ours, plain)


def test_what_does_not_count_is_told_once(forge: fake.ForgeModel, host_options: SimpleNamespace) -> None:
    def told(texts: str, **more: Any) -> list[str]:
        generation = fake.armed(forge, **WEBUI, **more)
        generation.setup_conds(texts)
        return list(generation.comments)

    assert told(PROMPT) == []
    [negative] = told("=>".join((PROMPT, NEGATIVE)))
    assert "The weight -1 acts as 0" in negative
    host_options.emphasis = "Ignore"
    for texts in (RAISED, PROMPT, "=>".join((LOWERED, PROMPT))):
        [line] = told(texts)
        assert "emphasis mode is Ignore" in line
    assert told(LOWERED) == []


def test_a_request_without_it_is_as_ever_and_a_page_begins_with_the_webui(forge: fake.ForgeModel) -> None:
    """The host fills in what the menus begin with; the page's own answer comes back as plain text."""
    first = [True, *list(FIRST.values())[1:]]
    number = list(FIRST).index("above_one")
    assert str(first[number]) == "as the WebUI"
    page = json.loads(json.dumps(first))
    for values, expected in (
        ([True, "masked_blend"], "as ComfyUI"),
        ([True, "masked_blend", *first[2:]], "as ComfyUI"),
        ([*page[:number], *first[number:]], "as ComfyUI"),
        (page, "as the WebUI"),
    ):
        assert Settings.of(values).above_one == expected
        parameters = fake.armed(forge, *values[1:]).extra_generation_params
        noted = {"Weighted CLIP above one": "as the WebUI"} if expected == "as the WebUI" else {}
        assert parameters == {"Weighted CLIP": "masked_blend", **noted}


@pytest.mark.parametrize(
    "value", [None, float("nan"), True, 0, "as A1111", "AS THE WEBUI", ["as the WebUI"], {}, "<b>"]
)
def test_another_value_of_a_request_is_quoted(forge: fake.ForgeModel, value: Any) -> None:
    with pytest.raises(WebUIError, match="Above 1 must be one of: as ComfyUI, as the WebUI; got ") as caught:
        conditioning(forge, "a cat", scheme="a1111", above_one=value)
    assert str(caught.value).endswith(repr(value))
    assert vars(caught.value)["status_code"] == 422


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "as the WebUI"),  # the host has written down what it saw
        ({"Weighted CLIP/value": True}, "as ComfyUI"),
        ({"Scheme/value": "compel"}, "as ComfyUI"),
        ({"Law/value": "compel"}, "as ComfyUI"),
        ({"Weighted CLIP/value": True, "Above 1/value": "as the WebUI"}, "as the WebUI"),
        (None, "as the WebUI"),
        ("not JSON", "as the WebUI"),
        ("[1]", "as the WebUI"),
        ("\udcff", "as the WebUI"),
    ],
)
def test_defaults_saved_before_it_was_there_mean_what_they_meant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: Any, expected: str
) -> None:
    file = tmp_path / "ui-config.json"
    if isinstance(changed, str):
        file.write_bytes(changed.encode("utf-8", "surrogateescape"))
    elif changed is not None:
        ours = {
            **{"Weighted CLIP/value": False, "Weighted CLIP/visible": True, "Scheme/value": "masked_blend"},
            **{"Law/value": "nested", "Padding/value": "attend", "Strength/value": 1, "Strength/maximum": 1},
            **{"Keep apart/value": "", "Word maps/value": False, **changed},
        }
        entries = {f"customscript/weighted_clip.py/txt2img/{key}": value for key, value in ours.items()}
        entries |= {"txt2img/Steps/value": 30, "customscript/other.py/txt2img/Law/value": "other"}
        file.write_text(json.dumps(entries))
    shared = sys.modules["modules.shared"]
    assert isinstance(shared, ModuleType)
    monkeypatch.setattr(shared, "cmd_opts", SimpleNamespace(ui_config_file=str(file)), raising=False)
    assert first_values()["above_one"] == expected
    assert {**first_values(), "above_one": ""} == {**FIRST, "above_one": ""}


def test_a_host_without_such_a_file_begins_as_a_new_page() -> None:
    assert first_values() is FIRST
