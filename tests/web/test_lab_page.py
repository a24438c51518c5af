"""The lab's page: its components and handlers in this process; and all of it, stand-alone, in headless Chromium."""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from functools import cache, partial
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gradio as gr
import pytest
from safetensors import safe_open
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.lab.access import MAX_UPLOAD_BYTES
from weighted_clip.web.lab.components import PREFIX
from weighted_clip.web.lab.handlers import Handlers
from weighted_clip.web.lab.native import RANDOM_WARNING, LoadSettings, Shelf
from weighted_clip.web.lab.page import build_page
from weighted_clip.web.lab.tabs import prompt_tabs as tabs
from weighted_clip.web.lab.tabs.image_tokens import TokenLab
from weighted_clip.web.lab.tabs.prompt_tabs import (
    COMPARED,
    CompareTab,
    ConvertTab,
    ExportTab,
    MasksTab,
    ScheduleTab,
    TokensTab,
)
from weighted_clip.web.lab.tabs.text_to_image import TextToImageLab
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.convert import TARGETS, convert
from weighted_clip.weighting.schemes import SCHEMES

from ..dalle.models import palette_dvae
from ..patience import SECONDS
from .chromium import Browser
from .conftest import PRIOR, dalle_of
from .handling import no_model, noting, small_model, strip_of, values_of
from .lab_in_browser import LabPage

ROOT = Path(__file__).resolve().parents[2]
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl"
BASE = EncodeOptions(syntax="a1111", scheme="masked_blend")
INTERACTIVE = (gr.Textbox, gr.Dropdown, gr.Radio, gr.CheckboxGroup, gr.Button, gr.Number, gr.Slider, gr.File, gr.Image)
LONG = "(cat:1.1) dog, " * 1000
"""2,000 words."""
HARD = {
    "2,000 words": (LONG, "75 / 75 in chunk 40 of 40", ""),
    "emoji": ("🦊🐙👩‍👩‍👧‍👦 " * 300, "75 / 75 in chunk 40 of 40", ""),
    "brackets": ("(((a [b (c:1.2 )))] " * 50, "75 / 75 in chunk 2 of 2", "“(” is never closed"),
    "empty": ("", "0 / 75", ""),
    "too long": ("word " * 14_000, "", "longer than 64 KiB"),
    "markup": ("</div><script>document.title = 'evil'</script> & \"it's\"", "20 / 75", ""),
}
"""Prompt, beginning of the count line, and expected text of the page."""
LATE_ANSWERS = """
window.promptFetch = window.fetch;
window.numLate = 0;
window.fetch = async (address, ...rest) => {
  const answer = await window.promptFetch(address, ...rest);
  if (!String(address).includes("/run/predict")) return answer;
  await new Promise((resolve) => setTimeout(resolve, 5000));
  window.numLate += 1;
  return answer;
};
"""
"""Answers to whatever does not wait in gradio's queue come five seconds late; the first is that to Cancel."""


@pytest.fixture
def handlers() -> Handlers:
    return Handlers(small_model, BASE)


values = partial(values_of, BASE)


def show_all(handlers: Handlers, text: str) -> None:
    """Fill each tab that is filled while its user types."""
    for tab, own in ((TokensTab, ()), (MasksTab, (1,)), (ConvertTab, ("compel",)), (ScheduleTab, ())):
        tab(handlers).show(*own, text, *values())


PROMPT_TABS = ["Tokens", "Masks", "Compare schemes", "Convert", "Export", "Schedule", "Two prompts"]
HANDLERS = {"read", "follow", "open_tab", "compare", "cancel", "export", "_used", "pooled"}
MORE_HANDLERS = {
    *("show", "_choose", "_drop", "rank"),
    *("encode", "point", "swap", "pieces", "begin", "draw"),
}
WAYS = ["From txt2img", "From img2img", "Send to txt2img", "Send to img2img"]
PAGES: dict[str, tuple[list[str], list[str], set[str]]] = {
    "plain": ([], [], set()),
    "WebUI": ([], WAYS, set()),
    "alone": (["Attention", "Pictures", "Image tokens", "Text to image"], [], MORE_HANDLERS),
}
"""Further tabs, ways to and from a host's boxes, and further handlers of each kind of page."""


