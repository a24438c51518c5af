"""The lab's tab for two prompts: tokens that they share, and the similarity of their pooled vectors."""

from __future__ import annotations

import re
from html import unescape

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.lab.beside import MAX_TOKENS, BesideTab, compared
from weighted_clip.web.lab.handlers import Handlers
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt
from weighted_clip.workshop.peers.transformers import transformers_text_model

from ..libraries import library
from .handling import BASE, CONFIG, no_model, noting, small_model, values_of
from .lab_in_browser import LabPage

VALUES = values_of(BASE)


@pytest.fixture
def beside() -> BesideTab:
    return BesideTab(Handlers(small_model, BASE))


def of(one: str, other: str, syntax: str = "a1111") -> list[list[tuple[str, str]]]:
    reads = (read_prompt(text, EncodeOptions(syntax=syntax), default_tokenizer()) for text in (one, other))
    return [[(token.text, token.kind) for token in some] for some in compared(*reads)]


def test_tokens_are_laid_beside_each_other() -> None:
    first, second = of("a (red:1.4) cat in a bowl", "a red dog in a hat, (bowl:1)")
    assert first == [
        *(("a", "same"), ("red", "weight"), ("cat", "own"), ("in", "same"), ("a", "same"), ("bowl", "same"))
    ]
    assert [text for text, kind in second if kind == "own"] == ["dog", "hat", ","]
    assert ("red", "weight") in second


@given(*[st.lists(st.sampled_from(["a", "red", "(cat:1.2)", "🦊", "BREAK", "dog,"]), max_size=12)] * 2)
def test_what_is_in_both_is_the_same_in_both_and_all_else_is_left(one: list[str], other: list[str]) -> None:
    texts = " ".join(one), " ".join(other)
    found = of(*texts)
    shared = [[text for text, kind in some if kind != "own"] for some in found]
    assert shared[0] == shared[1]
    for text, some in zip(texts, found, strict=True):
        plain = re.sub(r"\(cat:1.2\)", "cat", text).replace("BREAK", "")
        assert len(some) == len(default_tokenizer()(plain))
    assert all(kind == "same" for some in of(texts[0], texts[0]) for _, kind in some)


def test_the_tab_counts_and_escapes(beside: BesideTab) -> None:
    markup = unescape(beside.show("a red <b>", "a (red:1.4) cat", *VALUES)[0])
    assert "2 tokens in both, 1 only in the prompt, 3 only in the other, 1 with another weight." in markup
    assert "The prompt: 3 tokens" in markup
    assert "The other: 5 tokens" in markup
    assert "<b>" not in beside.show("a red <b>", "a (red:1.4) cat", *VALUES)[0]
    assert "Type another prompt" in beside.show(" ", "a cat", *VALUES)[0]
    assert "lone surrogate" in beside.show("a \ud800", "a cat", *VALUES)[0]
    assert f"the first {MAX_TOKENS:,} are compared" in beside.show("cat " * 3000, "a cat", *VALUES)[0]


def test_pooled_vectors_are_compared_as_those_of_transformers(beside: BesideTab) -> None:
    library("transformers", "4.46")
    reference = transformers_text_model(seeded_text_model(CONFIG), "eager")
    pooled = []
    for text in ("a red cat", "two dogs"):
        ids = [CONFIG.bos_id, *(token.id for token in default_tokenizer()(text))]
        with torch.no_grad():
            output = reference(torch.tensor([ids + [CONFIG.eos_id] * (77 - len(ids))]))
        pooled.append(output.pooler_output[0].double())
    expected = torch.nn.functional.cosine_similarity(*pooled, dim=0)
    markup = beside.pooled("two dogs", "a (red:1.4) cat", *VALUES)
    found = re.search(r"<td>clip_l</td><td>([-0-9.]+)</td><td>([0-9.]+)°</td>", markup)
    assert found
    assert abs(float(found[1]) - expected.item()) < 6e-5
    assert abs(float(found[2]) - torch.rad2deg(expected.acos()).item()) < 0.06
    assert expected < 0.999
    same = beside.pooled("a red cat", "a (red:1.4) cat", *VALUES)
    assert "<td>1.0000</td><td>0.0°</td>" in same, "weights do not count"


def test_cosines_go_through_run_and_errors_are_told() -> None:
    calls: list[str] = []
    tab = BesideTab(Handlers(small_model, BASE, noting(calls)))
    tab.show("a dog", "a cat", *VALUES)
    assert calls == []
    tab.pooled("a dog", "a cat", *VALUES)
    assert calls == ["pooled_cosines"]
    tab = BesideTab(Handlers(no_model, BASE))
    assert "No model is loaded yet." in tab.pooled("a dog", "a cat", *VALUES)
    assert "1 token in both" in tab.show("a dog", "a cat", *VALUES)[0]


# --- in a browser


def test_two_prompts_are_kept_compared_and_grow_old(lab: LabPage, small_lab: str) -> None:
    lab.open_part("Two prompts")
    lab.fill_new("other", "a red cat in a hat")
    lab.wait_for_text("panes", "5 tokens in both, 4 only in the prompt, 1 only in the other, 1 with another weight.")
    lab.click("compare_pooled")
    lab.wait_for_text("pooled", "clip_l")
    lab.fill("prompt", "a cat in a hat")
    lab.wait_for_text("panes", "5 tokens in both, 0 only in the prompt, 1 only in the other.")
    lab.tab.wait("return !!document.querySelector('#weighted_clip_pooled .weighted-clip-stale')")
    lab.tab.wait('return /"a red cat in a hat"/.test(decodeURIComponent(location.hash))')
    lab.tab.wait('return /"a cat in a hat"/.test(decodeURIComponent(location.hash))')
    lab.tab.open("about:blank")
    lab.open(small_lab)
    lab.open_part("Two prompts")
    lab.wait_for_value("other", "a red cat in a hat")
    lab.wait_for_text("panes", "1 only in the other.")


def test_ids_and_table_are_copied(lab: LabPage) -> None:
    lab.fill("prompt", "a 🦊")
    lab.wait_for_text("tokens", "byte 4 of 4 of 🦊")
    assert "3 tokens of 3 characters in 1 chunk: 3 of 75" in lab.text("tokens")
    lab.tab.allow_clipboard()
    press = "document.querySelectorAll('#weighted_clip_tokens .weighted-clip-copy')[args[0]].click()"
    lab.tab.run(press, 0)
    lab.wait_for_text("tokens", "Copied.")
    assert lab.tab.run("return navigator.clipboard.readText()") == "[320, 6040, 488]"
    lab.tab.run(press, 1)
    lab.tab.wait("return (await navigator.clipboard.readText()).includes('\\t')")
    lines = lab.tab.run("return navigator.clipboard.readText()").splitlines()
    assert lines[0].split("\t")[:3] == ["Chunk", "Position", "Id"]
    assert lines[3].split("\t")[2:4] == ["488", "🦊"]
