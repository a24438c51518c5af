"""Random parts of images: drawn as torchvision draws them, cut and squeezed as it does."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.studio.training.data.augmentation import ASPECTS, Augmentation, random_part
from weighted_clip.studio.training.scaling.distributed import declare_missing_operators

from ..libraries import library
from .runs import Start


@pytest.fixture
def transforms() -> object:
    library("torchvision")
    declare_missing_operators()
    from torchvision import transforms

    return transforms


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(("width", "height"), [(48, 48), (60, 40), (20, 90)])
def test_parts_are_drawn_as_by_random_resized_crop(transforms, width: int, height: int) -> None:
    rng, image = random.Random(1), noise(width, height)
    torch.manual_seed(1)
    draw: Callable = transforms.RandomResizedCrop.get_params
    ours = np.array([random_part(width, height, 0.4, rng) for _ in range(4000)])
    theirs = np.array([draw(image, (0.4, 1.0), ASPECTS) for _ in range(4000)])[:, [1, 0, 3, 2]]
    assert (ours.min(0) >= 0).all() and (ours[:, 0] + ours[:, 2]).max() <= width
    assert (ours[:, 1] + ours[:, 3]).max() <= height
    # means of 4,000 draws, whose own error is a sixtieth of the spread
    error = np.maximum(theirs.std(0), 0.5) / 4000**0.5
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 6 * error).all()
    assert np.abs(ours.std(0) - theirs.std(0)).max() < 0.1 * max(theirs.std(0).max(), 1)


def test_a_part_is_cut_and_squeezed_as_by_torchvision(transforms) -> None:
    image = noise(60, 40)
    left, top, width, height = random_part(60, 40, 0.4, random.Random(3))
    expected = transforms.functional.resized_crop(
        image, top, left, height, width, [32, 32], transforms.InterpolationMode.BICUBIC
    )
    found = Augmentation(0.4)(image, 32, random.Random(3))
    assert found.size == (32, 32) and found.tobytes() == expected.tobytes()


def test_half_of_the_images_are_mirrored() -> None:
    image, rng = noise(8, 8), random.Random(0)
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    found = [Augmentation(is_mirrored=True)(image, 8, rng) for _ in range(200)]
    count = sum(one.tobytes() == mirrored.tobytes() for one in found)
    assert 70 < count < 130 and all(one.tobytes() in (image.tobytes(), mirrored.tobytes()) for one in found)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--towers", "both", "--random-crop", "0"), "above 0, at most 1: 0.0"),
        (("--towers", "both", "--random-crop", "1.5"), "above 0, at most 1: 1.5"),
        (("--random-crop", "0.9"), "want --towers both"),
        (("--mirror",), "want --towers both"),
    ],
)
def test_what_cannot_be_is_refused(
    start: Start, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert start(*options) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("number", range(4))
def test_colors_change_as_by_color_jitter(transforms, number: int) -> None:
    """Each change alone, to the bit: the same image, by the factor that was drawn."""
    from torchvision.transforms import functional

    image, most = noise(20, 12), [0.0] * 4
    most[number] = 0.4
    change = (
        functional.adjust_brightness,
        functional.adjust_contrast,
        functional.adjust_saturation,
        functional.adjust_hue,
    )[number]
    for seed in range(20):
        ours = Augmentation(jitter=tuple(most), jitter_prob=1.0)(image, 8, random.Random(seed))
        rng = random.Random(seed)
        rng.random()
        rng.sample(range(4), 4)
        drawn = rng.uniform(0.6, 1.4) if number < 3 else rng.uniform(-0.4, 0.4)
        assert np.array_equal(np.asarray(ours), np.asarray(change(image, drawn)))


def test_colors_change_and_vanish_as_often_as_asked(transforms) -> None:
    image = noise(6, 6)
    changed = [Augmentation(jitter=(0.3, 0, 0, 0), jitter_prob=0.25)(image, 8, random.Random(n)) for n in range(800)]
    assert 0.2 < sum(one != image for one in changed) / 800 < 0.3
    gray = [Augmentation(gray_prob=0.25)(image, 8, random.Random(number)) for number in range(800)]
    expected = transforms.Grayscale(3)(image)
    assert {one.tobytes() for one in gray} == {image.tobytes(), expected.tobytes()}
    assert 0.2 < sum(one != image for one in gray) / 800 < 0.3
    whole = Augmentation(jitter=(0.4, 0.4, 0.4, 0.1), jitter_prob=1.0)
    assert len({whole(image, 8, random.Random(number)).tobytes() for number in range(20)}) == 20
    for wrong in ({"jitter": (0, 0, 0, 0.6)}, {"jitter": (2, 0, 0, 0)}, {"jitter_prob": 1.5}, {"gray_prob": -0.1}):
        with pytest.raises(ValueError, match=r"^--(color-jitter|gray-prob)"):
            Augmentation(**wrong)
    most = Augmentation(jitter=(1.0, 1.0, 1.0, 0.5), jitter_prob=1.0, gray_prob=1.0)(image, 8, random.Random(0))
    red, *others = (channel.tobytes() for channel in most.split())
    assert others == [red, red]
