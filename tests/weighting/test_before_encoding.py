"""Refusals that need no encoder, which come before any call of it; and interrupts, after which no call follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.towers import Reader, check_same_signs

TOWERS = ("clip_l", "clip_g")
READERS = {tower: Reader(default_tokenizer()) for tower in TOWERS}
FADED = " ".join(f"(word{number}:0.{number + 100})" for number in range(70))
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "absent phrase": (FADED, {"scheme": "masked_blend", "bind": "red cat"}, "“red cat” is not in the prompt"),
    "absent word": ("a red cat", {"bind": "red cat", "bind_hide": "these words", "bind_words": "blue"}, "“blue” is in"),
    "cutoff": ("a (red:2) cat", {"scheme": "perp", "bind_hide": "cutoff", "bind_words": "red"}, "under perp"),
    "filler": ("a (red:0.5) cat", {"scheme": "masked_blend", "filler": "two words"}, "'two words' is 2"),
    "strict": ("a (red:1..2) cat", {"syntax": "a1111", "strict": True}, "1..2"),
    "blended signs": (
        '("a (cat)0", "a dog").blend(1, 1)',
        {"syntax": "compel", "scheme": "negpip", "strength": 2.0},
        "negpip cannot blend prompts",
    ),
    "blended rows": ('("a (cat)2", "a dog").blend(1, 1)', {"syntax": "compel", "scheme": "repeat"}, "repeat cannot"),
    "too many rows": (f"(word:2) {'word ' * 2000}", {"scheme": "repeat"}, "rows"),
    "signs in an encoding": ("a (cat:-1)", {"scheme": "negpip"}, "An `Encoding` cannot hold"),
}


def never(*_: Any, **__: Any) -> Any:
    pytest.fail("the encoder is called")


@pytest.mark.parametrize(("text", "choices", "words"), REFUSED.values(), ids=REFUSED)
def test_what_reading_can_refuse_is_refused_before_anything_is_encoded(
    text: str, choices: dict[str, Any], words: str
) -> None:
    encoders = Encoders(READERS, dict.fromkeys(TOWERS, never))
    with pytest.raises(ValueError, match=words):
        encoders(text, **choices)


def test_too_many_encodings_are_refused_before_any() -> None:
    with pytest.raises(ValueError, match="more than 60 different encodings"):
        Encoders(READERS, dict.fromkeys(TOWERS, never), max_encodings=60)(FADED, scheme="compel")


def test_signs_that_differ_between_towers_are_known_from_reading() -> None:
    texts = {"clip_l": "a (cat:-1)", "clip_g": "a big (cat:-1)"}
    prepared = Encoders(READERS).prepare(["a (dog:-1)", texts], scheme="negpip")
    with pytest.raises(ValueError, match="same rows of clip_l and clip_g"):
        check_same_signs(prepared.reads)


class Watched:
    """Two towers that note each of their calls, and a check that notes when it is asked and interrupts at the end."""

    def __init__(self, options: EncodeOptions, *, keeps_calls: bool) -> None:
        def noted(ids: Sequence[Any], *_: Any, **__: Any) -> Encoding:
            self.events.append("call")
            return Encoding(torch.ones(len(ids), 77, 2), torch.ones(len(ids), 2))

        self.events: list[str] = []
        encoders = Encoders(READERS, dict.fromkeys(TOWERS, noted), max_chunks=1, keeps_calls=keeps_calls)
        texts = ["a (red:0.5) cat, a (blue:1.2) dog, (snow:0.8)", "a red cat, a blue dog"]
        self.prepared = encoders.prepare(texts, options)

    def run(self, last: int | None = None) -> list[str]:
        """Events of a run that is interrupted when it asks for the time ``last``, counted from 0."""

        def check() -> None:
            self.events.append("check")
            if self.events.count("check") - 1 == last:
                raise InterruptedError

        self.events = []
        self.prepared.run(check)
        return self.events


@pytest.mark.parametrize("keeps_calls", [False, True])
@pytest.mark.parametrize("binding", [{}, {"bind": "red cat\nblue dog", "bind_rest": "alone"}], ids=["", "bound"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_call_follows_an_interrupt(scheme: str, binding: dict[str, Any], keeps_calls: bool) -> None:
    """The check is asked before each call: of every pass, of what a scheme needs besides, and of the other tower."""
    options = EncodeOptions(scheme=scheme, padding="clean", pooled="raw text", **binding)
    watched = Watched(options, keeps_calls=keeps_calls)
    whole = list(watched.run())
    assert whole == ["check", "call"] * (len(whole) // 2) and len(whole) > 4
    for last in range(len(whole) // 2):
        with pytest.raises(InterruptedError):
            watched.run(last)
        assert watched.events == [*whole[: 2 * last], "check"]
