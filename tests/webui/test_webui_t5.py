"""The rulers below the WebUI's prompt boxes with models beyond CLIP: T5's tokens, with CLIP's beside them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.webui.attention.joint_models import idle_lines
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.joint_texts import SPACED
from weighted_clip.hosts.webui.model_readers import LOADS_NEXT, NOT_LOADED, POOLED, T5_OFF
from weighted_clip.hosts.webui.script.routes import UNKNOWN
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.hosts.webui.t5 import LOST, STOPS
from weighted_clip.hosts.webui.t5 import UNKNOWN as UNKNOWN_TO_T5
from weighted_clip.weighting.syntax import parse

from . import fake_joint, fake_t5
from . import fake_webui as fake
from .test_webui_ruler import ask, chips, told


@pytest.fixture(params=["Flux", "Chroma", "StableDiffusion3"])
def beyond(request: pytest.FixtureRequest, models: SimpleNamespace, host_options: SimpleNamespace) -> Any:
    host_options.sd3_enable_t5 = True
    models.sd_model = fake_t5.model(request.param)
    return models.sd_model


BESIDE = {"Flux": ["CLIP-L"], "Chroma": [], "StableDiffusion3": ["CLIP-L + CLIP-G"]}


def test_t5s_tokens_come_first_and_clips_beside_them(beyond: Any) -> None:
    name = type(beyond).__name__
    first, *rest = ask("a (red:1.4) catish AND the dog")["views"][: 1 + len(BESIDE[name])]
    assert (first["encoder"], first["is_beside"]) == ("T5", False)
    assert chips(first) == ["a", "red 1.4", "cat", "ish"]
    assert first["total"] == ("4 tokens" if name == "Chroma" else "4/255")
    assert [(view["encoder"], view["is_beside"]) for view in rest] == [(title, True) for title in BESIDE[name]]
    for view in rest:
        ids = [one for chip in view["chunks"][0]["chips"] for one in chip["ids"]]
        assert (ids, view["total"]) == ([token.id for token in default_tokenizer()("a red catish")], "5/75")
    assert all(view["issues"] == [] for view in (first, *rest))


def test_each_text_is_shown_by_every_encoder(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Flux")
    views = ask("a [cat:dog:0.5] AND fox")["views"]
    assert [(view["encoder"], view["branch"], view["steps"]) for view in views] == [
        (encoder, *text) for text in ((0, [[1, 11]]), (0, [[12, 20]]), (1, [[1, 20]])) for encoder in ("T5", "CLIP-L")
    ]
    problems = [[issue["code"] for issue in view["issues"]] for view in ask("a (cat")["views"]]
    assert problems == [["unclosed-bracket"], []]


def test_in_flux_clip_has_no_weights(models: SimpleNamespace, host_options: SimpleNamespace) -> None:
    """Its pooled vector alone is read there."""
    host_options.sd3_enable_t5 = True
    for name, weight, notes in (("Flux", "red", [POOLED.format("CLIP-L")]), ("StableDiffusion3", "red 1.4", None)):
        models.sd_model = fake_t5.model(name)
        first, beside = ask("a (red:1.4) cat")["views"]
        assert (chips(first)[1], chips(beside)[1], beside.get("notes")) == ("red 1.4", weight, notes)
        assert all("notes" not in view for view in ask("a red cat")["views"])


def test_ids_are_those_of_the_hosts_tokenizer_for_each_stretch(models: SimpleNamespace) -> None:
    """Each stretch of one weight is tokenized alone, and so begins with a space of its own."""
    models.sd_model = fake_t5.model("Chroma")
    engine = models.sd_model.text_processing_engine_t5
    for text in ("a(red:1.4)cat", "  a   [red]  cat ", "🦊 (fox)\u00a0ﬁsh", "\\(a\\) cat", "((a)b", ""):
        (view,) = ask(text)["views"]
        parts = [part.text for part in parse(text, "a1111").parts]
        assert [one for chunk in view["chunks"] for chip in chunk["chips"] for one in chip["ids"]] == [
            one for ids in engine.tokenize(parts) for one in ids
        ]
        places = [text[chip["start"] : chip["end"]] for chunk in view["chunks"] for chip in chunk["chips"]]
        assert all(place == place.strip() != "" for place in places if text.isascii())


def test_a_space_of_its_own_stands_with_its_word(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Chroma")
    (view,) = ask("cat x")["views"]
    assert [(chip["text"], len(chip["ids"]), chip["start"]) for chip in view["chunks"][0]["chips"]] == [
        ("cat", 1, 0),
        ("x", 2, 4),
    ]


def test_what_t5_does_not_know_is_told(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Flux")
    views = ask("a (🦊:1.2) cat, 🦊, 猫")["views"]
    told_of_t5, of_clip = ([issue["message"] for issue in view["issues"]] for view in views)
    assert told_of_t5 == [f"at {place}: {UNKNOWN_TO_T5.format(one)}" for place, one in ((3, "🦊"), (18, "猫"))]
    assert of_clip == []
    chips_told = [chip["text"] for chip in views[0]["chunks"][0]["chips"] if chip["problems"]]
    assert chips_told == ["🦊", "猫"]
    letters = "βγδεζηθ"
    issues = ask(" a ".join(letters))["views"][0]["issues"]
    assert [issue["code"] for issue in issues] == ["unknown-to-t5"] * 5


def test_a_tokenizer_without_places_shows_the_ids(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Chroma")
    engine = models.sd_model.text_processing_engine_t5
    expected = engine.tokenize(["a cat"])[0]

    def without_places(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    engine.tokenize, engine.tokenizer = lambda texts: [expected for _ in texts], without_places
    (view,) = ask("a cat")["views"]
    assert [one for chip in view["chunks"][0]["chips"] for one in chip["ids"]] == expected


@pytest.mark.parametrize(("name", "told"), [("Flux", LOST), ("Chroma", LOST), ("StableDiffusion3", STOPS)])
def test_what_becomes_of_a_break_is_said_once(
    models: SimpleNamespace, host_options: SimpleNamespace, name: str, told: str
) -> None:
    host_options.sd3_enable_t5 = True
    models.sd_model = fake_t5.model(name)
    views = ask("a [cat|dog] BREAK red BREAK fox")["views"]
    assert [issue["message"] for view in views for issue in view["issues"]] == [f"at 12: {told}"]
    assert [chunk["num_tokens"] for chunk in views[0]["chunks"]] == [2, 1, 1]
    assert views[0]["total"].split("/")[0].split()[0] == "2"
    assert ask("a cat")["views"][0]["issues"] == []


def test_more_tokens_than_rows_make_more_rows(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Flux")
    assert ask("cat " * 255)["views"][0]["total"] == "255/255"
    assert ask("cat " * 400)["views"][0]["total"] == "400/400"


def test_a_t5_that_is_switched_off_is_not_shown(models: SimpleNamespace, host_options: SimpleNamespace) -> None:
    host_options.sd3_enable_t5 = False
    models.sd_model = fake_t5.model("StableDiffusion3")
    answer = ask("a cat BREAK dog")
    assert [(view["encoder"], view["is_beside"], view["issues"]) for view in answer["views"]] == [
        ("CLIP-L + CLIP-G", False, [])
    ]
    assert answer["notes"] == [T5_OFF]
    models.sd_model = fake_t5.model("Flux")
    assert ask("a cat")["notes"] == []


def test_the_strip_follows_the_model(models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def encoders() -> list[str]:
        return [view.get("encoder", "") for view in ask("a cat")["views"]]

    assert (encoders(), ask("a cat")["notes"]) == ([""], [NOT_LOADED])
    info = {name: SimpleNamespace(name_for_extra=name, filename=f"{name}.ckpt") for name in ("flux", "chroma")}
    models.forge_loading_parameters = {"checkpoint_info": info["flux"]}
    models.sd_model = fake_t5.model("Flux", sd_checkpoint_info=info["flux"])
    assert (encoders(), ask("a cat")["notes"]) == (["T5", "CLIP-L"], [])
    models.forge_loading_parameters = {"checkpoint_info": SimpleNamespace(**vars(info["flux"]))}  # a list read anew
    assert ask("a cat")["notes"] == []
    models.forge_loading_parameters = {"checkpoint_info": info["chroma"]}
    assert (encoders(), ask("a cat")["notes"]) == (["T5", "CLIP-L"], [LOADS_NEXT.format("chroma")])
    models.sd_model = None  # while it loads
    assert (encoders(), ask("a cat")["notes"]) == ([""], [NOT_LOADED])
    models.sd_model = fake_t5.model("Chroma", sd_checkpoint_info=info["chroma"])
    assert (encoders(), ask("a cat")["notes"]) == (["T5"], [])


def test_the_model_may_change_while_a_prompt_is_read(models: SimpleNamespace) -> None:
    """A text being read holds the model that it began with."""
    begun, gone = threading.Event(), threading.Event()
    models.sd_model = fake_t5.model("Flux")
    engine = models.sd_model.text_processing_engine_t5
    inner = engine.tokenize

    def slow(texts: list[str]) -> Any:
        begun.set()
        assert gone.wait(10)
        return inner(texts)

    engine.tokenize = slow
    del engine
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, "a cat")
        assert begun.wait(10)
        models.sd_model = fake_t5.model("Chroma")
        gone.set()
        assert [view["encoder"] for view in answer.result()["views"]] == ["T5", "CLIP-L"]


def test_several_read_at_once(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Flux")
    texts = [f"{'cat ' * number}(dog:1.{number % 10})" for number in range(1, 40)]
    alone = list(map(ask, texts))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, texts)) == alone


@pytest.mark.parametrize("missing", ["tokenizer", "min_length", "id_end"])
def test_a_t5_of_an_unknown_kind_is_said(models: SimpleNamespace, missing: str) -> None:
    engine = {name: 1 for name in ("tokenizer", "tokenize", "min_length", "id_end", "id_pad") if name != missing}
    models.sd_model = fake_t5.model("Flux", text_processing_engine_t5=SimpleNamespace(**engine))
    assert ask("a cat") == {"views": [], "notes": [UNKNOWN]}
    assert ask("a cat", settings={"enabled": True})["notes"] == [
        UNKNOWN,
        *idle_lines(Settings(), models.sd_model),
    ]


def test_another_encoder_beside_t5_is_unknown(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Flux", text_processing_engine_llama=object())
    assert ask("a cat") == {"views": [], "notes": [UNKNOWN]}


# With the script switched on


@pytest.fixture
def chroma(models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model whose network is known, in memory."""
    fake_joint.install(monkeypatch)
    models.sd_model = fake_joint.model()
    return models.sd_model


