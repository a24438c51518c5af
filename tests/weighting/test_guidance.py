"""Weights by guidance: shares of predictions against an integral, and prompts without their words."""

import math
from itertools import combinations_with_replacement, product

import pytest
from weighted_clip.weighting.guidance import BEND, mixture, predictions, share_of
from weighted_clip.weighting.options import EncodeOptions

OPTIONS = EncodeOptions()


def by_integral(shares: dict[str, float], of: dict[frozenset[str], float]) -> float:
    """Sum over levels t of the prediction without the words below t, from the least to 1, and back from above 1.

    ``of`` gives a number for the words left out.
    """
    least, most, number = min(*shares.values(), 1.0), max(*shares.values(), 1.0), 4000
    total = of[frozenset()] * least
    for t in (least + (1 - least) * (i + 0.5) / number for i in range(number)):
        total += of[frozenset(word for word, share in shares.items() if share < t)] * (1 - least) / number
    for t in (1 + (most - 1) * (i + 0.5) / number for i in range(number)):
        above = frozenset(word for word, share in shares.items() if share > t)
        total += (of[frozenset()] - of[above]) * (most - 1) / number
    return total


@pytest.mark.parametrize("shares", [*combinations_with_replacement((-0.5, 0.0, 0.25, 1.0, 1.5, 2.25), 3)])
def test_mixture_is_an_integral_over_levels(shares: tuple[float, float, float]) -> None:
    named = dict(zip("abc", shares, strict=True))
    subsets = [
        frozenset(word for word, bit in zip("abc", bits, strict=True) if bit) for bits in product((0, 1), repeat=3)
    ]
    of = {words: math.sin(sum(map(ord, words))) for words in subsets}
    found = mixture(shares)
    assert sum(found.values()) == pytest.approx(1.0)
    assert len(found) <= 1 + len({share for share in shares if share != 1.0})
    value = sum(
        share * of[frozenset(word for word in "abc" if named[word] in left_out)] for left_out, share in found.items()
    )
    assert value == pytest.approx(by_integral(named, of), abs=2e-3)


def test_a_word_at_0_is_gone_and_one_at_1_is_whole() -> None:
    assert mixture([0.0]) == {frozenset({0.0}): 1.0}
    assert mixture([0.0, 0.0, 1.0]) == {frozenset({0.0}): 1.0}
    assert mixture([1.0]) == mixture([]) == {frozenset(): 1.0}


def test_the_curve_is_bent_between_0_and_1_alone() -> None:
    assert [share_of(weight) for weight in (-0.5, 0.0, 1.0, 1.5)] == [-0.5, 0.0, 1.0, 1.5]
    assert share_of(0.36) == pytest.approx(0.36**BEND)
    assert share_of(0.0, 0.64) == pytest.approx(0.36**BEND)
    assert share_of(0.2, 0.0) == 1.0
    with pytest.raises(ValueError, match="finite"):
        share_of(math.nan)


@pytest.mark.parametrize(
    ("prompt", "without"),
    [
        ("a red circle and (a blue square:0.5)", "a red circle"),
        ("(a red circle:0.5) and a blue square", "a blue square"),
        ("a red circle and (a blue square:0.5) and a green cross", "a red circle and a green cross"),
        ("a cat, (oil painting:0.5), snow", "a cat, snow"),
        ("a cat, (oil painting:0.5) in snow", "a cat, in snow"),
        ("(oil painting:0.5), a cat", "a cat"),
        ("a (red:0.5) circle", "a circle"),
        ("(a cat:0.5)", ""),
        (r"a cat \(big\) and (a dog:0.5)", r"a cat \(big\)"),
        ("(band:0.5) and a sandy beach", "a sandy beach"),
        ("a man and (a band:0.5)", "a man"),
    ],
)
def test_words_are_left_out_with_what_joined_them(prompt: str, without: str) -> None:
    whole, rest = predictions(prompt, OPTIONS)
    assert (whole.text, whole.left_out) == (prompt, ())
    assert rest.text == without


def test_words_of_other_syntaxes_are_left_out() -> None:
    _, rest = predictions("a [cat] BREAK dog, (red:0.5) hat", EncodeOptions(syntax="a1111"))[:2]
    assert "BREAK" in rest.text
    _, rest = predictions("a cat and (a dog)0.5", EncodeOptions(syntax="compel"))
    assert rest.text.split() == ["a", "cat"]


def test_no_weight_is_one_prediction_of_the_prompt_as_typed() -> None:
    for prompt in ("a cat", "a (cat:1)", "", "a [cat] BREAK"):
        (only,) = predictions(prompt, OPTIONS)
        assert (only.text, only.share, only.left_out) == (prompt, 1.0, ())
    (only,) = predictions("a (cat:0.3)", OPTIONS, strength=0.0)
    assert only.share == 1.0


def test_no_space_is_left_at_a_seam() -> None:
    prompt = "a red cat on a (mat:0.5), (oil painting:-0.6) in (snow:0)"
    assert {one.text for one in predictions(prompt, OPTIONS) if one.left_out} == {
        "a red cat on a mat, in snow",
        "a red cat on a mat, in",
        "a red cat on a, in",
    }
