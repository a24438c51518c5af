"""Our axes of the WebUI's X/Y/Z plot, with a fake of its script. The real one is in tests/hosts."""

import copy
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.generation import arm
from weighted_clip.hosts.webui.script.axes import BIND, LABEL, MENUS, PLACES, add_axes
from weighted_clip.hosts.webui.script.axis_values import (
    STRENGTH,
    WEIGHT,
    WEIGHT_STRENGTH,
    strengths,
    values_of,
    weights,
    with_weight,
)
from weighted_clip.hosts.webui.settings import INFOTEXT, Settings
from weighted_clip.weighting.syntax import parse

from . import fake_webui as fake

PROMPT = "a (red:1.4) cat and a dog in a [bowl]"


class AxisOption:
    """As the host's."""

    def __init__(
        self,
        label: str,
        type: Callable[[str], Any],
        apply: Callable[[Any, Any, list[Any]], None],
        format_value: Callable[[Any, Any, Any], str] | None = None,
        confirm: Callable[[Any, list[Any]], None] | None = None,
        cost: float = 0.0,
        choices: Callable[[], list[str]] | None = None,
        prepare: Callable[[str], list[str]] | None = None,
    ) -> None:
        del cost
        self.label, self.type, self.apply, self.format_value = label, type, apply, format_value
        self.confirm, self.choices, self.prepare = confirm, choices, prepare


