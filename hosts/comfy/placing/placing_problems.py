"""Problems of placed phrases and regions: messages of a run, and the same found before it in what the page knows.

Source: docs/places.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from ....weighting.placing.areas import area_mask, read_area, read_where
from ....weighting.text.phrases import without_commas
from ....weighting.text.problems import Problem, refused
from ....weighting.text.prompt import shortened
from ..attention.fields import without_place
from ..attention.words import absent
from ..titles import REGIONAL_PROMPT
from .upstream import Prompts

EMPTY = "phrase is empty: type the words of the prompt to place."
NESTED = f"The prompt of region has regions itself: connect it as base, and chain {REGIONAL_PROMPT} nodes."
SMALLEST = 8
"""Pixels along a side of a place of most latents."""


ALONE = {
    "area": "an area",
    "mask": "a mask",
    "control": "a ControlNet",
    "gligen": "GLIGEN boxes",
    "hooks": "hooks other than a LoRA's",
}
"""Values of an entry that cannot be a region's, in words: they act on whole predictions of the model."""


def absent_place(word: str, name: str) -> str:
    """Message about an area that is where an absent word is read."""
    return f"“{shortened(word)}”, where {name} is placed, is not in the prompt."


def own_map(name: str, area: str) -> str:
    """Message about a phrase that is placed where it is read itself."""
    return (
        f"{name} cannot be placed “{shortened(area)}”: the phrase would follow its own map (feedback). Take another "
        "word of the prompt."
    )


def at_once(number: int) -> str:
    """Message about a region with several prompts."""
    return (
        f"The region has {number} prompts at the same time, as Conditioning (Combine) and AND make them. Chain a "
        f"{REGIONAL_PROMPT} for each of them."
    )


def strength_words(strength: float) -> str:
    """A strength, for `comes_with`."""
    return f"the strength {strength:g}"


def comes_with(names: Sequence[str]) -> str:
    """Message about a region's prompt with values of `ALONE`."""
    return (
        f"The prompt of region comes with {', '.join(names)}, which acts on whole pictures, not on a region. Apply to "
        f"the base what is for the whole picture, and {REGIONAL_PROMPT} its area, mask and strength."
    )


def phrase_problems(phrase: str, prompts: Prompts) -> Iterator[Problem]:
    """Problems of a phrase of some prompts."""
    phrase = without_commas(phrase)
    if not phrase:
        yield Problem(EMPTY, "phrase")
    elif prompts.refusal is not None:
        yield Problem(prompts.refusal(phrase), "conditioning")
    elif not prompts.has(phrase):
        yield Problem(absent(phrase), "phrase")


def area_problems(
    text: str, name: str, prompts: Prompts, *, phrase: str = "", size: tuple[int, int] | None = None
) -> Iterator[Problem]:
    """Problems of an area, of what messages call by a name.

    Args:
        text: The area as typed.
        name: The phrase in quotation marks, or ``region 1``.
        prompts: Prompts in which a word is read.
        phrase: The phrase that is placed, if it is one.
        size: Height and width of the picture in pixels, if known.
    """
    try:
        word, area = read_where(text), None
        area = None if word else read_area(text)
    except ValueError as error:
        yield Problem(str(error), "area")
        return
    if word and prompts.refusal is not None:
        if not phrase:  # of which it is said
            yield Problem(prompts.refusal(word), "area")
    elif word:
        if not prompts.has(word):
            yield Problem(absent_place(word, name), "area")
        elif any(words.numbers_of(word) & words.numbers_of(phrase) for words in prompts.words):
            yield Problem(own_map(name, text.strip()), "area")
    if area is None:
        return
    if size is not None:
        yield from refused("area", area_mask, area, (1, 1), size)
    for extent in (area.across, area.down):
        if extent.is_pixels and extent.end - extent.start < SMALLEST:
            yield Problem(
                f"“{extent.start:g} {extent.end:g}” of the area are pixels: parts of the picture go from 0 to 1.",
                *("area", False),
            )


def mask_problems(mask: Tensor | None, area: str, name: str) -> Iterator[Problem]:
    """Problems of a mask, as far as it is known, and of an area that it does not meet."""
    problems = list(refused("mask", checked_mask, mask))
    yield from problems
    if mask is None or problems:
        return
    try:
        where = None if read_where(area) else read_area(area)
    except ValueError:  # said already
        return
    if where is None or where.across.is_pixels or where.down.is_pixels:
        return
    cells = mask.shape[-2], mask.shape[-1]
    if not bool((mask * area_mask(where, cells, cells)).any()):
        yield Problem(without_place(name), "mask")


def region_problems(region: Prompts) -> Iterator[Problem]:
    """Problems of the prompt of a region."""
    if region.num_entries > 1 and "times" not in region.additions:
        yield Problem(at_once(region.num_entries), "region")
    if region.num_regions:
        yield Problem(NESTED, "region")
    names = [name for key, name in ALONE.items() if key in region.additions]
    if region.strength != 1.0:
        names.append(strength_words(region.strength))
    if names:
        yield Problem(comes_with(names), "region")


def checked_mask(mask: Tensor | None) -> Tensor | None:
    """A mask as ``[pictures, height, width]``, float32 on the CPU; a ValueError if it is none, or empty."""
    if mask is None:
        return None
    pictures: Tensor = mask.detach().float().cpu()
    pictures = pictures[None] if pictures.dim() == 2 else pictures
    if pictures.dim() != 3 or not pictures.numel():
        raise ValueError(f"mask must be a MASK, [pictures, height, width]; got {list(pictures.shape)}.")
    if not bool(pictures.isfinite().all()) or bool((pictures < 0).any()) or bool((pictures > 1).any()):
        raise ValueError("mask must hold numbers from 0 to 1.")
    if not bool(pictures.any()):
        raise ValueError("The mask is empty. Paint the area.")
    return pictures
