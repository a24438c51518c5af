"""Phrases kept apart by the WebUI's script, on stand-ins for its engines: numbers against our native encoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.engines import Engine, WebUIError
from weighted_clip.hosts.webui.settings import pasted

from . import fake_webui as fake
from .test_webui import KINDS, conditioning, expected, native

PROMPT = "a red cat and a (blue:1.2) dog, photo"
PHRASES = "red cat\nblue dog"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        {"bind": PHRASES},
        {"bind": PHRASES, "scheme": "masked_blend", "bind_rest": "alone", "bind_strength": 0.3},
        {"bind": PHRASES, "bind_hide": "these words", "bind_words": "red\nblue"},
        {"scheme": "comfy", "bind_hide": "cutoff", "bind_words": "red, blue, photo", "bind_strength": 0.5},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)
def test_every_setting_acts_as_on_the_native_encoder(
    kind: str, settings: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model, encoder = request.getfixturevalue(kind), native(tmp_path)
    [ours] = conditioning(model, PROMPT, **settings)
    torch.testing.assert_close(ours, expected(encoder, PROMPT, **settings), atol=2e-5, rtol=0)
    plain = expected(encoder, PROMPT, scheme=settings.get("scheme", "a1111"))
    assert (ours - plain).abs().max() > 1e-3


def test_strength_0_is_the_script_without_it(forge: fake.ForgeModel) -> None:
    [plain] = conditioning(forge, PROMPT)
    [ours] = conditioning(forge, PROMPT, bind=PHRASES, bind_strength=0.0)
    assert torch.equal(ours, plain)


def test_the_negative_prompt_is_not_bound(forge: fake.ForgeModel) -> None:
    negatives = []
    for bind in ("", PHRASES):
        generation = fake.armed(forge, bind=bind)
        generation.setup_conds(PROMPT, negative=PROMPT)
        negatives.append(generation.uc[0])
    assert torch.equal(*negatives)
    assert not torch.equal(generation.c[0], negatives[0])


def test_how_many_passes_there_are_is_told_below_the_image(forge: fake.ForgeModel) -> None:
    generation = fake.armed(forge, bind=PHRASES, bind_rest="alone")
    generation.setup_conds(PROMPT, negative="ugly")
    assert list(generation.comments) == ["Weighted CLIP: 2 phrases kept apart in 4 passes, 4 encodings"]


def test_all_passes_of_a_text_are_one_call(forge: fake.ForgeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    encode = Engine.__call__

    def counting(self: Any, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        calls.append(len(ids))
        return encode(self, ids, mask, is_causal=is_causal)

    monkeypatch.setattr(Engine, "__call__", counting)
    conditioning(forge, PROMPT, bind=PHRASES)
    assert calls == [1, 3]  # the negative prompt, then the prompt with its passes


def test_a_phrase_may_be_in_some_texts_of_a_prompt_only(forge: fake.ForgeModel, tmp_path: Path) -> None:
    """As prompt editing has it. Each text binds what it has."""
    texts = ("a red cat and a blue dog", "a green hat and a blue dog")
    generation = fake.armed(forge, bind=PHRASES)
    [ours] = generation.setup_conds("=>".join(texts))
    for cond, text, bind in zip(ours, texts, (PHRASES, "blue dog"), strict=True):
        torch.testing.assert_close(cond, expected(native(tmp_path), text, bind=bind)[0], atol=2e-5, rtol=0)
    assert not any("not in the prompt" in comment for comment in generation.comments)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bind": "red cat\na bird"}, "“a bird” is not in the prompt"),
        ({"bind": "red cat\ncat and"}, "“red cat” and “cat and” overlap"),
        (
            {"scheme": "comfy", "bind_hide": "cutoff", "bind_words": "Red"},
            "“Red” is not in the prompt as whole words written just like that",
        ),
        ({"bind_hide": "cutoff", "bind_words": "red"}, "With weights, cutoff goes with the schemes"),
        ({"bind": None}, "Keep apart must be a text, got None"),
        ({"bind_strength": "much"}, "Strength must be a number, got 'much'"),
        ({"bind_hide": "nothing"}, "They hide from each other must be one of: whole phrases, these words, cutoff"),
    ],
)
def test_what_cannot_be_done_stops_the_generation(forge: fake.ForgeModel, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(WebUIError, match=words):
        conditioning(forge, PROMPT, **settings)


FADED = " ".join(f"(word{number}:0.{number + 100})" for number in range(70))


@pytest.mark.parametrize(
    ("prompts", "settings", "words"),
    [
        ([FADED], {"scheme": "masked_blend", "bind": "red cat\nblue dog"}, "“blue dog” is not in the prompt"),
        (["a red cat", FADED], {"scheme": "masked_blend", "bind": PHRASES}, "“blue dog” is not in the prompt"),
        (["a red cat=>a (blue:1.2) dog"], {"bind_hide": "cutoff", "bind_words": "red, blue"}, "With weights, cutoff"),
        (["a cat", "a (cat:2)"], {"scheme": "repeat"}, "77 rows of one text and 78 of another"),
    ],
)
def test_what_reading_can_refuse_is_refused_before_anything_is_encoded(
    forge: fake.ForgeModel,
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[str],
    settings: dict[str, Any],
    words: str,
) -> None:
    """Also where only the last of several texts is refused."""
    generation = fake.armed(forge, **settings)

    def never(*_: Any, **__: Any) -> Any:
        pytest.fail("the encoder is called")

    monkeypatch.setattr(Engine, "__call__", never)
    positives = fake.SdConditioning(prompts)
    with pytest.raises((ValueError, WebUIError), match=words):
        generation.get_conds_with_caching(fake.get_learned_conditioning, positives, 20, [generation.cached_c])


def test_a_prompt_of_hires_fix_may_lack_what_the_first_one_has(forge: fake.ForgeModel) -> None:
    generation = fake.armed(forge, bind=PHRASES)
    generation.setup_conds(PROMPT)
    generation.setup_conds("a red cat")
    assert "Weighted CLIP: “blue dog” is not in the prompt, or is cut by the end of a chunk." in generation.comments


def test_a_strength_that_is_no_number_is_not_pasted() -> None:
    with pytest.raises(WebUIError, match="Strength must be a number, got 'much'"):
        pasted("bind_strength", {"Weighted CLIP": "a1111", "Weighted CLIP bind strength": "much"})
