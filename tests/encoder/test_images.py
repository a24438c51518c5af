"""Preprocessing against transformers' own, and the other ways of making an image square."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from weighted_clip.encoder.images import MEAN, STD, preprocess

from ..libraries import library

SIZES = [
    (224, 224),
    (225, 224),
    (224, 227),
    (640, 479),
    (479, 641),
    (97, 531),
    (300, 77),
    (50, 51),
    (1023, 767),
    (33, 400),
]


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth shapes, edges and grain, as photographs have."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(width, height)
    channels = []
    for _ in range(3):
        a, b, c, d = generator.uniform(2, 9, 4)
        value = np.sin(a * x + c) * np.cos(b * y + d) + (np.hypot(x - 0.4, y - 0.3) < 0.2)
        channels.append(value + generator.normal(0, 0.05, value.shape))
    pixels = np.stack(channels, axis=-1)
    pixels = (pixels - pixels.min()) / np.ptp(pixels)
    return Image.fromarray((pixels * 255).round().astype(np.uint8))


def reference(image: Image.Image, size: int) -> torch.Tensor:
    transformers = library("transformers")
    # of transformers 4 the one of this name works on Pillow's images too
    kind = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    processor = kind(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
    return processor(image, return_tensors="pt")["pixel_values"]


@pytest.mark.parametrize("size", [224, 336])
def test_8_bit_images_equal_the_reference_to_the_bit(size: int) -> None:
    for number, (width, height) in enumerate(SIZES):
        image = photo(width, height, number)
        for mode in ("RGB", "RGBA", "L", "P", "1"):
            converted = image.convert(mode)
            assert torch.equal(preprocess(converted, size), reference(converted, size)), (width, height, mode)


def test_float_images_are_within_one_8_bit_step() -> None:
    std = torch.tensor(STD).view(3, 1, 1)
    widths = [*SIZES, *[(height + 3, width + 1) for width, height in SIZES]]
    assert len(widths) == 20
    for number, (width, height) in enumerate(widths):
        image = photo(width, height, number)
        tensor = torch.from_numpy(np.array(image)).float().unsqueeze(0) / 255
        difference = ((preprocess(tensor, 224)[0] - reference(image, 224)[0]) * std).abs()
        assert difference.max() <= 1.001 / 255, (width, height)  # a thousandth for float32's rounding
        assert difference.mean() <= 0.01 / 255, (width, height)


def test_alpha_is_left_out_and_grey_spread_in_tensors_too() -> None:
    image = torch.rand(2, 40, 30, 3, generator=torch.Generator().manual_seed(0))
    with_alpha = torch.cat([image, torch.rand(2, 40, 30, 1)], dim=-1)
    assert torch.equal(preprocess(with_alpha, 28), preprocess(image, 28))
    grey = image[..., :1]
    assert torch.equal(preprocess(grey, 28), preprocess(grey.expand(-1, -1, -1, 3), 28))


def test_letterbox_keeps_the_whole_image_and_adds_the_mean_colour() -> None:
    white = Image.new("RGB", (60, 30), "white")
    for image in (white, torch.ones(1, 30, 60, 3)):
        boxed = preprocess(image, 28, "letterbox")[0]
        assert boxed.shape == (3, 28, 28)
        assert torch.equal(boxed[:, :7], torch.zeros(3, 7, 28))
        assert torch.equal(boxed[:, 21:], torch.zeros(3, 7, 28))
        expected = ((1 - torch.tensor(MEAN)) / torch.tensor(STD)).view(3, 1, 1).expand(3, 14, 28)
        torch.testing.assert_close(boxed[:, 7:21], expected)


def test_stretch_squeezes_the_whole_image() -> None:
    image = photo(90, 40)
    expected = np.asarray(image.resize((28, 28), Image.Resampling.BICUBIC)) / 255.0
    expected = torch.from_numpy((expected - MEAN) / STD).permute(2, 0, 1).float()
    torch.testing.assert_close(preprocess(image, 28, "stretch")[0], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [(1, 8000), (8000, 1)])
def test_very_thin_images_are_refused(size: tuple[int, int]) -> None:
    for image in (Image.new("RGB", size), torch.zeros(1, size[1], size[0], 3)):
        with pytest.raises(ValueError, match=rf"{size[0]} x {size[1]} pixels is too thin: one side may be at most 100"):
            preprocess(image, 28)
    longest = tuple(min(side, 100) for side in size)
    assert preprocess(Image.new("RGB", longest), 28).shape == (1, 3, 28, 28)


@given(st.integers(1, 90), st.integers(1, 90), st.sampled_from(["center", "letterbox", "stretch"]))
def test_any_size_comes_out_square(width: int, height: int, crop: str) -> None:
    for image in (Image.new("RGB", (width, height)), torch.zeros(2, height, width, 3)):
        result = preprocess(image, 28, crop)  # pyright: ignore[reportArgumentType]
        assert result.shape[1:] == (3, 28, 28)
        assert bool(torch.isfinite(result).all())


def test_bad_input_is_quoted() -> None:
    with pytest.raises(ValueError, match="crop must be one of: center, letterbox, stretch; got 'middle'"):
        preprocess(Image.new("RGB", (3, 3)), 28, "middle")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"got uint8 \[1, 3, 3, 3\]"):
        preprocess(torch.zeros(1, 3, 3, 3, dtype=torch.uint8), 28)
    with pytest.raises(ValueError, match=r"got float32 \[3, 3, 3\]"):
        preprocess(torch.zeros(3, 3, 3), 28)
    for images in ([], ["cat.png"]):
        with pytest.raises(ValueError, match=r"images must be PIL images or a float tensor, got (none|str)"):
            preprocess(images, 28)
