"""The SDXL node on a fake host with two towers."""

import pytest
import torch

from .fake_comfy import BASE, FakeClip, node

SIZES = {"width": 1024, "height": 768, "crop_w": 8, "crop_h": 16, "target_width": 512, "target_height": 640}
LONG = "a red cat, " * 40


def encode(text_g: str, text_l: str, towers=("clip_l", "clip_g"), **choices) -> dict:
    clip = FakeClip(towers=towers)
    return node("SDXLEncode").encode(clip, text_g, text_l, **SIZES, **BASE | choices)


def test_each_tower_has_its_own_text_and_the_sizes_go_along() -> None:
    ((hidden, values),) = encode("a (dog:1.2)", "a cat")["result"][0]
    assert hidden.shape == (1, 77, 128)
    assert {key: values[key] for key in SIZES} == SIZES
    ((only_l, _),) = node("TextEncode").encode(FakeClip(), "a cat", **BASE)["result"][0]
    ((only_g, g_values),) = node("TextEncode").encode(FakeClip(towers=("clip_g",)), "a (dog:1.2)", **BASE)["result"][0]
    assert torch.equal(hidden, torch.cat([only_l, only_g], dim=-1))
    assert torch.equal(values["pooled_output"], g_values["pooled_output"])


@pytest.mark.parametrize(("text_g", "text_l"), [(LONG, "a cat"), ("a dog", LONG), ("", LONG)])
@pytest.mark.parametrize("scheme", ["comfy", "a1111", "masked_blend"])
def test_the_shorter_text_is_followed_by_empty_chunks(text_g: str, text_l: str, scheme: str) -> None:
    ((hidden, _),) = encode(text_g, text_l, scheme=scheme)["result"][0]
    assert hidden.shape[1] == 77 * 3
    short, columns = (text_l, slice(0, 64)) if text_g == LONG else (text_g, slice(64, 128))
    ((empty, _),) = encode("", "")["result"][0]
    ((alone, _),) = encode(short, short, scheme=scheme)["result"][0]
    torch.testing.assert_close(hidden[:, :77, columns], alone[..., columns], rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden[:, 77:154, columns], empty[..., columns], rtol=0, atol=1e-5)


def test_blends_of_unequal_length_are_filled_too() -> None:
    text = f'("{LONG}", "a cat").blend(1, 1) '
    ((hidden, _),) = encode(text, "a dog", syntax="compel")["result"][0]
    assert hidden.shape[1] % 77 == 0
    ((empty, _),) = encode("", "")["result"][0]
    torch.testing.assert_close(hidden[:, 77:154, :64], empty[..., :64], rtol=0, atol=1e-5)


def test_the_refiner_takes_one_text_and_a_score() -> None:
    result = encode("a cat", "a cat", towers=("clip_g",), aesthetic_score=2.5)
    ((hidden, values),) = result["result"][0]
    assert hidden.shape == (1, 77, 64)
    assert values.keys() == {"pooled_output", "width", "height", "aesthetic_score"}
    assert values["aesthetic_score"] == 2.5
    assert result["ui"]["text"] == []
    assert "text_l is not used" in encode("a cat", "a dog", towers=("clip_g",))["ui"]["text"][0]


def test_a_clip_without_clip_g_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="holds clip_l, no clip_g: it is not SDXL's"):
        encode("a", "a", towers=("clip_l",))


def test_two_texts_are_two_views_and_one_text_is_one() -> None:
    assert [view["text"] for view in encode("a dog", "a cat")["ui"]["weighted_clip"]] == ["a cat", "a dog"]
    result = encode("a (cat", "a (cat")
    assert len(result["ui"]["weighted_clip"]) == len(result["ui"]["text"]) == 1
    assert "clip_l: comfy" in result["result"][1]
    assert "clip_g: comfy" in result["result"][1]