@cache
def page_of(kind: str) -> gr.Blocks:
    more: dict[str, Any] = {
        "plain": {},
        "WebUI": {"is_in_webui": True},
        "alone": {
            "is_alone": True,
            "shelf": Shelf(small_model(), "random weights", LoadSettings(), {}),
            "image_tokens": TokenLab(palette_dvae()),
            "text_to_image": TextToImageLab(dalle_of(PRIOR)),
        },
    }[kind]
    return build_page(small_model, **more)


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_has_its_tabs_and_each_component_an_id_and_a_label_of_its_own(kind: str) -> None:
    blocks = page_of(kind).blocks.values()
    parts = [part for part in blocks if isinstance(part, (*INTERACTIVE, gr.HTML))]
    ids = [part.elem_id for part in parts]
    labels = [part.value if isinstance(part, gr.Button) else part.label for part in parts]
    assert len(parts) > 25
    assert len(set(ids)) == len(ids)
    assert all(name and name.startswith(PREFIX) for name in ids)
    assert all(labels)
    twice = {one for one in labels if labels.count(one) > 1}
    assert twice == ({"Cancel", "Images"} if kind == "alone" else set())  # of comparing and of drawing
    more_tabs, ways, _ = PAGES[kind]
    assert [part.label for part in blocks if isinstance(part, gr.Tab)] == PROMPT_TABS + more_tabs
    assert [one for one in labels if one in WAYS] == ways


@pytest.mark.parametrize("kind", PAGES)
def test_every_listener_can_be_called_with_what_the_page_starts_with(kind: str) -> None:
    names = set()
    for listener in page_of(kind).fns.values():
        if listener.fn is None:  # a script of the page
            continue
        result = listener.fn(*(part.value for part in listener.inputs))
        results = list(result) if hasattr(result, "__next__") else [result]
        assert results
        for one in results:
            assert len(one if isinstance(one, tuple) else (one,)) == len(listener.outputs), listener.fn
        names.add(listener.fn.__name__)
    assert names == HANDLERS | PAGES[kind][2]


def test_a_page_needs_no_model_to_be_built_and_to_read() -> None:
    handlers = Handlers(no_model, BASE)
    line, strip, *_ = handlers.read(PROMPT, *values())
    assert "No model is loaded yet." in line
    assert strip_of(strip)["view"]["num_tokens"] == 9
    assert "No model is loaded yet." in ExportTab(handlers).export(PROMPT, *values())[1]
    assert "No model is loaded yet." in list(CompareTab(handlers).compare({}, ["comfy"], PROMPT, *values()))[-1][2]
    assert build_page(no_model).fns


def test_strip_holds_the_view_and_the_same_as_text(handlers: Handlers) -> None:
    line, markup, note, *_ = handlers.read(PROMPT, *values(hide="cat"))
    chips = strip_of(markup)["view"]["chunks"][0]["chips"]
    assert [(one["text"], one["weight"]) for one in chips][1:6:4] == [("red", 1.4), ("dog", 0.5)]
    assert [one["text"] for one in chips if one["hidden"]] == ["cat"]
    assert "a · red (1.4) · cat · and · a · dog (0.5) · in · a · bowl" in markup
    assert "9 / 75" in markup
    assert RANDOM_WARNING in unescape(line)
    assert SCHEMES["masked_blend"].advice in unescape(note)


def test_what_goes_with_phrases_appears_once_one_is_typed(handlers: Handlers) -> None:
    def seen(**changes: Any) -> list[bool]:
        return [one["visible"] for one in handlers.read(PROMPT, *values(**changes))[4:]]

    assert seen() == [False, False, False, False]
    assert seen(bind="red cat") == [True, False, False, False]
    assert seen(bind_rest="alone") == [True, False, False, False]  # nothing acts unseen
    assert seen(bind_hide="cutoff") == seen(bind_words="red") == [True, True, False, False]
    assert seen(hide="cat") == [False, False, True, False]
    assert seen(hidden_from="the phrases below") == [False, False, True, True]
    note = handlers.read(PROMPT, *values(padding="mask", bind="red cat"))[2]
    assert "Padding mask, Keep apart." in note


@pytest.mark.parametrize("name", HARD)
def test_hard_prompts_are_read_and_say_what_is_wrong(handlers: Handlers, name: str) -> None:
    text, count, told = HARD[name]
    markup = handlers.read(text, *values())[1]
    data = strip_of(markup)
    assert "<script" not in markup
    if data["view"] is None:
        assert told in data["message"]
        assert told in unescape(markup)
        return
    last = data["view"]["chunks"][-1]
    assert count.startswith(f"{last['num_tokens']} / {last['capacity']}")
    assert told in " ".join(issue["message"] for issue in data["view"]["issues"])
    show_all(handlers, text)