def given_to_t5(model: Any, text: str, **settings: Any) -> list[int]:
    """Ids that the host's T5 reads of a prompt in a generation with the script."""
    asked: list[str] = []
    engine = model.text_processing_engine_t5
    model.get_learned_conditioning = lambda texts: asked.extend(texts) or engine(texts)
    p = fake_joint.Generation(model)
    fake.arm(p, list({**vars(Settings()), "enabled": True, **settings}.values()))
    p.conds([text])
    chunks = engine.tokenize_line(asked[-1])[0]
    return [token for chunk in chunks for token in chunk.tokens if token != engine.id_end]


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("a (red:1.4) cat", {}, ["a", "red 1.4", "cat"]),
        ("a (red cat)1.4, (dog)--", {"syntax": "compel"}, ["a", "red 1.4", "cat 1.4", ",", "dog 0.81"]),
        ("a (red:1.4) (cat:0.5)", {"above_one": "as the WebUI"}, ["a", "red 1.4", "cat 0.5"]),
        (r"a \(red\) (cat:0.5) BREAK dog", {}, ["a", "( ×2", "r", "e", "d", ")", "cat 0.5", "dog"]),
        ("(a cat BREAK dog", {"above_one": "as the WebUI"}, ["a 1.1", "cat 1.1", "BREAK -1.1", "dog 1.1"]),
        ("(a:0.5) 🦊 (fox:-1)", {}, ["a 0.5", "🦊 ×2", "fox -1"]),
        ("", {}, []),
        ("()", {}, []),
    ],
)
def test_tokens_are_those_that_t5_is_given_with_the_weights_that_act(
    chroma: Any, text: str, settings: dict[str, Any], expected: list[str]
) -> None:
    asked = {"enabled": True, "attention": "bias", **settings}
    (view,) = ask(text, settings=asked)["views"]
    assert chips(view) == expected
    assert (view["syntax"], view["scheme"]) == (settings.get("syntax", "a1111"), "attention bias")
    ids = [one for chip in view["chunks"][0]["chips"] for one in chip["ids"]]
    assert ids == given_to_t5(chroma, text, **{name: value for name, value in asked.items() if name != "enabled"})
    for chip in view["chunks"][0]["chips"]:
        written = text.encode("utf-16-le")[2 * chip["start"] : 2 * chip["end"]].decode("utf-16-le")
        assert written == chip["text"]


