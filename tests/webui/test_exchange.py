"""Exchange of choices between the fields of the script and those of the tab."""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from weighted_clip.encoder.option import Option
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.script.exchange import ALONE, MAX_CHARACTERS, SHARED, options_for_tab, values_for_script
from weighted_clip.hosts.webui.script.lab import base_options
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.weighting.options import OPTIONS, PLACE_OPTIONS, EncodeOptions

CHANGED: dict[str, Any] = {
    **{"scheme": "masked_blend", "law": "compel", "mask_method": "token", "padding": "mask EOS too"},
    **{"normalization": "length+mean", "syntax": "compel", "finest_step": "4", "above_one": "as the WebUI"},
    **{"bind": "red: cat\nblue dog", "bind_rest": "alone", "bind_strength": 0.35, "bind_hide": "these words"},
    **{"bind_words": 'red "<b>"', "comments": "# and //"},
}


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modules.sd_hijack_clip", ModuleType("modules.sd_hijack_clip"))


def fields(values: dict[str, Any], *, is_named: bool, **more: Any) -> str:
    """Values as they stand in the fields of a page, with a menu's choices named or not."""

    def shown(about: Option, value: Any) -> str:
        return about.shown(value) if is_named and about.choices else str(value)

    return json.dumps({"note": "x", "sent": "3", **{n: shown(OPTIONS[n], v) for n, v in values.items()}, **more})


def test_every_setting_but_those_of_sampling_is_shared() -> None:
    assert set(CHANGED) == set(SHARED) == set(vars(Settings())) - {"enabled", *PLACE_OPTIONS}
    assert all(CHANGED[name] != getattr(Settings, name) for name in SHARED)


@pytest.mark.parametrize("is_named", [True, False])
def test_the_tab_shows_what_the_next_picture_will_use(*, is_named: bool) -> None:
    found = options_for_tab(fields(CHANGED, is_named=is_named, enabled=True))
    assert {name: getattr(found, name) for name in SHARED} == CHANGED
    own = base_options()
    assert all(getattr(found, name) == getattr(own, name) for name in (*ALONE, "cleaning", "quirks"))
    assert options_for_tab(fields(CHANGED, is_named=is_named, enabled=False)) == own
    assert options_for_tab("{}") == own
    assert own.above_one == "as the WebUI"  # as a new page has it


@pytest.mark.parametrize(
    ("mode", "scheme", "syntax"),
    [
        ("Original", "a1111", "a1111"),
        ("No norm", "a1111_no_norm", "a1111"),
        ("Ignore", "unweighted", "a1111"),
        ("None", "unweighted", "none"),
    ],
)
def test_switched_off_the_picture_is_the_webuis_own(
    host_options: SimpleNamespace, mode: str, scheme: str, syntax: str
) -> None:
    host_options.emphasis = mode
    found = options_for_tab(json.dumps({"enabled": False}))
    assert (found.scheme, found.syntax) == (scheme, syntax)
    values, lines = values_for_script(fields({name: getattr(found, name) for name in (*SHARED, *ALONE)}, is_named=True))
    assert (values, lines) == ({"enabled": False}, [])


@pytest.mark.parametrize("is_named", [True, False])
def test_the_script_gets_what_the_tab_shows(*, is_named: bool) -> None:
    alone = {name: getattr(base_options(), name) for name in ALONE}
    values, lines = values_for_script(fields({**CHANGED, **alone}, is_named=is_named))
    assert values == {"enabled": True, **CHANGED}
    assert lines == []
    _, lines = values_for_script(
        fields({**CHANGED, **alone, "hide": "cat", "chunking": "comfy word"}, is_named=is_named)
    )
    assert [line.split(" is only in the tab")[0] for line in lines] == ["Chunking", "Hide phrases"]


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("", "not fields of the page: ''"),
        ("[1]", r"not fields of the page: '\[1\]'"),
        ("[" * 100_000, "not fields of the page"),
        ("x" * (MAX_CHARACTERS + 1), "not fields of the page"),
        (None, "not fields of the page: None"),
        ('{"enabled": true, "scheme": "quantum"}', "Scheme must be one of: .*got 'quantum'"),
        ('{"enabled": true, "scheme": ["comfy"]}', r"Scheme must be one of: .*got \['comfy'\]"),
        ('{"enabled": true, "above_one": "NaN"}', "Above 1 must be one of: as ComfyUI, as the WebUI; got 'NaN'"),
        ('{"enabled": true, "bind_strength": "NaN"}', "Strength must be 0 to 1, got nan"),
        ('{"enabled": true, "bind_strength": "much"}', "Strength must be a number, got 'much'"),
        ('{"enabled": true, "bind": 7}', "Keep apart must be a text, got 7"),
    ],
)
def test_what_cannot_be_read_is_quoted(request_: Any, words: str) -> None:
    for read in (options_for_tab, values_for_script):
        with pytest.raises(WebUIError, match=words):
            read(request_)


def test_a_request_may_have_as_many_characters_as_are_read() -> None:
    longest = '{"enabled": false}'.ljust(MAX_CHARACTERS)
    assert values_for_script(longest) == values_for_script(longest.strip())
    with pytest.raises(WebUIError, match="not fields of the page"):
        values_for_script(f"{longest} ")


def test_what_it_gives_can_be_used() -> None:
    assert isinstance(options_for_tab(fields(CHANGED, is_named=True, enabled=True)), EncodeOptions)
    Settings(**values_for_script(fields(CHANGED, is_named=True))[0]).options()