@pytest.mark.parametrize(
    ("text", "changes", "told"),
    [
        ("a \ud800 b", {}, "lone surrogate"),
        (PROMPT, {"syntax": "no such syntax"}, "Syntax must be one of: comfy, a1111"),
        (PROMPT, {"padding": "no such"}, "Padding must be one of"),
    ],
)
def test_errors_come_as_text(handlers: Handlers, text: str, changes: dict[str, str], told: str) -> None:
    given = values(**changes)
    assert told in strip_of(handlers.read(text, *given)[1])["message"]
    assert told in TokensTab(handlers).show(text, *given)[0]
    assert told in MasksTab(handlers).show(1, text, *given)[1]
    assert told in ConvertTab(handlers).show("comfy", text, *given)[1]
    assert told in list(CompareTab(handlers).compare({}, ["comfy"], text, *given))[-1][2]
    assert told in ExportTab(handlers).export(text, *given)[1]


@pytest.mark.parametrize("target", [None, 5, {"path": "a"}, ["comfy"]])
def test_a_target_that_is_no_text_is_told(handlers: Handlers, target: Any) -> None:
    assert "Target syntax must be a text" in ConvertTab(handlers).show(target, PROMPT, *values())[1]


def test_an_error_nobody_foresaw_is_told_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    def run(function: Any, *arguments: Any) -> Any:
        raise RuntimeError("out of memory")

    handlers = Handlers(small_model, BASE, run)
    assert "RuntimeError: out of memory" in ExportTab(handlers).export(PROMPT, *values())[1]
    *_, last = CompareTab(handlers).compare({}, ["comfy"], PROMPT, *values())
    assert "RuntimeError: out of memory" in last[2]
    assert last[0]["interactive"] is True
    assert caplog.text.count("Traceback") == 2


def test_parts_show_what_they_are_of(handlers: Handlers) -> None:
    table = TokensTab(handlers).show(PROMPT, *values())[0]
    assert "<td>1929</td><td>dog</td><td>0.5</td>" in table
    two = "a cat BREAK (a dog:1.2)"
    for chunk, word in ((1, "cat"), (2, "dog"), (99, "dog")):
        number, masks = MasksTab(handlers).show(chunk, two, *values(hide=word))
        assert masks.count("<img") == 4, "the mask of the hidden phrase is there if this chunk has it"
        assert number["label"] == "Chunk, 1 to 2"
        assert number["visible"] is True
    for target in TARGETS:
        text, problems = ConvertTab(handlers).show(target, PROMPT, *values())
        converted = convert(PROMPT, "a1111", target, default_tokenizer())
        assert text == converted.text
        assert ("Nothing is lost" in problems) == (not converted.issues)
        assert not converted.issues or target not in ("comfy", "a1111", "compel")
    assert "BREAK cannot be written" in ConvertTab(handlers).show("comfy", two, *values())[1]


def test_comparison_shows_more_with_every_scheme_and_can_be_cancelled(handlers: Handlers) -> None:
    job: dict[str, Any] = {}
    first, *steps, last = CompareTab(handlers).compare(job, ["masked_blend", "comfy", "a1111"], PROMPT, *values())
    assert [step[3].count("<tr>") for step in steps] == [2, 3, 4]
    assert [step[1]["interactive"] for step in (first, *steps, last)] == [True] * 4 + [False]
    assert "3 of 3 schemes: done" in last[2]

    steps = CompareTab(handlers).compare(job, list(SCHEMES), PROMPT, *values())
    seen = [next(steps), next(steps)]
    CompareTab(handlers).cancel(job)
    seen += steps
    assert len(seen) == 3
    assert f"1 of {len(SCHEMES)} schemes: cancelled" in seen[-1][2]
    assert seen[-1][0]["interactive"] is True
    assert "Choose at least one scheme" in next(CompareTab(handlers).compare(job, [], PROMPT, *values()))[2]