def test_without_weights_in_the_attention_the_hosts_syntax_is_read(chroma: Any) -> None:
    (view,) = ask("a (red:1.4) (cat)++", settings={"enabled": True, "syntax": "compel"})["views"]
    assert chips(view) == ["a", "red 1.4", "cat 1.1", "+", "+"]
    assert (view["syntax"], view["scheme"]) == ("a1111", "a1111")
    assert given_to_t5(chroma, "a (red:1.4) (cat)++", syntax="compel") == [
        one for chip in view["chunks"][0]["chips"] for one in chip["ids"]
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "masked_blend"},
        {"scheme": "repeat", "padding": "mask", "normalization": "mean"},
        {"syntax": "comfy"},
        {"bind": "red cat", "bind_strength": 0.5},
        {"scheme": "masked_blend", "attention": "value", "above_one": "as the WebUI"},
        {},
    ],
)
def test_what_cannot_act_is_said_before_the_generation_as_after_it(chroma: Any, settings: dict[str, Any]) -> None:
    _, before = told("a red cat", **settings)
    p = fake_joint.Generation(chroma)
    fake.arm(p, list({**vars(Settings()), "enabled": True, **settings}.values()))
    p.conds(["a red cat"])
    assert [f"Weighted CLIP: {line}" for line in before] == list(p.comments)
    assert bool(before) == bool(settings and "attention" not in settings)


