"""Values and prompts that the WebUI's script refuses, as the host's API and page tell it; and Interrupt."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.engines import Engine, WebUIError
from weighted_clip.hosts.webui.generation import arm
from weighted_clip.hosts.webui.script import routes
from weighted_clip.hosts.webui.settings import Settings

from . import fake_webui as fake
from .test_webui import conditioning

PROMPT = "a (red:1.3) cat"


def told(error: BaseException) -> str:
    """As the host's page writes an error."""
    return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": "nonsense"}, "Scheme must be one of"),
        ({"bind_strength": "much"}, "Strength must be a number, got 'much'"),
        ({"bind_strength": True}, "Strength must be a number, got True"),
        ({"bind": ["red"]}, r"Keep apart must be a text, got \['red'\]"),
        ({"bind": "a bird"}, "“a bird” is not in the prompt"),
        ({"bind_hide": "cutoff", "bind_words": "red"}, "With weights, cutoff goes with the schemes"),
    ],
)
def test_what_is_refused_answers_422_with_the_words_and_without_the_name_of_a_class(
    forge: fake.ForgeModel, settings: dict[str, Any], words: str
) -> None:
    """The host reads ``vars(error)``: what a class has is not there."""
    with pytest.raises(WebUIError, match=words) as caught:
        conditioning(forge, PROMPT, **settings)
    known = vars(caught.value)
    assert (known["status_code"], known["detail"]) == (422, str(caught.value))
    assert told(caught.value) == f"Weighted CLIP: {caught.value}"


def test_a_long_wrong_value_is_shortened(forge: fake.ForgeModel) -> None:
    for name, label in (("scheme", "Scheme"), ("padding", "Padding"), ("bind_strength", "Strength")):
        with pytest.raises(WebUIError, match=label) as caught:
            conditioning(forge, PROMPT, **{name: "x" * 100_000})
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", ["false", "", 1, 0, 0.0, [], {}])
def test_the_switch_is_true_or_false_and_nothing_like_it(forge: fake.ForgeModel, value: Any) -> None:
    generation = fake.Generation(forge)
    arm(generation, [value])
    with pytest.raises(WebUIError, match="enabled must be true or false"):
        generation.setup_conds(PROMPT)
    assert not generation.extra_generation_params


@pytest.mark.parametrize("value", [False, None])
def test_off_and_not_given_are_off(forge: fake.ForgeModel, value: Any) -> None:
    generation = fake.Generation(forge)
    arm(generation, [value])
    assert "get_conds_with_caching" not in vars(generation)


class Api:
    """The host's, as far as it takes the values of scripts out of a request; it says nothing about values too many."""

    def text2imgapi(self, request: Any) -> list[Any]:
        return self.init_script_args(request, [], None, None, None, input_script_args={})

    def init_script_args(self, request: Any, *others: Any, **named: Any) -> list[Any]:
        del others, named
        return list(request.alwayson_scripts.get("weighted clip", {}).get("args", []))[: len(vars(Settings()))]


@pytest.fixture
def ask() -> Any:
    """Asks the host's API for an image by what stands for our script in a request: the values it finds."""
    host = Api()
    app = SimpleNamespace(routes=[SimpleNamespace(), SimpleNamespace(endpoint=host.text2imgapi)])
    for _ in range(2):
        routes.look_at_requests(None, app)

    def asked(entry: Any, name: str = "weighted clip") -> list[Any]:
        scripts = json.loads(json.dumps({"another script": {"args": "any"}, name: entry}))
        return host.text2imgapi(SimpleNamespace(alwayson_scripts=scripts))

    asked.host = host  # pyright: ignore[reportFunctionMemberAccess]
    return asked


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (
            {"args": {"enabled": True}},
            r"args, a list of values in this order: enabled, scheme, .*got .*'enabled': True",
        ),
        ({"args": "true"}, "args, a list of values"),
        ({"args": None}, "args, a list of values"),
        ({"enabled": True}, "args, a list of values"),
        ([True, "comfy"], "args, a list of values"),
        ({"args": [True], "scheme": "comfy"}, r"takes only args; also got \['scheme'\]"),
        ({"args": [True, *["a1111"] * 21]}, "takes 21 values .*got 22"),
        ({"args": {"enabled": "x" * 100_000}}, "args, a list of values"),
    ],
)
def test_a_request_that_the_host_would_misread_is_told_what_args_is(ask: Any, entry: Any, words: str) -> None:
    for name in ("weighted clip", "Weighted CLIP"):
        with pytest.raises(WebUIError, match=words) as caught:
            ask(entry, name)
        assert vars(caught.value)["status_code"] == 422
        assert len(str(caught.value)) < 500


def test_other_requests_reach_the_host_as_they_are(ask: Any) -> None:
    values = [True, *list(vars(Settings()).values())[1:]]
    for entry in ({"args": values}, {"args": []}, {}):
        assert ask(entry) == entry.get("args", [])
    assert ask.host.text2imgapi(SimpleNamespace(alwayson_scripts={})) == []


