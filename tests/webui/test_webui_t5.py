"""The rulers below the WebUI's prompt boxes with models beyond CLIP: T5's tokens, with CLIP's beside them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.webui.model_readers import LOADS_NEXT, NOT_LOADED, T5_OFF
from weighted_clip.hosts.webui.routes import UNKNOWN
from weighted_clip.hosts.webui.t5 import LOST, STOPS
from weighted_clip.weighting.syntax import parse

from . import fake_t5
from .test_webui_ruler import ask, chips


@pytest.fixture(params=["Flux", "Chroma", "StableDiffusion3"])
def beyond(request: pytest.FixtureRequest, models: SimpleNamespace, host_options: SimpleNamespace) -> Any:
    host_options.sd3_enable_t5 = True
    models.sd_model = fake_t5.model(request.param)
    return models.sd_model


BESIDE = {"Flux": ["CLIP-L"], "Chroma": [], "StableDiffusion3": ["CLIP-L and CLIP-G"]}


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
        ("CLIP-L and CLIP-G", False, [])
    ]
    assert answer["notes"] == [T5_OFF]
    models.sd_model = fake_t5.model("Flux")
    assert ask("a cat")["notes"] == []


def test_the_strip_follows_the_model(models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def encoders() -> list[str]:
        return [view.get("encoder", "") for view in ask("a cat")["views"]]

    assert (encoders(), ask("a cat")["notes"]) == ([""], [NOT_LOADED])
    info = {name: SimpleNamespace(name_for_extra=name) for name in ("flux", "chroma")}
    models.forge_loading_parameters = {"checkpoint_info": info["flux"]}
    models.sd_model = fake_t5.model("Flux", sd_checkpoint_info=info["flux"])
    assert (encoders(), ask("a cat")["notes"]) == (["T5", "CLIP-L"], [])
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
    (note,) = ask("a cat", settings={"enabled": True})["notes"]
    assert f"has no {missing}" in note


def test_another_encoder_beside_t5_is_unknown(models: SimpleNamespace) -> None:
    models.sd_model = fake_t5.model("Flux", text_processing_engine_llama=object())
    assert ask("a cat") == {"views": [], "notes": [UNKNOWN]}
