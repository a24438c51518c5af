"""Sweep Weights and Sweep Grid on a fake host: equal to typed prompts, in few encodings, as one picture."""

import numpy as np
import pytest
import torch
from weighted_clip.weighting.reading.sweep import read_sweep

from .fake_comfy import FakeClip, defaults, encode, install, load_tiny, node
from .test_remember import encoded  # noqa: F401

TEXT = "a (red:0.5..1.5:3) cat and a (dog:0..1:2)"


def swept(text: str = TEXT, clip=None, **inputs):
    return node("Sweep").run(clip=clip or FakeClip(), text=text, **defaults("Sweep") | inputs)["result"]


@pytest.mark.parametrize("scheme", ["comfy", "a1111", "masked_blend", "compel", "negpip"])
@pytest.mark.parametrize("make", [FakeClip, load_tiny], ids=["host", "native"])
def test_each_equals_the_typed_prompt(scheme: str, make) -> None:
    conditionings, labels, values = swept(clip=make(), scheme=scheme)
    assert len(conditionings) == len(labels) == 6
    for text, conditioning in zip(values.texts, conditionings, strict=True):
        [[hidden, others]] = encode("TextEncode", make(), text, scheme=scheme)["result"][0]
        torch.testing.assert_close(conditioning[0][0], hidden, rtol=0, atol=1e-6)
        torch.testing.assert_close(conditioning[0][1]["pooled_output"], others["pooled_output"], rtol=0, atol=1e-6)


def test_all_values_of_a_word_take_two_encodings(encoded) -> None:  # noqa: F811
    clip = FakeClip()
    swept("a red cat and a (dog:0..1:32)", clip, scheme="masked_blend", many=True)
    assert len(encoded) == 2
    encoded.clear()
    swept("a red cat and a (dog:0..1:32)", clip, scheme="masked_blend", many=True)
    assert len(encoded) == 2  # nothing is kept, and the host's CLIP stays as it is


def grid(number: int, shape=(2, 8, 12, 3), text: str = TEXT, width: int = 32):
    images = [torch.full(shape, i / number) for i in range(number)]
    return node("SweepGrid").run(images, [read_sweep(text)], [width], ["light"])["result"][0]


def test_each_picture_stands_under_its_weights(monkeypatch, tmp_path) -> None:
    install(monkeypatch, temp=str(tmp_path))
    picture = (grid(6)[0].numpy() * 255).round()
    seen = [(picture == round(i / 6 * 255)).all(2) for i in range(1, 6)]  # the first is black, as letters are
    lefts, tops = zip(*(np.argwhere(one & np.roll(one, -20, 1)).min(0)[::-1] for one in seen), strict=True)
    assert lefts[0] < lefts[1] == lefts[2] < lefts[3] == lefts[4]  # the first word's values go across
    assert tops[1] == tops[3] < tops[0] == tops[2] == tops[4]
    assert [one.sum() for one in seen] == [2 * 32 * 21] * 5


@pytest.mark.parametrize(
    ("number", "shapes", "message"),
    [(5, [(1, 8, 8, 3)] * 5, "each of 6 prompts; got 5: 1x8x8x3"), (6, [(1, 8, 8, 3)] * 5 + [(1, 8, 9, 3)], "1x8x9x3")],
)
def test_pictures_that_do_not_fit_are_refused(number: int, shapes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        node("SweepGrid").run([torch.zeros(shape) for shape in shapes], [read_sweep(TEXT)], [32], ["light"])


def test_a_grid_of_gigabytes_is_refused() -> None:
    with pytest.raises(ValueError, match="give it less width"):
        grid(6, (64, 8, 8, 3), width=1024)