@pytest.fixture
def plot(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The host's script, among others, with our axes."""
    plot, other = ModuleType("xyz_grid.py"), ModuleType("other.py")
    plot.__dict__.update(AxisOption=AxisOption, axis_options=[AxisOption("Nothing", str, lambda p, x, xs: None)])
    scripts = ModuleType("modules.scripts")
    loaded = [("scripts/other.py", other), ("scripts/xyz_grid.py", plot)]
    scripts.__dict__["scripts_data"] = [SimpleNamespace(path=path, module=module) for path, module in loaded]
    monkeypatch.setitem(sys.modules, scripts.__name__, scripts)
    monkeypatch.setattr(sys.modules["modules"], "scripts", scripts, raising=False)
    add_axes()
    return plot


def axis(plot: ModuleType, title: str) -> AxisOption:
    [found] = [one for one in plot.axis_options if one.label == f"[Weighted CLIP] {title}"]
    return found


def cells(plot: ModuleType, p: fake.Generation, title: str, values: list[str]) -> list[fake.Generation]:
    """The host's cells for one axis: a copy of the generation for each value."""
    one = axis(plot, title)
    assert one.confirm is not None
    one.confirm(p, values)
    copies = []
    for value in values:
        copies.append(copy.copy(p))
        one.apply(copies[-1], value, values)
    return copies


def conditioning(p: fake.Generation, *values: Any) -> torch.Tensor:
    arm(p, values)
    return p.setup_conds(PROMPT)[0]


def test_axes_are_added_once_behind_the_hosts_own(plot: ModuleType) -> None:
    add_axes()  # “Reload UI” where the module is kept
    titles = [option.label.removeprefix(LABEL) for option in plot.axis_options]
    menus = ["Scheme", "Normalization", "Law", "Mask method", "Padding"]
    added = [
        "Above 1",
        "Syntax",
        "Keep apart",
        "Strength",
        "Beyond CLIP",
        "Strength of weights",
    ]  # a request counts axes, so that these come last
    assert titles == ["Nothing", *menus, "Weight of a word", "Places", *added]


def test_without_the_plot_nothing_happens(plot: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = sys.modules["modules.scripts"]
    for module in (ModuleType("xyz_grid.py"), None):
        data = [SimpleNamespace(path="scripts/xyz_grid.py", module=module)]
        monkeypatch.setitem(scripts.__dict__, "scripts_data", data)
        add_axes()
    monkeypatch.setitem(scripts.__dict__, "scripts_data", [])
    add_axes()


@pytest.mark.parametrize("name", MENUS)
def test_every_value_of_a_menu_is_that_of_its_control(plot: ModuleType, name: str, forge: fake.ForgeModel) -> None:
    """With the script off, too: an axis switches it on."""
    settings = {**vars(Settings()), "scheme": "masked_blend"}
    del settings["enabled"]
    off = list(settings.values())
    stock = forge.get_learned_conditioning([PROMPT])
    option = axis(plot, MENUS[name][0])
    assert option.choices is not None
    values = option.choices()
    for value, cell in zip(values, cells(plot, fake.Generation(forge), MENUS[name][0], values), strict=True):
        made = conditioning(cell, False, *off)
        if value == "off":
            assert torch.equal(made, stock)
            assert cell.extra_generation_params == {}
            continue
        alone = fake.Generation(forge)
        assert torch.equal(made, conditioning(alone, True, *{**settings, name: value}.values())), value
        assert cell.extra_generation_params == alone.extra_generation_params


def test_two_axes_act_together_and_cells_do_not_mix(plot: ModuleType, forge: fake.ForgeModel) -> None:
    p = fake.Generation(forge)
    [blend, off] = cells(plot, p, "Scheme", ["masked_blend", "off"])
    axis(plot, "Padding").apply(blend, "mask", ["mask"])
    axis(plot, "Padding").apply(off, "mask", ["mask"])
    made = conditioning(blend, True)
    expected = conditioning(fake.Generation(forge), True, "masked_blend", "none", "nested", "attention", "mask")
    assert torch.equal(made, expected)
    assert torch.equal(conditioning(off, True), forge.get_learned_conditioning([PROMPT]))
    assert torch.equal(conditioning(p, True), conditioning(fake.Generation(forge), True))


def test_an_axis_that_the_scheme_does_not_read_is_named(plot: ModuleType, forge: fake.ForgeModel) -> None:
    for scheme, is_said in (("a1111", True), ("masked_blend", False)):
        [cell] = cells(plot, fake.Generation(forge), "Law", ["compel"])
        conditioning(cell, True, scheme)
        assert any("Law compel changes nothing" in comment for comment in cell.comments) == is_said


@pytest.mark.parametrize("name", MENUS)
def test_wrong_values_are_refused_before_the_run(plot: ModuleType, name: str, forge: fake.ForgeModel) -> None:
    title = MENUS[name][0]
    for values, message in ((["quantum"], "must be one of: .*; got “quantum”"), ([], "choose at least one")):
        with pytest.raises(WebUIError, match=message):
            cells(plot, fake.Generation(forge), title, values)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dog: 0.5", ["dog: 0.5"]),
        ("dog: 0-1 [5]", ["dog: 0", "dog: 0.25", "dog: 0.5", "dog: 0.75", "dog: 1"]),
        ("dog:0-1", ["dog: 0", "dog: 1"]),
        ("dog: 0 - 1 (+0.5)", ["dog: 0", "dog: 0.5", "dog: 1"]),
        ("dog: 0-1 (+0.1)", [f"dog: {step / 10:g}" for step in range(11)]),
        ("dog: 1-0 (-0.5)", ["dog: 1", "dog: 0.5", "dog: 0"]),
        ("dog: 0-0.3 (+0.1)", ["dog: 0", "dog: 0.1", "dog: 0.2", "dog: 0.3"]),  # in floating point 0.3 / 0.1 < 3
        ("dog: -1-1 [3]", ["dog: -1", "dog: 0", "dog: 1"]),
        ("dog: 0.5-1 [1]", ["dog: 0.5"]),
        ("dog: 0, 1, red cat: .5", ["dog: 0", "dog: 1", "red cat: 0.5"]),
        ('"dog, wet: 0.5", 1', ["dog, wet: 0.5", "dog, wet: 1"]),
        ("", []),
        ("dog: 0.12345-1 [3]", ["dog: 0.12345", "dog: 0.56173", "dog: 1"]),  # no end is rounded
    ],
)
def test_weights_are_written_as_on_the_hosts_axes(text: str, expected: list[str]) -> None:
    assert weights(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog", "expected a word .* got “dog”"),
        ("0-1 [5]", "expected a word"),
        ("(dog:0.5)", "expected a word without brackets"),
        ("dog: half", "expected a number .* got “half”"),
        ("dog:", "expected a number"),
        ("dog: nan", "expected a number"),
        ("dog: 0-1 [0]", "has 0 values"),
        ("dog: 0-1 [5000000000]", "has 5,000,000,000 values; 1 to 100"),
        ("dog: 0-1 (+0.000001)", "has 1,000,001 values"),
        ("dog: 0-1 (-0.5)", "has 0 values"),
        ("dog: 0-1 (+0)", "has 0 values"),
        (f"dog: {'9' * 400}", "is too large"),
        (f"dog: 0-{'9' * 400} [3]", "is too large"),
        (f"dog: 0-1 (+0.{'0' * 300}1)", "has 1,000,000,000,001 values"),
        ("dog: " + "0-1 [100]," * 10 + "1", "these are 1,001 values, at most 1,000"),
        ("dog: " + "1," * 2000 + "1", "these are 2,001 values"),
        ("dog: 0,, 1", "value 2 of 3 is empty"),
        ("dog: 0.5,", "value 2 of 2 is empty"),
        ("dog: " + "x" * 200_000, "the values have 200,005 characters"),
        ("dog: " + "x" * 9000, "expected a number"),
        ('dog: "' + "0;" * 6000, "expected a number"),
    ],
)
def test_what_is_no_weight_is_refused_in_words(text: str, message: str) -> None:
    with pytest.raises(WebUIError, match=message) as caught:
        weights(text)
    assert len(str(caught.value)) < 500


