"""Ranges of weights in a prompt, against prompts written out."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.sweep import read_sweep

from ..door import default_tokenizer


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("a (dog:0..1:5)", ["a (dog:0)", "a (dog:0.25)", "a (dog:0.5)", "a (dog:0.75)", "a (dog:1)"]),
        ("((red) dog : 1.5 .. -0.5 : 3 )!", ["((red) dog :1.5)!", "((red) dog :0.5)!", "((red) dog :-0.5)!"]),
        ("(a:0..1:2) (b:2..3:2)", ["(a:0) (b:2)", "(a:0) (b:3)", "(a:1) (b:2)", "(a:1) (b:3)"]),
        (r"(\(dog\):0..1:2)", [r"(\(dog\):0)", r"(\(dog\):1)"]),
        ("((a:0..1:2) b:.5..1:2)", ["((a:0) b:0.5)", "((a:0) b:1)", "((a:1) b:0.5)", "((a:1) b:1)"]),
        ("(犬🐕:0..0.001:3)", ["(犬🐕:0)", "(犬🐕:0.0005)", "(犬🐕:0.001)"]),
    ],
)
def test_a_range_is_a_prompt_for_each_weight(source: str, texts: list[str]) -> None:
    assert list(read_sweep(source).texts) == texts


@pytest.mark.parametrize(
    ("source", "marks", "number"),
    [
        ("(a:0..1:2) # (b:0..1:3)", ("#",), 2),
        ("(a:0..1:2) # (b:0..1:3)", (), 6),
        ("/* ( */ (a:0..1:2) // (", ("//",), 2),
        ("(a /* :0..1:2) */ b:0..1:3)", ("//",), 3),
    ],
)
def test_nothing_in_a_comment_is_a_range(source: str, marks: tuple[str, ...], number: int) -> None:
    assert len(read_sweep(source, marks).texts) == number


def test_as_many_as_are_allowed_are_made() -> None:
    assert len(set(read_sweep("(a:0..1:2) (b:0..1:32)").texts)) == 64


def test_labels_name_words_and_weights() -> None:
    assert read_sweep("a (red:0..1:2) (dog:2..3:2)").labels == (
        "red 0, dog 2",
        "red 0, dog 3",
        "red 1, dog 2",
        "red 1, dog 3",
    )


@given(first=st.floats(-9, 9), last=st.floats(-9, 9), number=st.integers(2, 32))
def test_weights_are_spread_evenly_and_read_as_written(first: float, last: float, number: int) -> None:
    first, last = round(first, 4), round(last, 4)
    if abs(first - last) < 0.001 * number:
        return
    texts = read_sweep(f"a (dog:{first:.4f}..{last:.4f}:{number})").texts
    read = [read_prompt(text, EncodeOptions(), default_tokenizer()) for text in texts]
    weights = [one.chunks[0].tokens[2].weight for one in read]
    assert weights == pytest.approx([first + (last - first) * i / (number - 1) for i in range(number)], abs=6e-5)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a dog", "got 0 in “a dog”"),
        ("", "got 0 in “”"),
        ("(a:0..1:3) (b:0..1:3) (c:0..1:3)", "got 3 in"),
        ("(a:0..1:1)", "“:0..1:1” must be from 2 to 32; got 1"),
        ("(a:0..1:9999)", "got 9999"),
        ("(a:0..1:33)", "got 33"),
        ("(a:0..1:32) (b:0..1:32)", "these are 1024 prompts; at most 64"),
        ("(a:0..1:5) (b:0..1:13)", "these are 65 prompts; at most 64"),
        ("dog:0..1:5)", "no bracket in front of its words: write (dog:0..1:5)"),
        (r"\(dog:0..1:5)", "no bracket"),
        ("(dog:1..1:5)", "gives one weight twice"),
        ("(dog:nan..1:5)", "got 0 in"),
        ("(dog:0..1e9:5)", "got 0 in"),
        ("x" * 70_000 + "(dog:0..1:5)", "70,012 characters; at most 65,536"),
    ],
)
def test_what_is_no_range_is_quoted(source: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_sweep(source)
    assert message in str(caught.value)


@pytest.mark.parametrize("piece", [":", ": ", ":0..", ":0 ..1 :", "(", ":0..1:5)", "(a:0..1:3"])
def test_a_long_text_is_read_in_time(piece: str) -> None:
    start = time.monotonic()
    with pytest.raises(ValueError):
        read_sweep((piece * 65_536)[:65_536])
    assert time.monotonic() - start < 20
