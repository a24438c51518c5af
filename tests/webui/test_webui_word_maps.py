"""Word maps of the WebUI's script, on a stand-in for Forge's U-Net; Forge's own is in tests/hosts."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from weighted_clip.hosts.webui.attention import map_recorder as word_maps
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.generation import add_word_maps
from weighted_clip.hosts.webui.settings import pasted, take, untaken
from weighted_clip.weighting.placing import word_maps as shared_maps

from . import fake_webui as fake
from . import test_webui_places as unet
from .test_webui_places import CELLS, LEFT, TEXT, Generation, hooks_on, model, readings, sampled  # noqa: F401

EDITED = "a blue dog=>a red cat"
WORDS: dict[str, tuple[int, ...]] = {
    **{"a": (1, 5), "red": (2,), "cat": (3,)},
    **{"and": (4,), "blue": (6,), "dog": (7,)},
}
"""Rows of the words of `TEXT`."""


def maps_of(p: Any) -> list[dict[str, Tensor]]:
    return [{one.word: one.shares for one in maps} for maps in p.weighted_clip_sampling.word_maps.pictures]


def enlarged(coarse: np.ndarray) -> np.ndarray:
    """A layer of half the size at the places of the latent, between the centres of its cells."""

    def at(place: int, number: int) -> np.ndarray:
        centre = min(max((place + 0.5) / 2 - 0.5, 0), number - 1)
        return np.maximum(0, 1 - np.abs(np.arange(number) - centre))

    down, across = (np.stack([at(place, -(-side // 2)) for place in range(side)]) for side in CELLS)
    return down @ coarse @ across.T


def written_out(
    p: Any, picture: int, words: Mapping[str, tuple[Sequence[int], Sequence[int]]], fields: Any = (), pair: int = 1
) -> dict[str, Tensor]:
    """Map of each word, of whose rows the shares are added up, and averaged over its steps."""
    found: dict[str, Tensor] = {}
    for word, (rows, steps) in words.items():
        total = np.zeros(CELLS)
        for step in steps:
            layers, _ = readings(p, picture, step, *fields, pair=pair)
            fine, coarse = (shares[:, rows].sum(1).numpy() for shares in layers)
            total += (fine.reshape(CELLS) + enlarged(coarse.reshape(3, 3))) / 2
        found[word] = torch.tensor(total / len(steps), dtype=torch.float32)
    return found


def check_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for word, shares in found.items():
        assert (shares - expected[word]).abs().max() <= 1e-5, word
        assert shares.min() >= 0 and 1e-4 < shares.max() < 1


@pytest.mark.parametrize("lines", [(), ("red cat: left half",)], ids=["alone", "with Places"])
def test_maps_equal_the_shares_written_out_for_each_picture(model: Any, lines: Sequence[str]) -> None:  # noqa: F811
    p = sampled(model, *lines, prompts=(TEXT, EDITED), word_maps=True)
    one, other = maps_of(p)
    fields = [((2, 3), LEFT)] if lines else []
    check_equal(one, written_out(p, 0, {word: (rows, range(4)) for word, rows in WORDS.items()}, fields=fields))
    first, second = range(2), range(2, 4)
    early = written_out(p, 1, {"a": ((1,), first), "blue": ((2,), first), "dog": ((3,), first)})
    late = written_out(p, 1, {"a": ((1,), second), "red": ((2,), second), "cat": ((3,), second)}, fields=fields)
    check_equal(other, {**early, **late, "a": (early["a"] + late["a"]) / 2})


def test_a_prompt_without_words_has_no_maps_and_may_share_a_batch(model: Any) -> None:  # noqa: F811
    one, other, more = maps_of(sampled(model, prompts=("", "a blue dog", "(, )"), word_maps=True))
    assert (list(one), list(other), list(more)) == ([], ["a", "blue", "dog"], [])
    assert maps_of(sampled(model, prompts=("",), word_maps=True)) == [{}]


def test_the_picture_is_that_without_maps_to_the_bit_and_nothing_is_left(model: Any) -> None:  # noqa: F811
    for lines in ((), ("red cat: left half",)):
        plain, watched = (sampled(model, *lines, word_maps=word_maps) for word_maps in (False, True))
        assert torch.equal(watched.samples, plain.samples)
        assert watched.comments == plain.comments
        assert plain.weighted_clip_sampling.word_maps is None
    assert hooks_on(model) == 0
    with pytest.raises(RuntimeError, match="out of memory"):
        sampled(model, word_maps=True, fails_at=2.0)
    assert hooks_on(model) == 0


def test_words_of_rows_in_pairs_are_those_of_their_keys(model: Any) -> None:  # noqa: F811
    p = sampled(model, word_maps=True, scheme="negpip", prompts=("a (red:-1) cat and a blue dog",))
    check_equal(maps_of(p)[0], written_out(p, 0, {word: (rows, range(4)) for word, rows in WORDS.items()}, pair=2))


def test_both_text_encoders_of_sdxl_have_a_word_in_the_same_rows(
    forge_xl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = sampled(unet.with_unet(forge_xl, 2 * fake.WIDTH, monkeypatch), word_maps=True)
    check_equal(maps_of(p)[0], written_out(p, 0, {word: (rows, range(4)) for word, rows in WORDS.items()}))


def test_maps_are_those_of_the_last_pass(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    alone = maps_of(sampled(model, word_maps=True))
    one_pass = Generation.sample

    def sample(self: Any, noise: Tensor) -> Tensor:
        one_pass(self, 3 * noise)
        self.is_hr_pass = True
        return one_pass(self, noise)

    monkeypatch.setattr(Generation, "sample", sample)
    [found], [expected] = maps_of(sampled(model, word_maps=True)), alone
    check_equal(found, expected)


class Grid:
    """A grid as it is drawn."""

    def __init__(self, maps: Sequence[tuple[str, np.ndarray]], note: str) -> None:
        self.maps, self.note, self.info = dict(maps), note, {}


def test_the_gallery_has_a_grid_for_each_picture_behind_what_is_there(
    model: Any,  # noqa: F811
    host_options: SimpleNamespace,
) -> None:
    p = sampled(model, prompts=(TEXT, "a blue dog"), word_maps=True)
    with torch.no_grad():
        p.sample(unet.noise())  # a batch more
    theirs = ["a ControlNet's"]
    processed: Any = SimpleNamespace(
        images=[], infotexts=[], extra_images=theirs, infotext=lambda _, number: f"Seed: {number}"
    )
    add_word_maps(p, processed, Grid)
    first, *grids = processed.extra_images
    assert (first, theirs, processed.images) == (theirs[0], theirs[:1], [])
    assert [grid.info for grid in grids] == [{"parameters": f"Seed: {number}"} for number in range(4)]
    assert [list(grid.maps) for grid in grids] == [list(WORDS), ["a", "blue", "dog"]] * 2
    for grid, maps in zip(grids, maps_of(p), strict=True):
        largest = max(float(one.max()) for one in maps.values())
        assert f"{largest:.2%}" in grid.note
        for word, shares in grid.maps.items():
            np.testing.assert_allclose(shares * largest, maps[word].numpy(), atol=1e-6)
    host_options.enable_pnginfo = False
    add_word_maps(p, processed, Grid)
    assert processed.extra_images[-1].info == {}
    plain: Any = sampled(model)
    add_word_maps(plain, processed, Grid)
    assert len(processed.extra_images) == 9


def test_maps_of_many_words_or_pictures_are_bounded(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    text = " ".join(f"{letter}x" for letter in string.ascii_lowercase)
    monkeypatch.setattr(word_maps, "MAX_WATCHED", 10)
    p = sampled(model, prompts=(text,), word_maps=True)
    (maps,) = maps_of(p)
    assert list(maps) == text.split()[:10]
    reported = p.weighted_clip_sampling.word_maps.report
    assert list(reported()) == ["Word maps are of the first 10 of 26 words."]
    monkeypatch.setattr(word_maps, "MAX_BYTES", 100)
    assert "Word maps are of the first 1 picture: more are not kept." in list(reported())
    monkeypatch.setattr(shared_maps, "MAX_BYTES", 100)
    with pytest.raises(WebUIError, match=r"Word maps would take .* switch Word maps off"):
        sampled(model, word_maps=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"changed": lambda rows: rows * 1.01}, "has changed the rows of the prompt"),
        ({"options": {"patches_replace": {"attn2": {1: 1}}}}, "IP-Adapter"),
        ({"options": {"cond_or_uncond": [0, 0, 1, 1]}, "prompts": (TEXT, TEXT)}, "divides the batch"),
        ({"cells": (9, 9)}, "cuts the picture into parts"),
        ({"refiner_checkpoint": "other"}, "Word maps works with one checkpoint .* or switch Word maps off"),
        ({"syntax": "compel", "prompts": ('("a cat", "a dog").blend(1, 1)',)}, "a blend of several prompts"),
        ({"word_maps": "yes"}, "Word maps must be true or false, got 'yes'"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_words(
    model: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    words: str,
) -> None:
    monkeypatch.setattr(Generation, "refiner_checkpoint", None, raising=False)
    with pytest.raises(WebUIError, match=words):
        sampled(model, **{"word_maps": True, **changes})
    assert hooks_on(model) == 0


def test_a_tick_that_is_none_is_not_pasted() -> None:
    parameters: dict[str, Any] = {"Weighted CLIP": "a1111", "Weighted CLIP word maps": "maybe"}
    take(parameters)
    assert pasted("word_maps", parameters) is False
    assert "Word maps must be true or false, got 'maybe'" in untaken(parameters)[0]