def test_cancel_ends_a_scheme_that_has_begun(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    job: dict[str, Any] = {}
    calls: list[int] = []
    encode = PrefixTextEncoder.__call__

    def cancelling(self: Any, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        calls.append(len(ids))
        job["is_cancelled"] = len(calls) > 5
        return encode(self, ids, mask, is_causal=is_causal)

    monkeypatch.setattr(PrefixTextEncoder, "__call__", cancelling)
    words = " ".join(f"(word{number}:0.{number + 100})" for number in range(200))
    *_, last = CompareTab(handlers).compare(job, ["masked_blend", "comfy"], words, *values())
    assert "1 of 2 schemes: cancelled" in last[2]  # comfy was done
    assert len(calls) == 6


def test_what_needs_weights_and_nothing_else_goes_through_run() -> None:
    calls: list[str] = []
    handlers = Handlers(small_model, BASE, noting(calls))
    handlers.read(PROMPT, *values())
    show_all(handlers, PROMPT)
    assert calls == []
    ExportTab(handlers).export(PROMPT, *values())
    list(CompareTab(handlers).compare({}, ["comfy", "a1111"], PROMPT, *values()))
    assert calls == ["export", "next", "next"]


# --- stand-alone, in a browser


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Address of a lab with random weights of full size, as started by the command."""
    if sys.platform == "win32":
        pytest.skip("it is ended by a signal that Windows does not have")
    command = [sys.executable, "-P", str(ROOT / "__main__.py"), "lab", "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        try:
            line = process.stdout.readline()
            found = re.fullmatch(r"Prompt Lab: (http://127\.0\.0\.1:\d+/[0-9a-f]{32}/) \(Ctrl-C ends it\)\n", line)
            assert found, f"{line}{process.stderr.read()}"
            yield found[1]
            process.send_signal(signal.SIGINT)
            rest, problems = process.communicate(timeout=SECONDS)
            assert (process.returncode, rest) == (0, "")
            assert problems.strip() == f"*** {RANDOM_WARNING} ***"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Host": "evil.example"}, 400),
        ({"Content-Length": str(MAX_UPLOAD_BYTES + 1)}, 413),
        ({"Transfer-Encoding": "chunked"}, 411),
        ({"Transfer-Encoding": "chunked", "Content-Length": "5"}, 411),
    ],
)
def test_pages_elsewhere_cannot_leave_files_here(address: str, headers: dict[str, str], status: int) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=SECONDS)
    connection.putrequest("POST", f"{urlsplit(address).path}gradio_api/upload", skip_host=True)
    defaults = {"Host": urlsplit(address).netloc, "Content-Type": "multipart/form-data; boundary=b"}
    if "Transfer-Encoding" not in headers:
        defaults["Content-Length"] = "10"
    for name, value in (defaults | headers).items():
        connection.putheader(name, value)
    connection.endheaders()
    with closing(connection):
        assert connection.getresponse().status == status


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/file=/etc/passwd",
        f"gradio_api/file={ROOT / 'README.md'}",
        "weighted-clip/javascript/%2e%2e/README.md",
        "gradio_api/proxy=http://127.0.0.1:80/",
        "gradio_api/vibe-code/",
    ],
)
def test_files_and_other_servers_are_out_of_reach(address: str, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match=r"HTTP Error 40[034]"):
        urllib.request.urlopen(f"{address}{path}")


@pytest.fixture(scope="module")
def opened(address: str, browser: Browser) -> Iterator[LabPage]:
    with browser.tab() as tab:
        page = LabPage(tab)
        page.open(address)
        yield page
        assert tab.complaints() == []
        elsewhere = [one for one in tab.requests() if not one.startswith((address, "data:", "blob:"))]
        assert elsewhere == []


@pytest.fixture
def lab(opened: LabPage) -> LabPage:
    """The page with our prompt in it."""
    opened.fill("prompt", PROMPT)
    opened.wait_until_read(PROMPT)
    return opened


def test_warning_and_strip_are_there_at_once(lab: LabPage) -> None:
    assert lab.chips() == ["a", "red 1.4", "cat", "and", "a", "dog 0.5", "in", "a", "bowl"]
    assert lab.count_line().splitlines()[0].startswith("9 / 75")
    assert RANDOM_WARNING in lab.text("model")
    assert "“Other weights” takes a file" in lab.text("model")
    assert not lab.tab.run("return document.querySelector('#weighted_clip_strip').offsetParent")


def test_strip_follows_the_typing(lab: LabPage) -> None:
    lab.focus("prompt")
    lab.tab.type("two (foxes:1.3) meet a [heron] by the river at dawn")
    expected = [*("two", "foxes 1.3", "meet", "a", "her", "on 0.91"), *("by", "the", "river", "at", "dawn")]
    lab.tab.wait("return document.querySelector('.wcr-chips')?.textContent.includes('dawn')")
    chips = lab.chips()
    assert [chips[1], chips[-1]] == [expected[1], expected[-1]]


def test_choices_change_the_strip(lab: LabPage) -> None:
    lab.choose("syntax", "none")
    lab.tab.wait("return document.querySelectorAll('.wcr-chip').length > 9")
    lab.choose("syntax", "a1111")
    lab.wait_for_chips(["a", "red 1.4", "cat", "and", "a", "dog 0.5", "in", "a", "bowl"])
    lab.choose("scheme", "masked_blend")
    lab.wait_for_text("scheme_note", SCHEMES["masked_blend"].advice)
    lab.tab.wait("return document.querySelector('.wcr-bar').textContent.includes('masked_blend')")


@pytest.mark.parametrize("name", HARD)
def test_page_stays_responsive(lab: LabPage, name: str) -> None:
    text, count, told = HARD[name]
    lab.fill("prompt", text)
    lab.wait_until_read(text)
    lab.tab.wait("return document.querySelector('.wcr-bar').innerText.startsWith(args[0])", count)
    assert told in lab.tab.run("return document.querySelector('.weighted-clip-ruler').innerText")
    lab.fill("prompt", PROMPT)
    lab.wait_until_read(PROMPT)
    assert lab.tab.run("return document.title") == "Prompt Lab"


def test_tokens_and_masks(lab: LabPage) -> None:
    lab.open_part("Tokens")
    assert "1929" in lab.wait_for_text("tokens", "dog")
    lab.open_part("Masks")
    titles = [one["alt"].split(".")[0] for one in lab.wait_for_pictures("masks", 3)]
    assert {"causal mask", "padding mask", "product"} <= set(titles)
    lab.fill("prompt", "a cat BREAK a dog")
    lab.tab.wait("return document.querySelector('#weighted_clip_chunk')?.innerText.includes('1 to 2')")
    before = lab.tab.run("return document.querySelector('#weighted_clip_masks img').src")
    lab.fill("chunk", "2")
    lab.tab.wait("return document.querySelector('#weighted_clip_masks img').src !== args[0]", before)


def test_what_was_refused_goes_once_something_is_changed_and_comes_again(lab: LabPage) -> None:
    lab.open_part("Compare schemes")
    lab.check("schemes", *COMPARED)
    seen = "return document.querySelector('#weighted_clip_progress').innerText.includes('Choose at least one scheme')"
    for _ in range(2):
        lab.click("compare")
        lab.tab.wait(seen)
        lab.tab.run(
            "const box = document.querySelector('#weighted_clip_prompt textarea');"
            "box.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        assert not lab.tab.run(seen)
    lab.check("schemes", *COMPARED)  # the page remembers its choices


def test_comparison_runs_and_can_be_cancelled(lab: LabPage) -> None:
    lab.open_part("Compare schemes")
    lab.click("compare")
    assert f"{len(COMPARED)} of {len(COMPARED)} schemes: done" in lab.wait_for_text("progress", "done")
    assert "×1.40" in lab.text("comparison")
    assert "masked_blend" in lab.text("comparison")

    assert PROMPT in lab.text("comparison")
    assert "Normalization none" in lab.text("comparison")
    assert "problem" not in lab.text("comparison")  # that unweighted applies no weights is none

    stale = "return !!document.querySelector('#weighted_clip_comparison .weighted-clip-stale')"
    changed = "return !!document.querySelector('#weighted_clip_comparison .weighted-clip-changed')?.offsetParent"
    assert not lab.tab.run(stale)
    assert not lab.tab.run(changed)
    lab.choose("padding", "mask")
    assert lab.tab.wait(stale)
    assert lab.tab.wait(changed)
    lab.choose("padding", "attend")
    lab.tab.wait(stale.replace("!!", "!"))
    lab.choose("scheme", "comfy")  # not one of their options
    lab.wait_for_text("scheme_note", SCHEMES["comfy"].advice)
    time.sleep(0.6)
    assert not lab.tab.run(stale)
    lab.choose("scheme", "masked_blend")
    lab.fill("prompt", "a (red:1.4) cat and a (dog:0.5) in a bowl, " * 40)
    lab.tab.wait(stale)
    assert PROMPT in lab.text("comparison")
    lab.check("schemes", "compel", "perp", "lpw", "comfy++", "lerp_last", "down_weight")
    lab.click("compare")
    lab.wait_for_text("progress", "encoding with")
    lab.tab.run(LATE_ANSWERS)
    lab.click("cancel")
    lab.wait_for_text("progress", "schemes: cancelled")
    lab.tab.wait("return !document.querySelector('button#weighted_clip_compare').disabled")
    lab.tab.wait("return window.numLate > 0")
    time.sleep(0.5)
    assert f"of {len(COMPARED) + 6} schemes: cancelled" in lab.text("progress")
    lab.tab.run("window.fetch = window.promptFetch")


def test_conversion_becomes_the_prompt(lab: LabPage) -> None:
    lab.open_part("Convert")
    lab.wait_for_value("converted", "a (red)1.4 cat and a (dog)0.5 in a bowl")
    lab.click("use_converted")
    lab.wait_for_value("prompt", "a (red)1.4 cat and a (dog)0.5 in a bowl")
    lab.wait_for_value("syntax", "compel")
    lab.wait_for_chips(["a", "red 1.4", "cat", "and", "a", "dog 0.5", "in", "a", "bowl"])
    lab.choose("syntax", "a1111")
    lab.fill("prompt", PROMPT)
    lab.wait_for_chips(["a", "red 1.4", "cat", "and", "a", "dog 0.5", "in", "a", "bowl"])


def test_export_can_be_downloaded(lab: LabPage, tmp_path: Path) -> None:
    lab.choose("scheme", "masked_blend")
    lab.open_part("Export")
    lab.click("export")
    link = lab.tab.wait("return document.querySelector('#weighted_clip_file a[href]')?.href")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    path = tmp_path / "downloaded.safetensors"
    with opener.open(link) as answer:
        path.write_bytes(answer.read())
    with safe_open(path, "pt") as file:
        assert file.get_tensor("hidden").shape == (1, 77, 768)
        assert file.metadata()["prompt"] == PROMPT
        assert file.metadata()["warning"] == RANDOM_WARNING
    assert "Encoded with masked_blend" in lab.wait_for_text("export_report", "Encoded with")


def test_only_this_computer_is_answered_and_only_our_files_are_served(address: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def status(path: str, host: str = "127.0.0.1") -> tuple[int, str]:
        request = urllib.request.Request(address + path, headers={"Host": host})
        try:
            with opener.open(request) as answer:
                return answer.status, answer.headers["content-security-policy"]
        except urllib.error.HTTPError as error:
            return error.code, ""

    assert status("weighted-clip/javascript/weighted_clip.mjs")[0] == 200
    assert status("weighted-clip/web/comfyui/ruler/draw.js")[0] == 200
    assert status("weighted-clip/style.css")[0] == 200
    assert status("weighted-clip/javascript/..%2f..%2frun.py")[0] == 404
    assert status("", host="elsewhere.example")[0] == 400
    assert "default-src 'self'" in status("")[1]


@pytest.mark.parametrize("converted", [None, 5, 0.5, True, ["a"], {"a": "b"}, "", " "])
def test_what_is_no_converted_prompt_leaves_the_prompt_as_it_is(converted: Any) -> None:
    assert tabs._used(converted, "compel", PROMPT, "a1111") == (PROMPT, "a1111")
    assert tabs._used("a cat", "compel", PROMPT, "a1111") == ("a cat", "compel")


def test_phrases_are_kept_apart_and_the_masks_show_how(handlers: Handlers) -> None:
    text, chosen = "a red cat and a blue dog", {"bind": "red cat\nblue dog", "scheme": "unweighted"}
    masks = MasksTab(handlers).show(1, text, *values(**chosen))[1]
    assert "all phrases hidden but one" in masks
    assert strip_of(handlers.read(text, *values(**chosen))[1])["view"]["issues"] == []
    assert "is not in the prompt" in handlers.read(text, *values(bind="bird"))[1]


def test_the_lab_binds_by_words_and_as_cutoff(handlers: Handlers) -> None:
    text = "a red cat, a blue dog"
    words = {"bind": "red cat\nblue dog", "bind_hide": "these words", "bind_words": "red, blue", "bind_strength": 0.5}
    assert "these words hidden in all phrases but one" in MasksTab(handlers).show(1, text, *values(**words))[1]
    cutoff = {"bind_hide": "cutoff", "bind_words": "Red"}
    assert (
        "“Red” is not in the prompt as whole words written just like that" in handlers.read(text, *values(**cutoff))[1]
    )
    exporting = ExportTab(handlers)
    file, told = exporting.export(text, *values(scheme="comfy", bind_hide="cutoff", bind_words="red\nblue"))
    assert file is not None, told
    assert "Strength must be 0 to 1" in handlers.read(text, *values(bind_strength=2))[1]
    assert "Strength must be a number" in handlers.read(text, *values(bind_strength="much"))[1]