def test_a_break_is_said_to_be_what_it_becomes(chroma: Any) -> None:
    ((problem,), refusals) = told("a cat BREAK dog", attention="bias", word_maps=True)
    assert (problem, refusals) == (f"at 6: {SPACED}", [])
    ((problem,), (refusal,)) = told("a cat BREAK dog", word_maps=True)
    assert problem == f"at 5: {LOST}" or problem == f"at 6: {LOST}"
    p = fake_joint.Generation(chroma)
    fake.arm(p, list({**vars(Settings()), "enabled": True, "word_maps": True}.values()))
    with pytest.raises(WebUIError) as caught:
        p.conds(["a cat BREAK dog"])
    assert str(caught.value) == refusal


def test_an_infinite_weight_is_told_where_it_was_typed(chroma: Any) -> None:
    ((problem,), _) = told("a (cat:inf)", attention="bias", syntax="comfy")
    assert problem.startswith("at 3: “cat” has the weight inf")


def test_a_token_of_several_weights_is_told(chroma: Any) -> None:
    problems, _ = told("(cat:0.5)(ish:0.7)", attention="bias")
    assert problems == []  # which are two
    (problem,), _ = told("(b:0.5)(ird:0.7)", attention="bias")
    assert "“bird” is one token of this text encoder: all of it gets the weight 0.5" in problem


def test_phrases_of_places_are_looked_for_in_what_is_read(chroma: Any) -> None:
    assert told("a (red:0.5) cat", attention="bias", places="red cat: left half")[1] == []
    (line,) = told("a (red:0.5) cat", attention="bias", places="dog: left half")[1]
    assert "“dog” is in none" in line
