"""The scheme ``repeat``: repetitions of rows against fractions by hand, and their effect in attention."""

from fractions import Fraction
from itertools import chain
from math import floor, gcd

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import EncodedTowers, Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.schemes.repeat import FINEST_STEPS, MAX_ROWS, RepeatError
from weighted_clip.weighting.text.chunks import ChunkLayout
from weighted_clip.weighting.towers import Reader

from .tiny import LONG, READERS, TINY, read

DOOR = Encoders({"clip_l": READERS["clip_l"]}, {"clip_l": TINY})
PAIR = Encoders(READERS, {"clip_l": TINY, "clip_g": TINY})


def encode(text: str, **options) -> EncodedPrompt:
    prepared = DOOR.prepare([text], EncodeOptions(**{"scheme": "repeat"} | options))
    return prepared.run()[0].prompts["clip_l"]


def pair(texts: str | dict[str, str], **options) -> EncodedTowers:
    return PAIR.prepare([texts], EncodeOptions(scheme="repeat", **options)).run()[0]


def codes(encoded: EncodedPrompt) -> list[str]:
    return [issue.code for issue in encoded.read.issues]


def counts_by_hand(weights: list[str], steps: int) -> list[int]:
    """Repetitions of rows, in exact fractions of the weights as typed; the last number is that of weight 1."""
    half = Fraction(1, 2)
    counts = [max(1, floor(Fraction(w) * steps + half)) if Fraction(w) > 0 else 0 for w in [*weights, "1"]]
    divisor = gcd(*counts)
    return [count // divisor for count in counts]


def fewest_steps(weights: list[str]) -> int:
    """The fewest steps by which no weight is off by more than 3/100; 10 if there are none."""
    exact = [Fraction(weight) for weight in weights if Fraction(weight) > 0]
    for steps in (1, 2, 4, 8):
        acting = [Fraction(max(1, floor(weight * steps + Fraction(1, 2))), steps) for weight in exact]
        if all(abs(one - other) <= Fraction(3, 100) for one, other in zip(acting, exact, strict=True)):
            return steps
    return 10


TENTHS = ["0", "0.01", "0.1", "0.25", "0.3", "0.35", "0.5", "0.9", "1", "1.05", "1.1", "1.15", "1.25", "1.5", "2", "3"]


@settings(max_examples=80)
@given(weights=st.lists(st.sampled_from(TENTHS), min_size=1, max_size=5), step=st.sampled_from([*FINEST_STEPS]))
def test_rows_stand_as_often_as_fractions_say(weights: list[str], step: str) -> None:
    text = "a " + " ".join(f"(cat:{weight})" for weight in weights)
    encoded = encode(text, finest_step=step)
    steps = fewest_steps(weights) if step == "auto" else int(step)
    *counts, unit = counts_by_hand(weights, steps)
    plain = encode(text, scheme="unweighted")
    expected = [unit, unit, *counts, *[unit] * (75 - len(counts))]
    rows = list(chain.from_iterable([row] * count for row, count in enumerate(expected)))
    assert torch.equal(encoded.hidden, plain.hidden[:, rows])
    assert torch.equal(encoded.pooled, plain.pooled)


@pytest.mark.parametrize(
    ("weights", "rows"),
    [
        (["1.5"], 76 * 2 + 3),  # steps of a half
        (["2"], 78),
        (["0"], 76),
        (["0.5", "0.5"], 75 * 2 + 2),
        (["1.25"], 76 * 4 + 5),
        (["1.1"], 76 * 8 + 9),  # 1.125 is within 0.03
        (["1.3"], 76 * 10 + 13),  # 1.25 is not
        (["0.01"], 76 * 10 + 1),  # at least once
        (["20"], 96),
    ],
)
def test_auto_takes_the_fewest_steps_that_fit(weights: list[str], rows: int) -> None:
    assert encode(" ".join(f"(cat:{weight})" for weight in weights)).hidden.shape[1] == rows


def test_all_chunks_have_the_same_steps_and_divisor() -> None:
    text = f"{LONG}(river:1.5) and a (sea:0.25)"
    plain, encoded = encode(text, scheme="unweighted", syntax="a1111"), encode(text, syntax="a1111")
    weights = [weight for chunk in plain.read.chunks for weight in chunk.weights]
    assert len(weights) == 2 * 77
    assert {1.0, 1.5, 0.25} == set(weights)
    rows = [row for row, weight in enumerate(weights) for _ in range({1.0: 4, 1.5: 6, 0.25: 1}[weight])]
    assert torch.equal(encoded.hidden, plain.hidden[:, rows])


@pytest.mark.parametrize("weights", [(1.5, 0.5), (3.0, 2.0), (0.25, 0.0), (1.2, 0.3)])
def test_attention_over_copies_is_attention_with_the_logarithm_of_the_weight(weights: tuple[float, float]) -> None:
    one, other = weights
    text = f"a (red:{one}) cat and a (dog:{other}) on a mat"
    plain, encoded = encode(text, scheme="unweighted"), encode(text)
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(32, 16, generator=generator, dtype=torch.float64) for _ in range(2))
    queries = torch.randn(9, 16, generator=generator, dtype=torch.float64)
    bias = torch.tensor(plain.read.chunks[0].weights, dtype=torch.float64).log()

    def attend(rows: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        rows = rows[0].double()
        return torch.softmax(queries @ (rows @ keys).T / 4 + bias, dim=-1) @ (rows @ values)

    copies = attend(encoded.hidden, torch.zeros(encoded.hidden.shape[1]))
    torch.testing.assert_close(copies, attend(plain.hidden, bias), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(copies, attend(plain.hidden, torch.zeros(77)), atol=1e-4)


@pytest.mark.parametrize("padding", ["drop", "clean", "clean EOS too", "mask"])
def test_padding_is_dealt_with_before_rows_are_repeated(padding: str) -> None:
    text = "a (cat:1.5)"
    plain, encoded = encode(text, scheme="unweighted", padding=padding), encode(text, padding=padding)
    end = 4 if padding == "drop" else 77
    assert plain.hidden.shape[1] == end
    assert torch.equal(encoded.hidden, plain.hidden[:, sorted([*range(end), *range(end), 2])])
    assert torch.equal(encoded.pooled, plain.pooled)


def test_what_is_rounded_is_said_at_its_word() -> None:
    encoded = encode("a (cat:1.21) and a (dog:0.3) and a (mouse:0.02) (mouse:1.5)")
    found = {encoded.read.prompt.source[slice(*issue.span)]: issue.message for issue in encoded.read.issues}
    assert found.keys() == {"cat", "mouse"}
    assert found["cat"].startswith("The weight 1.21 acts as 1.2 here")
    assert found["mouse"].startswith("The weight 0.02 acts as 0.1 here")
    assert codes(encode("a (cat:1.5) and a (dog:0.25)")) == []
    assert codes(encode("a (cat:1.5)", finest_step="1")) == ["rounded-weight"]


def test_a_negative_weight_acts_as_one_and_says_so() -> None:
    encoded = encode("a (cat:-0.5) b")
    assert torch.equal(encoded.hidden, encode("a cat b").hidden)
    (issue,) = encoded.read.issues
    assert issue.code == "negative-weight"
    assert "acts as 1" in issue.message and "scheme negpip" in issue.message
    assert encoded.read.prompt.source[slice(*issue.span)] == "cat"


def test_more_rows_than_allowed_are_refused_and_told_while_reading() -> None:
    most = MAX_ROWS - 76  # a word of this weight and 76 others
    assert encode(f"(cat:{most})").hidden.shape[1] == MAX_ROWS
    text = f"(cat:{most + 1})"
    with pytest.raises(RepeatError, match=r"2,049 rows, and the scheme repeat makes 2,048 at most"):
        encode(text)
    assert [issue.code for issue in read(text, scheme="repeat").issues] == ["too-many-rows", "far-weight"]
    with pytest.raises(RepeatError):
        encode("(cat:1e40)")
    assert encode(text, padding="drop").hidden.shape[1] == most + 1 + 2


def test_a_long_prompt_without_weights_has_all_its_rows() -> None:
    encoded = encode(LONG * 25, syntax="a1111")
    assert encoded.hidden.shape[1] > MAX_ROWS
    assert codes(encoded) == []


def test_towers_whose_rows_weigh_differently_are_refused_by_name() -> None:
    assert pair("a (cat:1.5)").hidden.shape == (1, 155, 64)
    assert pair({"clip_l": "a (cat:1.5)", "clip_g": "a (dog:1.5)"}).hidden.shape == (1, 155, 64)
    assert pair({"clip_l": "a cat", "clip_g": "a red dog"}).hidden.shape == (1, 77, 64)
    assert pair({"clip_l": "a (cat:2)", "clip_g": f"a (cat:2) {LONG}"}, padding="drop").hidden.shape[1] > 78
    with pytest.raises(RepeatError, match=r"clip_l and clip_g.*Row 2 weighs 1.5 in clip_l and 1 in clip_g"):
        pair({"clip_l": "a (cat:1.5)", "clip_g": "a cat"})
    with pytest.raises(RepeatError, match=r"Row 1\d\d weighs 1.5 in clip_l and 1 in clip_g"):
        pair({"clip_l": LONG + "castle (cat:1.5)", "clip_g": "a red dog"}, syntax="a1111")


def test_towers_of_other_lengths_are_refused_where_there_are_weights() -> None:
    readers = {"clip_l": Reader(default_tokenizer(), ChunkLayout(length=248)), "clip_g": READERS["clip_g"]}
    encoders = Encoders(readers)
    assert encoders.prepare(["a cat"], scheme="repeat").num_encodings == 2
    with pytest.raises(RepeatError, match=r"There are 248 rows in clip_l and 77 in clip_g"):
        encoders.prepare(["a (cat:1.5)"], scheme="repeat")


def test_blends_are_repeated_where_their_weights_agree() -> None:
    text = '("a (cat)1.5", "a (red dog)1.5").blend(1, 1)'
    with pytest.raises(RepeatError, match=r"cannot blend prompts with different weights"):
        encode(text, syntax="compel")
    assert [issue.code for issue in read(text, scheme="repeat", syntax="compel").issues] == ["unlike-rows"]
    text = '("a (cat)1.5", "a (dog)1.5").blend(1, 1)'
    plain, encoded = encode(text, scheme="unweighted", syntax="compel"), encode(text, syntax="compel")
    assert torch.equal(encoded.hidden, plain.hidden[:, sorted([*range(77), *range(77), 2])])
    joined = encode('("a (cat)1.5", "a (red dog)0.5").and()', syntax="compel")
    assert joined.hidden.shape[1] == 77 * 4 + 1 - 2


def test_the_fewest_steps_are_one_of_those_allowed() -> None:
    with pytest.raises(ValueError, match=r"finest_step must be one of: auto, 1, 2, 4, 8, 10; got '3'"):
        EncodeOptions(finest_step="3")