def test_as_many_values_as_the_limit_are_taken() -> None:
    assert len(weights("dog: " + ", ".join(["0-1 [100]"] * 10))) == 1000


@pytest.mark.parametrize(
    ("prompt", "word", "syntax", "expected"),
    [
        ("a dog", "dog", "a1111", "a (dog:0.3)"),
        ("a (dog:1.2) and (dog) and [dog]", "dog", "a1111", "a (dog:0.3) and (dog:0.3) and (dog:0.3)"),
        ("( Dog : .7 )", "dog", "a1111", "(Dog:0.3)"),
        ("a (wet dog:1.2)", "dog", "a1111", "a (wet (dog:0.3):1.2)"),
        ("hotdog dogs dog-like dog_1 __dog__ dog", "dog", "a1111", "hotdog dogs dog-like dog_1 __dog__ (dog:0.3)"),
        ("dog <lora:dog:1>", "dog", "a1111", "(dog:0.3) <lora:dog:1>"),
        ("[dog:cat:0.5] [cat|dog]", "dog", "a1111", "[(dog:0.3):cat:0.5] [cat|(dog:0.3)]"),
        ("{dog|cat} AND dog :0.7", "dog", "a1111", "{(dog:0.3)|cat} AND (dog:0.3) :0.7"),
        (r"\(dog\)", "dog", "a1111", r"\((dog:0.3)\)"),
        ("a red\n dog", "red dog", "a1111", "a (red\n dog:0.3)"),
        ("[dog] (dog:2)", "dog", "comfy", "[(dog:0.3)] (dog:0.3)"),
        ("dog++ (dog)1.2 (dog)-- dog-like dog-", "dog", "compel", "(dog)0.3 (dog)0.3 (dog)0.3 dog-like (dog)0.3"),
        ("a.b aab", "a.b", "a1111", "(a.b:0.3) aab"),
        ("a cat", "dog", "a1111", None),
        ("hotdog", "dog", "a1111", None),
    ],
)
def test_a_word_gets_the_weight_wherever_it_stands(prompt: str, word: str, syntax: str, expected: str | None) -> None:
    assert with_weight(prompt, word, 0.3, syntax) == expected


@pytest.mark.parametrize("syntax", ["a1111", "comfy", "compel"])
@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0, 1.5])
def test_the_word_is_read_with_that_weight(syntax: str, weight: float) -> None:
    """Even if its brackets have another weight in the prompt already."""
    changed = with_weight("a cat and a dog in snow", "dog", 1.3, syntax)
    assert changed is not None
    for _ in range(2):
        changed = with_weight(changed, "dog", weight, syntax)
        assert changed is not None
        found = [part.weight for part in parse(changed, syntax).parts if "dog" in getattr(part, "text", "")]
        assert found == [weight]