def test_a_webui_without_an_api_is_left_alone() -> None:
    routes.look_at_requests(None, SimpleNamespace(routes=[SimpleNamespace(endpoint=print)]))


# Weights


@pytest.mark.parametrize(
    ("text", "syntax", "words"),
    [
        (f"a ({'9' * 400}: no) (cat:{'9' * 400})", "a1111", "“cat” has the weight inf"),
        ("a " + "(" * 8000 + "cat" + ")" * 8000, "a1111", "“cat” has the weight inf"),
        ("a (cat:inf)", "comfy", "“cat” has the weight inf"),
        ("a (cat:-inf)", "comfy", "“cat” has the weight -inf"),
        ("a (cat:nan)", "comfy", "“cat” has the weight nan"),
        (f'("a cat", "a dog").blend({"9" * 400}, 1)', "compel", "A weight is not finite"),
    ],
)
@pytest.mark.parametrize("place", ["prompt", "negative"])
def test_infinite_weights_are_refused(forge: fake.ForgeModel, text: str, syntax: str, words: str, place: str) -> None:
    texts = {"prompt": "a cat", "negative": "", place: text}
    with pytest.raises(WebUIError, match=words) as caught:
        conditioning(forge, texts["prompt"], negative=texts["negative"], syntax=syntax)
    assert len(str(caught.value)) < 500


def test_an_infinite_weight_of_a_part_between_ands_is_refused(forge: fake.ForgeModel) -> None:
    """The host would make a picture of zeros."""

    def in_parts(model: Any, prompts: list[str], *others: Any) -> Any:
        schedules = fake.get_learned_conditioning(model, prompts, *others)
        return SimpleNamespace(batch=[[SimpleNamespace(schedules=schedules, weight=weight)]])

    for weight in (0.5, float("inf")):
        generation = fake.armed(forge)
        arguments = in_parts, fake.SdConditioning(["a cat"]), 20, [generation.cached_c]
        if weight == 0.5:
            assert generation.get_conds_with_caching(*arguments).batch[0][0].weight == weight
            continue
        with pytest.raises(WebUIError, match="A part between ANDs has the weight inf"):
            generation.get_conds_with_caching(*arguments)


def test_an_infinite_weight_of_a_term_is_refused(forge: fake.ForgeModel) -> None:
    with pytest.raises(WebUIError, match="“fog” has the weight -inf"):
        conditioning(forge, f"a cat, (fog:-{'9' * 400})", scheme="negpip_apart")


@pytest.mark.parametrize("scheme", ["a1111", "comfy", "masked_blend"])
def test_far_weights_are_named_and_change_nothing_else(
    forge: fake.ForgeModel, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a (red:10.5) cat, (fog:-11), (dog:10), (mat:-10)"
    generation = fake.armed(forge, scheme)
    [found] = generation.setup_conds(f"{text}=>{text}")
    lines = [line for line in generation.comments if "beyond" in line]
    assert [line.partition("“")[2].partition("”")[0] for line in lines] == ["red", "fog"]
    assert "10.5" in lines[0]
    assert "-11" in lines[1]
    monkeypatch.setattr("weighted_clip.weighting.syntax.slips.FAR", 1e9)
    [plain] = conditioning(forge, f"{text}=>{text}", scheme=scheme)
    assert torch.equal(found, plain)
    assert torch.isfinite(found).all()


# Interrupt and Skip


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The host's."""
    state = SimpleNamespace(interrupted=False, skipped=False)
    monkeypatch.setattr(sys.modules["modules.shared"], "state", state, raising=False)
    return state


@pytest.mark.parametrize("pressed", ["interrupted", "skipped"])
@pytest.mark.parametrize("scheme", ["masked_blend", "negpip"])
def test_an_interrupt_while_encoding_ends_as_the_hosts_own(
    forge: fake.ForgeModel, state: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, pressed: str, scheme: str
) -> None:
    """The host goes on to its sampler, which ends before it reads anything: no error, and an image as far as it got."""
    words = " ".join(f"(word{number}:0.{number + 100})" for number in range(70))
    calls: list[int] = []
    encode = Engine.__call__

    def interrupted(self: Any, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        calls.append(len(ids))
        setattr(state, pressed, True)
        return encode(self, ids, mask, is_causal=is_causal)

    generation = fake.armed(forge, scheme)
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "__call__", interrupted)
        [rows] = generation.setup_conds(words)
        assert len(calls) == 1
    assert torch.equal(rows, forge.get_learned_conditioning([words]))
    # the next image of the same generation, after Skip, is not made of what the host encoded instead of us
    setattr(state, pressed, False)
    [again] = generation.setup_conds(words)
    assert not torch.equal(again, rows)


def test_nothing_is_encoded_by_us_once_interrupt_is_pressed(forge: fake.ForgeModel, state: SimpleNamespace) -> None:
    state.interrupted = True
    [rows] = conditioning(forge, PROMPT, bind="a bird")
    assert torch.equal(rows, forge.get_learned_conditioning([PROMPT]))
