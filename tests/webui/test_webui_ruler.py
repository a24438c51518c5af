"""Answers to the rulers below the WebUI's prompt boxes, and the script's handling of tags that are text.

Also tokens of a host's own tokenizer, with the places that ours knows.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.encoder.tokenizer import CleaningTokenize, default_tokenizer
from weighted_clip.hosts.host_tokenizer import HostTokenize
from weighted_clip.hosts.webui.engines import WebUIError, engines_of
from weighted_clip.hosts.webui.model_readers import NOT_LOADED
from weighted_clip.hosts.webui.script import routes
from weighted_clip.hosts.webui.script.routes import FIELDS, IGNORED, REFUSED, UNKNOWN, inspected
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.web.inspection import inspect
from weighted_clip.weighting.options import OPTIONS, EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt

from . import fake_webui as fake

TEXT = "a (red:1.4) [cat:dog:0.5] <lora:ink:0.8> AND sky:0.5"


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return inspected({"text": text, "is_negative": False, "steps": 20, "syntax": "a1111", **fields})


def chips(view: dict[str, Any]) -> list[str]:
    return [" ".join(filter(None, (chip["text"], chip["note"]))) for one in view["chunks"] for chip in one["chips"]]


def test_a_prompt_is_read_as_the_host_reads_it(models: SimpleNamespace) -> None:
    views = ask(TEXT)["views"]
    assert [(view["branch"], view["weight"], view["steps"]) for view in views] == [
        *((0, 1.0, [[1, 11]]), (0, 1.0, [[12, 20]]), (1, 0.5, [[1, 20]])),
    ]
    assert [chips(view) for view in views] == [
        *(["a", "red 1.4", "cat", "<lora:ink:0.8>"], ["a", "red 1.4", "dog"], ["sky"]),
    ]
    assert [issue for view in views for issue in view["issues"]] == []
    tag = views[0]["chunks"][0]["chips"][3]
    assert (tag["ids"], tag["hidden"], tag["problems"]) == ([], False, [])
    assert [view["total"] for view in views] == ["", "", ""]
    assert [view["steps"] for view in ask(TEXT, steps=10)["views"]][:2] == [[[1, 6]], [[7, 10]]]


def test_a_negative_prompt_has_no_parts_and_no_tags(models: SimpleNamespace) -> None:
    (view,) = ask("bad <lora:ink:0.8> AND (ugly", is_negative=True)["views"]
    assert "".join(chips(view)).startswith("bad<lora:ink:0.8>AND")
    assert [issue["code"] for issue in view["issues"]] == ["tag-as-text", "unread-and", "unclosed-bracket"]
    assert not any("node" in issue["message"] for issue in view["issues"])


def test_problems_of_what_stays_are_marked_where_they_were(models: SimpleNamespace) -> None:
    (view,) = ask("<lora:a:1> cat <hypernet:b:1> (dog")["views"]
    assert [issue["code"] for issue in view["issues"]] == ["unclosed-bracket"]
    marked = [chip["text"] for chip in view["chunks"][0]["chips"] if chip["problems"]]
    assert marked == ["dog"]


def test_the_hosts_settings_count(models: SimpleNamespace, host_options: SimpleNamespace) -> None:
    assert chips(ask("a # b")["views"][0]) == ["a", "#", "b"]
    host_options.enable_prompt_comments = True
    assert chips(ask("a # b")["views"][0]) == ["a", "# b"]
    host_options.emphasis = "None"
    assert chips(ask("(a:1.2)")["views"][0]) == ["(", "a", ":", "1", ".", "2", ")"]
    host_options.emphasis = "Ignore"
    assert ask("(a:1.2)")["notes"] == [NOT_LOADED, IGNORED]
    assert ask("a")["notes"] == [NOT_LOADED]


def test_the_syntax_of_the_script_reads_what_the_host_leaves(models: SimpleNamespace) -> None:
    first, second = ask("[cat:dog:0.5] (red)++", syntax="compel")["views"]
    assert (chips(first), chips(second)) == (["cat", "red 1.21"], ["dog", "red 1.21"])


def test_the_loaded_model_reads_and_counts(models: SimpleNamespace, forge: fake.ForgeModel) -> None:
    forge.text_processing_engine.embeddings.add("ink", torch.zeros(3, fake.WIDTH))
    models.sd_model = forge
    (view,) = ask("a ink cat")["views"]
    assert view["total"] == "5/75"
    assert view["chunks"][0]["chips"][1]["ids"] == ["ink[0]", "ink[1]", "ink[2]"]
    assert ask("a cat BREAK a dog")["views"][0]["total"] == "77/150"
    assert ask("cat " * 75)["views"][0]["total"] == "75/75"


def test_a_model_of_an_unknown_kind_has_none(models: SimpleNamespace) -> None:
    models.sd_model = SimpleNamespace(get_learned_conditioning=None, text_processing_engine_qwen=object())
    assert ask("a cat") == {"views": [], "notes": [UNKNOWN]}
    note, idle = ask("a cat", settings={"enabled": True})["notes"]
    assert note == UNKNOWN
    assert "does not know this WebUI's SimpleNamespace, so this picture is the WebUI's own" in idle


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ([], "is an object with text, is_negative, steps, syntax"),
        ({"text": "a"}, "is an object with"),
        ({"text": 1, "is_negative": False, "steps": 1, "syntax": "a1111"}, "text must be of type str, got 1"),
        ({"text": "", "is_negative": 0, "steps": 1, "syntax": "a1111"}, "is_negative must be of type bool, got 0"),
        ({"text": "", "is_negative": False, "steps": 0, "syntax": "a1111"}, "steps must be 1 to 10000, got 0"),
        ({"text": "", "is_negative": False, "steps": 1, "syntax": "x"}, "Syntax must be one of"),
    ],
)
def test_what_is_no_request_is_refused_by_name(models: SimpleNamespace, request_: object, message: str) -> None:
    with pytest.raises((ValueError, WebUIError), match=message):
        inspected(request_)


def test_odd_characters_are_read(models: SimpleNamespace) -> None:
    assert ask("")["views"][0]["num_tokens"] == 0
    assert ask("\ud83d cat \0")["views"]


def answered(*parts: bytes) -> tuple[int, Any]:
    """Answer of the route to a body in parts."""
    pytest.importorskip("starlette")

    class Request:
        async def stream(self) -> Any:
            for part in parts:
                yield part

    response = asyncio.run(routes.answer(Request()))
    return response.status_code, json.loads(response.body)


def test_the_route_answers_in_words(models: SimpleNamespace) -> None:
    body = json.dumps({"text": "a cat", "is_negative": False, "steps": 20, "syntax": "a1111"}).encode()
    status, answer = answered(body[:10], body[10:])
    assert (status, chips(answer["views"][0])) == (200, ["a", "cat"])
    assert answered(b"{")[0] == 400
    assert answered(b"[" * 60_000)[0] == 400
    assert answered(body.ljust(64 * 1024))[0] == 200
    status, answer = answered(b"x" * routes.MAX_BYTES, b"x")
    assert (status, answer) == (413, {"error": "longer than 64 KiB: not shown"})
    too_many = json.dumps(dict(zip(FIELDS, ["[a|b]" * 2000, False, 10_000, "a1111", {}], strict=False))).encode()
    status, answer = answered(too_many)
    assert status == 400
    assert "too many" in answer["error"]


def test_more_than_a_few_at_once_are_told_to_come_back(
    models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_running", routes.MAX_AT_ONCE)
    status, answer = answered(b"{}")
    assert (status, answer["error"]) == (429, "2 prompts are being read: ask again")
    assert routes._running == routes.MAX_AT_ONCE


def test_the_script_takes_tags_for_text_as_the_host_has_taken_out_its_own(forge: fake.ForgeModel) -> None:
    """The WebUI acts on tags in the prompt and removes them; tags in a negative prompt are encoded."""
    options = Settings(True).options()
    tokens = forge.text_processing_engine.tokenize(["a <lora:ink:1> cat"])[0]
    reader = engines_of(forge)["clip_l"].reader()
    read = read_prompt("a <lora:ink:1> cat", options, reader.tokenize, reader.layout)
    assert [token.id for token in read.chunks[0].content] == tokens
    assert read.issues == ()
    kept = read_prompt("a <lora:ink:1> cat", EncodeOptions(syntax="a1111"), reader.tokenize, reader.layout)
    assert len(kept.chunks[0].content) == 2


# Tokens of a host

CLEANED = "a “red” caf&eacute;"


def places(ids: list[int]) -> list[str]:
    tokens = HostTokenize(None, lambda _, text: ids)(CLEANED)
    assert [token_id for token_id, _, _ in tokens] == ids
    return [CLEANED[start:end] for _, start, end in tokens]


def test_a_host_that_cleans_nothing() -> None:
    assert places([token.id for token in default_tokenizer()(CLEANED)])[:4] == ["a", "“", "“", "red"]


def test_a_host_that_cleans_as_forge_does() -> None:
    cleaned = [token_id for token_id, _, _ in CleaningTokenize(default_tokenizer())(CLEANED)]
    assert places(cleaned) == ["a", "“", "red", "”", "caf&eacute;"]


def test_a_host_with_ids_of_its_own() -> None:
    assert places([1, 2]) == [CLEANED, CLEANED]


# The script's settings


def told(text: str, *, is_negative: bool = False, steps: int = 20, **settings: Any) -> tuple[list[str], list[str]]:
    """Problems of a prompt that the strip tells, and what it says that the run refuses or does not do."""
    views = ask(text, is_negative=is_negative, steps=steps, settings={"enabled": True, **settings})["views"]
    issues = [issue for view in views for issue in view["issues"]]
    return (
        [issue["message"] for issue in issues if issue["code"] != REFUSED],
        [issue["message"] for issue in issues if issue["code"] == REFUSED],
    )


def test_the_scripts_choices_as_shown_are_those_of_the_strip(models: SimpleNamespace) -> None:
    shown = {"syntax": "compel: ", "scheme": OPTIONS["scheme"].shown("masked_blend"), "bind": "red cat\nblue dog"}
    shown["syntax"] = OPTIONS["syntax"].shown("compel")
    request = {"text": "a (red)++ cat, a blue dog", "settings": {"enabled": True, **shown}}
    (view,) = ask(**request)["views"]
    assert (view["syntax"], view["scheme"], view["bound"]) == (
        *("compel", "masked_blend", "2 phrases kept apart in 3 passes"),
    )
    phrases = {chip["text"]: chip.get("phrase") for chunk in view["chunks"] for chip in chunk["chips"]}
    assert (phrases["cat"], phrases["dog"], phrases["a"]) == (1, 2, None)
    # those of a script that is switched off do not count
    (view,) = ask(**{**request, "settings": {"enabled": False, **shown}})["views"]
    assert (view["syntax"], view["scheme"], view["bound"]) == ("a1111", "a1111", "")
    (view,) = ask(**request, is_negative=True)["views"]
    assert (view["scheme"], view["bound"]) == ("masked_blend", "")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"places": "red cat: left half\nbird: left"}, ["“bird” is in none of the prompts"]),
        ({"places": "red cat: nowhere"}, ["“red cat: nowhere”"]),
        ({"places": "red cat: left half, 0.6-0.2"}, ["“red cat: left half, 0.6-0.2”"]),
        ({"places": "red cat: left half, 30-40 steps"}, ["acts in none of the 20 steps"]),
        ({"places": "red cat: inside 1"}, ["changes nothing: its weight is 1 everywhere"]),
        ({"places": "red cat\ncat: 7-8\nblue fox: top"}, ["no colon", "cat: 7-8"]),
        ({"bind": "red cat\nbird"}, ["These phrases cannot be bound", "“bird” is not in the prompt"]),
        ({"bind_strength": "0.5"}, ["Strength 0.5 changes nothing: Keep apart is empty"]),
        ({"bind": "red cat", "bind_words": "red"}, ["These words changes nothing"]),
        ({"scheme": "comfy", "law": "compel"}, ["Law compel changes nothing: the scheme comfy does not read it"]),
        ({"places": "x" * 70_000 + ": left half"}, ["xxx… is in none"]),
        ({"places": "red cat: left half", "bind": "red cat\nblue dog"}, []),
        ({"places": "a\n" * 20_000}, ["Places has 20,000 lines, and at most 100 are allowed"]),
    ],
)
def test_what_the_run_would_refuse_is_said_before_it(
    models: SimpleNamespace, settings: dict[str, str], words: list[str]
) -> None:
    problems, refusals = told("a red [cat:dog:0.5] AND a blue [fox|dog], a red cat", **settings)
    assert problems == []
    for word in words:
        assert any(word.replace("xxx… ", "") in line for line in refusals), refusals
    assert bool(refusals) == bool(words)
    assert all(len(line) < 500 for line in refusals)
    assert told("a fox", is_negative=True, **settings)[1] == []


@pytest.mark.parametrize("text", ["a (cat:inf)", "a (cat:nan)", "a (cat:1e400)"])
def test_an_infinite_weight_is_told_as_the_run_refuses_it(
    models: SimpleNamespace, forge: fake.ForgeModel, text: str
) -> None:
    (problem,), _ = told(text, syntax="comfy")
    assert "it must be a finite number" in problem
    with pytest.raises(WebUIError) as caught:
        fake.armed(forge, syntax="comfy").setup_conds(text)
    assert str(caught.value) == problem


def test_an_infinite_weight_of_a_part_is_told_as_the_run_refuses_it(models: SimpleNamespace) -> None:
    (problem,), _ = told(f"a cat AND a dog :{'9' * 400}")
    assert problem == "at 16: A part between ANDs has the weight inf: it must be a finite number."
    (problem,), _ = told("a cat AND a dog :99")
    assert "99" in problem and "finite" not in problem


def test_what_the_loaded_model_cannot_do_is_said(models: SimpleNamespace, forge: fake.ForgeModel) -> None:
    models.sd_model = forge  # without a U-Net
    for settings, label in (({"places": "cat: left half"}, "Places"), ({"word_maps": True}, "Word maps")):
        (line,) = told("a cat", **settings)[1]
        assert line.startswith(f"{label} works in Forge")


def test_texts_that_cannot_be_stacked_are_said(models: SimpleNamespace, host_options: SimpleNamespace) -> None:
    assert "rows of one text" in told("a (cat:2) AND a dog", scheme="repeat")[1][0]
    assert told("a (cat:2)", scheme="repeat")[1] == []
    host_options.pad_cond_uncond = True
    assert "Pad prompt/negative prompt" in told("a (cat:2)", scheme="repeat")[1][0]
    assert "Pad prompt/negative prompt" in told("a cat", scheme="negpip")[1][0]


def test_what_styles_add_may_hold_the_phrases(models: SimpleNamespace) -> None:
    settings = {"enabled": True, "places": "bird: left half\nfox: nowhere", "bind": "bird"}
    for is_part, words in ((False, ["“bird” is not in", "“bird” is in none", "nowhere"]), (True, ["nowhere"])):
        issues = ask("a cat", settings=settings, is_part=is_part)["views"][0]["issues"]
        assert len(issues) == len(words)
        assert all(word in issue["message"] for word, issue in zip(words, issues, strict=True))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"places": 5}, "Places must be a text, got 5"),
        ({"bind": ["a"]}, "Keep apart must be a text"),
        ({"law": 1}, "Law"),
    ],
)
def test_settings_of_a_wrong_type_are_refused(models: SimpleNamespace, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(WebUIError, match=words):
        told("a cat", **settings)


def test_a_request_with_a_number_of_too_many_digits_is_refused_in_our_words(models: SimpleNamespace) -> None:
    status, answer = answered(b'{"text": "a", "is_negative": false, "steps": ' + b"9" * 5000 + b', "syntax": "a1111"}')
    assert status == 400
    assert "a number in it has more than 4,300 digits" in answer["error"]


@pytest.mark.parametrize(
    "text",
    [
        *("(dog:inf)", "(dog:nan)", "(dog:1e400)", "(dog:1e9)", f"(dog:{'9' * 400})", "(cat:12)", "(word:1.2:)"),
        *("(realistic:-1.5,)", "(cat;1.2)", "(cat=1.2)", "{{x}}", "{red|blue}", "[cat:dog:0,5]", "[cat:dog:50%]"),
        *("[cat|dog", "[cat:dog]", f"a AND b:{'9' * 400}", "a AND_PERP b", "a (cat AND b)"),
    ],
)
def test_the_strip_says_what_the_ruler_says(models: SimpleNamespace, text: str) -> None:
    status, answer = answered(json.dumps(dict(zip(FIELDS, [text, False, 20, "a1111", {}], strict=False))).encode())
    assert status == 200
    issues = [issue for view in answer["views"] for issue in view["issues"]]
    ruler = inspect({"text": text, "syntax": "a1111", "steps": 20, "cleaning": "none"})["views"]
    expected = [issue for view in ruler for issue in view["issues"]]
    assert [(issue["code"], issue.get("fix")) for issue in issues if issue["code"] != "infinite-weight"] == [
        (issue["code"], issue.get("fix")) for issue in expected if issue["code"] != "clamped-weight"
    ]
    if any(issue["code"] == "clamped-weight" for issue in expected):
        assert any("it must be a finite number" in issue["message"] for issue in issues)