def test_weights_go_into_all_prompts_that_have_the_word(plot: ModuleType, forge: fake.ForgeModel) -> None:
    p: Any = fake.Generation(forge)
    p.prompt, p.negative_prompt, p.hr_prompt, p.styles = "a dog", "a (dog:0.2) and a cat", "", []
    first, second = cells(plot, p, WEIGHT, ["dog: 0.5", "cat: 2"])
    assert (first.prompt, first.negative_prompt, first.hr_prompt) == ("a (dog:0.5)", "a (dog:0.5) and a cat", "")
    assert (second.prompt, second.negative_prompt) == ("a dog", "a (dog:0.2) and a (cat:2)")
    assert p.prompt == "a dog"
    with pytest.raises(WebUIError, match="“bird” is in none of the prompts"):
        cells(plot, p, WEIGHT, ["bird: 0.5"])
    with pytest.raises(WebUIError, match="name a word and weights"):
        cells(plot, p, WEIGHT, [])


def test_weights_are_written_in_the_scripts_syntax(plot: ModuleType, forge: fake.ForgeModel) -> None:
    ours = SimpleNamespace(title=lambda: INFOTEXT, args_from=1, args_to=8)
    for is_on, syntax, expected in (
        (True, "compel", "a (dog)0.5"),
        (False, "compel", "a (dog:0.5)"),
        (True, "a1111", "a (dog:0.5)"),
    ):
        p: Any = fake.Generation(forge)
        p.prompt = "a dog"
        p.scripts = SimpleNamespace(alwayson_scripts=[SimpleNamespace(title=lambda: "Other"), ours])
        p.script_args = ("other's", is_on, "compel", "none", "nested", "attention", "attend", syntax)
        [cell] = cells(plot, p, WEIGHT, ["dog: 0.5"])
        assert cell.prompt == expected
    p.script_args = ("other's", True, "unweighted", "none", "nested", "attention", "attend", "none")
    with pytest.raises(WebUIError, match="not with the syntax none"):
        cells(plot, p, WEIGHT, ["dog: 0.5"])
    p.script_args = ("other's", True, "compel", "none", "nested", "attention", "attend", "compel")
    with pytest.raises(WebUIError, match="the syntax compel cannot write the weight -1"):
        cells(plot, p, WEIGHT, ["dog: -1"])


def test_a_cell_hands_its_values_on(plot: ModuleType, forge: fake.ForgeModel) -> None:
    """ADetailer makes a generation of its own of a cell, with the values that the cell has for all scripts."""
    p: Any = fake.Generation(forge)
    p.scripts = SimpleNamespace(alwayson_scripts=[SimpleNamespace(title=lambda: INFOTEXT, args_from=1, args_to=4)])
    p.script_args = ("other's", False, "comfy", "mean", "behind")
    [blend, off] = cells(plot, p, "Scheme", ["masked_blend", "off"])
    for cell, values in ((blend, [True, "masked_blend", "mean"]), (off, [False, "comfy", "mean"])):
        arm(cell, cell.script_args[1:4])
        assert list(cell.script_args) == ["other's", *values, "behind"]
    assert p.script_args == ("other's", False, "comfy", "mean", "behind")


# Axes of the binding, of places and of the syntax


def prepared(plot: ModuleType, title: str, text: str) -> list[str]:
    """Values of an axis that the host reads out of its text box."""
    prepare = axis(plot, title).prepare
    assert prepare is not None
    return prepare(text)


def with_script(forge: fake.ForgeModel, prompt: str, *values: Any) -> Any:
    """A generation with these values of our script."""
    p: Any = fake.Generation(forge)
    ours = SimpleNamespace(title=lambda: INFOTEXT, args_from=0, args_to=len(values))
    p.prompt, p.styles, p.steps = prompt, [], 20
    p.scripts, p.script_args = SimpleNamespace(alwayson_scripts=[ours]), values
    return p


def test_phrases_kept_apart_and_their_strength_are_axes(
    plot: ModuleType, forge: fake.ForgeModel, models: SimpleNamespace
) -> None:
    models.sd_model = forge
    text = "a red cat and a blue dog"
    values = prepared(plot, BIND, "off, red cat / blue dog")
    p = with_script(forge, text, True, "comfy")
    for value, cell in zip(values, cells(plot, p, BIND, values), strict=True):
        for strength, inner in zip(("0", "0.5", "1"), cells(plot, cell, STRENGTH, strengths("0-1 [3]")), strict=True):
            inner.comments = {}  # copies share them
            arm(inner, inner.script_args)
            [made] = inner.setup_conds(text)
            bind = "" if value == "off" else "red cat\nblue dog"
            alone = fake.armed(forge, scheme="comfy", bind=bind, bind_strength=float(strength))
            assert torch.equal(made, alone.setup_conds(text)[0]), (value, strength)
            assert inner.extra_generation_params == alone.extra_generation_params
            is_idle = any(
                f"{STRENGTH} {strength} changes nothing: Keep apart is empty" in one for one in inner.comments
            )
            assert is_idle == (value == "off" and strength != "1")


