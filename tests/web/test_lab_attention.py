"""The lab's tab for attention: whose weights it shows, what it says of each word, and how it is gone through."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.lab.handlers import Handlers
from weighted_clip.web.lab.native import NativeLabModel, Settings
from weighted_clip.web.lab.tabs.attention_tab import AttentionTab
from weighted_clip.web.lab.tabs.attention_view import MAX_VERSIONS, Attended, attention_chart
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.padding import PADDINGS
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..libraries import library
from .handling import CONFIG, no_model, small_model, values_of
from .lab_in_browser import LabPage

BASE = EncodeOptions(syntax="a1111", scheme="masked_blend")
PROMPT = "a red cat and a (dog:0.5) in a bowl"


@pytest.fixture
def handlers() -> AttentionTab:
    return AttentionTab(Handlers(small_model, BASE))


def shown(handlers: AttentionTab, text: str, *numbers: Any, **changes: str) -> tuple[list[Any], str]:
    """Layer, head, version, chunk and tower are ``numbers``; what the numbers may be, and the markup."""
    *parts, markup = handlers.show(*(*numbers, 1, 1, 1)[:5], text, *values_of(BASE, **changes))
    return parts, unescape(markup)


def rows_of(markup: str) -> list[tuple[str, list[str], list[float]]]:
    """For each word what is said, what stands at the others, and its shares."""
    found = re.search(r"data-rows='(\[.*?\])'>", markup)
    assert found
    return json.loads(found[1])


@pytest.mark.parametrize("scheme", ["a1111", "masked_blend"])
def test_shares_are_those_of_transformers(handlers: AttentionTab, scheme: str) -> None:
    library("transformers", "4.46")
    reference = transformers_text_model(seeded_text_model(CONFIG), "eager")
    words = default_tokenizer()("a red cat and a dog in a bowl")
    ids = torch.full((1, 77), CONFIG.pad_id)
    ids[0, : len(words) + 2] = torch.tensor([CONFIG.bos_id, *(word.id for word in words), CONFIG.eos_id])
    dog = 6
    for version in (1, 2) if scheme == "masked_blend" else (1,):
        mask = torch.ones(1, 77, dtype=torch.long)
        mask[0, dog] = 1 if version == 1 else 0
        with torch.no_grad():
            attentions = reference(ids, mask, output_attentions=True).attentions
        for layer, head in ((1, 1), (3, 4), (2, 0)):
            rows = rows_of(shown(handlers, PROMPT, layer, head, version, scheme=scheme)[1])
            expected = attentions[layer - 1][0]
            expected = expected.mean(0) if head == 0 else expected[head - 1]
            found = torch.tensor([row[2] for row in rows])
            assert found.shape == (14, 14)
            assert (found - expected[:14, :14]).abs().max() <= 0.6e-4, "rounded to four digits"
            assert [row[1][dog] for row in rows][dog + 1 :].count("hidden") == (0 if version == 1 else 7)


def test_what_is_said_is_what_is_drawn(handlers: AttentionTab) -> None:
    parts, markup = shown(handlers, PROMPT, 2, 3, 2)
    assert "layer 2 of 3, head 3 of 4, masked_blend: without 0.5 and less" in markup
    assert [part.get("maximum") for part in parts[:2]] == [3, 4]
    assert [part["visible"] for part in parts[2:]] == [True, False, False]
    assert parts[2]["label"] == "Version, 1 to 2"
    for query, (told, texts, shares) in enumerate(rows_of(markup)):
        assert texts[query + 1 :] == ["later"] * (13 - query)
        assert abs(sum(shares) - 1) < 1e-3
        assert told.endswith(f"{13 - query} later and 1 hidden") or query < 6 or query == 13
        best = max(range(14), key=lambda key: shares[key])
        assert (
            f"attends {['BOS', *['a', 'red', 'cat', 'and', 'a', 'dog', 'in', 'a', 'bowl'], 'EOS', *['PAD'] * 3][best]} "
            in told
        )
    assert markup.count("<line ") == 14
    assert "63 positions of padding" in markup


def test_masks_that_hide_from_some_and_causality_are_shown(handlers: AttentionTab) -> None:
    chosen = {"hide": "red", "hidden_from": "the phrases below", "from_phrases": "bowl", "scheme": "unweighted"}
    rows = rows_of(shown(handlers, "a red cat in a bowl", 1, 1, **chosen)[1])
    assert [row[1][2] == "hidden" for row in rows[2:]] == [False, False, False, False, True, *[False] * 4]
    free = Handlers(small_model, EncodeOptions(is_causal=False))
    rows = rows_of(shown(AttentionTab(free), "a red cat", 1, 1, scheme="unweighted")[1])
    assert "later" not in {text for row in rows for text in row[1]}
    for padding in PADDINGS:
        rows = rows_of(shown(handlers, "a red cat", 1, 1, padding=padding, scheme="unweighted")[1])
        assert ("hidden" in rows[-1][1]) == padding.startswith("mask")


def test_numbers_that_are_too_large_mean_the_last_one_and_others_are_refused(handlers: AttentionTab) -> None:
    long = "a cat BREAK a (dog:0.5)"
    parts, markup = shown(handlers, long, 99, 99, 99, 99, 99)
    assert "layer 3 of 3, head 4 of 4, chunk 2 of 2, masked_blend: without 0.5 and less" in markup
    assert [part["value"] for part in parts[:2]] == [3, 4]
    assert [part["label"].strip() for part in parts[2:4]] == ["Version, 1 to 2", "Chunk, 1 to 2"]
    for odd in (None, float("nan"), -3, "much", 1e300, 1.5, True):
        for place, label in enumerate(("Layer", "Head", "Version", "Chunk of the prompt", "Text encoder")):
            numbers = [1, 1, 1, 1, 1]
            numbers[place] = odd
            parts, markup = shown(handlers, long, *numbers)
            assert f"{label} must be a whole number" in markup
            assert not any("value" in part for part in parts)
    many = " ".join(f"(word{number}:0.{number + 100})" for number in range(MAX_VERSIONS + 50))
    assert shown(handlers, many, 1, 1)[0][2]["visible"]


def test_each_text_encoder_has_weights_of_its_own() -> None:
    configs = {"clip_l": CONFIG, "clip_g": TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=64, pad_id=0)}
    both = {name: seeded_text_model(config) for name, config in configs.items()}
    handlers = AttentionTab(Handlers(lambda: NativeLabModel("xl", configs, lambda: both, Settings()), BASE))
    parts, first = shown(handlers, "a cat", 9, 9, 1, 1, 1)
    assert "clip_l, layer 3 of 3, head 4 of 4" in first
    assert parts[4] == {"label": "Text encoder: 1 clip_l, 2 clip_g", "visible": True, "__type__": "update"}
    second = shown(handlers, "a cat", 9, 9, 1, 1, 2)[1]
    assert "clip_g, layer 2 of 2, head 2 of 2" in second
    assert rows_of(first) != rows_of(second)


def test_errors_and_encoders_that_show_nothing_are_told(handlers: AttentionTab) -> None:
    assert "lone surrogate" in shown(handlers, "a \ud800", 1, 1)[1]

    class Host:
        title = warning = ""

    other = AttentionTab(Handlers(lambda: Host(), BASE))  # type: ignore[arg-type, return-value]
    assert "does not show its attention" in shown(other, PROMPT, 1, 1)[1]
    assert "No model is loaded yet." in shown(AttentionTab(Handlers(no_model, BASE)), PROMPT, 1, 1)[1]


def test_what_users_type_is_escaped() -> None:
    markup = attention_chart(Attended(["<b>", "'\"", " "], [[1, 0, 0]] * 3, [[True] * 3] * 3, False, "<i>"))
    assert not re.search("<b>[^<]|<i>", markup.replace("<b title", ""))
    assert "title=''" not in markup


# --- in a browser


@pytest.fixture
def opened(lab: LabPage) -> LabPage:
    """The page with that tab open."""
    lab.open_part("Attention")
    lab.wait_for_text("attention", "layer 1 of 2")
    return lab


WORD = "[...document.querySelectorAll('.weighted-clip-from button')]"


def test_pointer_and_keys_go_through_the_words(opened: LabPage) -> None:
    lab = opened
    told = "return document.querySelector('.weighted-clip-told').textContent"
    assert lab.tab.run(told).startswith("bowl attends ")
    x, y = lab.tab.run(f"const at = {WORD}[3].getBoundingClientRect(); return [at.x + 5, at.y + 5]")
    lab.tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    lab.tab.wait(f"{told}.startsWith('cat attends ')")
    shares = lab.tab.run(
        "return [...document.querySelectorAll('.weighted-clip-to em')].map((one) => one.textContent).join()"
    )
    assert re.fullmatch(r"([<0-9.]+ %,){4}later(,later){9}", shares)
    lab.tab.run(f"{WORD}[3].focus()")
    for key, code, name in (("ArrowDown", 40, "and"), ("End", 35, "PAD"), ("Home", 36, "BOS"), ("ArrowUp", 38, "BOS")):
        for kind in ("keyDown", "keyUp"):
            lab.tab.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        lab.tab.wait(f"{told}.startsWith('{name} attends ')")
        assert lab.tab.run("return document.activeElement.getAttribute('aria-checked')") == "true"
    assert lab.tab.run(f"return {WORD}.filter((one) => one.tabIndex === 0).length") == 1
    assert lab.tab.run(told) == "BOS attends BOS 100 %; not seen: 13 later"
    lab.tab.run(
        "const {left, top, height} = document.querySelector('.weighted-clip-matrices svg').getBoundingClientRect();"
        "document.querySelector('.weighted-clip-matrices svg').dispatchEvent(new PointerEvent('pointermove',"
        "  {bubbles: true, clientX: left + 5, clientY: top + height * 2.5 / 14}))"
    )
    lab.tab.wait(f"{told}.startsWith('red attends ')")


def test_the_chosen_word_layer_and_head_stay(opened: LabPage, small_lab: str) -> None:
    lab = opened
    lab.tab.run(f"{WORD}[2].focus()")
    lab.fill_new("layer", "2")
    assert "red attends" in lab.wait_for_text("attention", "layer 2 of 2")
    lab.fill_new("head", "1")
    lab.wait_for_text("attention", "head 1 of 1")
    lab.tab.wait("return decodeURIComponent(location.hash).includes('\"head\":1')")
    lab.choose("scheme", "masked_blend")
    lab.wait_for_text("attention", "masked_blend: the prompt")
    lab.fill_new("version", "2")
    lab.wait_for_text("attention", "masked_blend: without 0.5 and less")
    lab.tab.run(f"{WORD}[9].focus()")
    lab.tab.wait("return document.querySelector('.weighted-clip-told').textContent.endsWith('4 later and 1 hidden')")
    lab.fill("prompt", "a blue bird")
    lab.wait_for_text("attention", "bird attends")
    lab.tab.open("about:blank")
    lab.open(small_lab)
    lab.open_part("Attention")
    lab.wait_for_text("attention", "layer 2 of 2, head 1 of 1")