@pytest.mark.parametrize(
    ("title", "text", "message"),
    [
        (BIND, "red cat, green bird", "cannot be bound: .*“green bird” is not in the prompt"),
        (BIND, "", "Keep apart: write the phrases of each value"),
        (BIND, "red cat,,off", "Keep apart: value 2 of 3 is empty"),
        (PLACES, "red cat: left half, green bird: left half", "“green bird” is in none of the prompts"),
        (PLACES, "off, red cat: nowhere", "Places, “red cat: nowhere”"),
        (PLACES, "off, , red cat: left half", "Places: value 2 of 3 is empty"),
        (PLACES, "", "Places: write a line for each value"),
        (STRENGTH, "0-2 [3]", "Strength must be 0 to 1, got 2"),
        (STRENGTH, "much", "Strength: expected a number .*got “much”"),
        (STRENGTH, "", "Strength: write numbers"),
        (WEIGHT_STRENGTH, "3", "Strength of weights must be 0 to 2, got 3"),
        ("Scheme", "comfy, quantum, " + "x" * 9000, "got “quantum” and “xxx"),
        ("Scheme", "", "choose at least one value in its menu"),
        ("Syntax", "a1111, nai", "Syntax must be one of: comfy, a1111, .*got “nai”"),
        ("Above 1", "as A1111", "Above 1 must be one of: as ComfyUI, as the WebUI; got “as A1111”"),
    ],
)
def test_what_the_run_would_refuse_is_refused_before_it(
    plot: ModuleType, forge: fake.ForgeModel, models: SimpleNamespace, title: str, text: str, message: str
) -> None:
    p = with_script(forge, "a red [cat:fox:0.5] and a blue dog", True, "comfy")
    with pytest.raises(WebUIError, match=message) as caught:
        cells(plot, p, title, prepared(plot, title, text))
    assert len(str(caught.value)) < 700


def test_what_styles_add_may_hold_a_phrase(plot: ModuleType, forge: fake.ForgeModel, models: SimpleNamespace) -> None:
    p = with_script(forge, "a dog", True)
    p.styles = ["with a red cat"]
    assert cells(plot, p, PLACES, ["red cat: left half"])


def test_a_weight_is_written_in_the_syntax_of_its_cell_whichever_axis_comes_first(
    plot: ModuleType, forge: fake.ForgeModel
) -> None:
    expected = {"a1111": "a (dog:0.5)", "compel": "a (dog)0.5", "comfy": "a (dog:0.5)"}
    for syntax, prompt in expected.items():
        p = with_script(forge, "a dog", True, "comfy")
        [cell] = cells(plot, cells(plot, p, "Syntax", [syntax])[0], WEIGHT, ["dog: 0.5"])
        assert cell.prompt == prompt
        [cell] = cells(plot, cells(plot, p, WEIGHT, ["dog: 0.5"])[0], "Syntax", [syntax])
        assert cell.prompt == prompt


def test_a_weight_that_no_syntax_of_the_plot_can_write_is_refused_before_the_run(
    plot: ModuleType, forge: fake.ForgeModel
) -> None:
    for titles in ((WEIGHT, "Syntax"), ("Syntax", WEIGHT)):
        p = with_script(forge, "a dog", True, "comfy")
        values = {WEIGHT: ["dog: 0.5"], "Syntax": ["a1111", "none"]}
        confirms = [(axis(plot, title).confirm, values[title]) for title in titles]
        with pytest.raises(WebUIError, match="not with the syntax none"):
            for confirm, some in confirms:
                assert confirm is not None
                confirm(p, some)


def test_values_in_quotes_may_have_commas() -> None:
    assert values_of(PLACES, 'off, "red cat: left half, 0-0.4"') == ["off", "red cat: left half, 0-0.4"]
