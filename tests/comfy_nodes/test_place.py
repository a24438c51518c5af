"""The node Place Phrase and the words that our conditionings carry, on a fake host."""

import pytest
import torch
from weighted_clip.hosts.comfy.attention.steps import MARKER
from weighted_clip.hosts.comfy.attention.words import WORDS, rows_of

from .fake_comfy import FakeClip, defaults, encode, load_tiny, node

TEXT = "a red cat and a blue dog"


def place(conditioning, phrase="red cat", **inputs):
    values = {**defaults("Place"), "conditioning": conditioning, "phrase": phrase, **inputs}
    return node("Place").place(**values)["result"]


def conditioning(name="TextEncode", text=TEXT, clip=None, **inputs):
    return encode(name, clip, text, **inputs)["result"][0]


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("TextEncode", {}),
        ("TextEncode", {"clip": "native"}),
        ("TextEncode", {"padding": "drop"}),
        ("A1111Encode", {}),
        ("MaskedBlend", {"text": "a red cat and a (blue:0.5) dog"}),
        ("MaskControl", {"hide": "blue"}),
        ("BindPhrases", {"phrases": "red cat\nblue dog"}),
        ("WeighAttention", {"text": "a red cat and a (blue:0.5) dog"}),
        ("WeighAttention", {}),
    ],
)
def test_every_encode_node_says_which_rows_are_words(name, inputs) -> None:
    if inputs.get("clip") == "native":
        inputs = {"clip": load_tiny()}
    ((rows, values),) = conditioning(name, **inputs)
    assert rows_of("red cat", rows, values) == (2, 3)
    assert rows_of("a", rows, values) == (1, 5)
    assert rows_of("green", rows, values) == ()


@pytest.mark.parametrize(
    ("text", "inputs", "phrase", "expected"),
    [
        ("a red (cat:2) and", {"scheme": "repeat", "finest_step": "1"}, "red cat", (2, 3, 4)),
        ("a (red:0) cat and", {"scheme": "repeat", "finest_step": "1"}, "red cat", (2,)),
        ("a dog BREAK a red cat", {"padding": "drop"}, "red cat", (6, 7)),
        ("a dog BREAK a red cat", {}, "red cat", (79, 80)),
        ("a red cat (dog:-1)", {"scheme": "negpip_apart"}, "red cat", (2, 3)),
    ],
)
def test_rows_that_a_scheme_repeats_moves_or_leaves_out_are_counted(text, inputs, phrase, expected) -> None:
    ((rows, values),) = conditioning(text=text, syntax="a1111", **inputs)
    assert rows_of(phrase, rows, values) == expected


def test_a_blend_has_no_words() -> None:
    blend = conditioning(text='("a red cat", "a dog").blend(1, 1)', syntax="compel")
    with pytest.raises(ValueError, match="its rows are a blend of several prompts"):
        place(blend)
    joined = conditioning(text='("a dog", "a red cat").and()', syntax="compel")
    assert rows_of("red cat", *joined[0]) == (79, 80)


def test_fields_are_attached_to_copies_and_chained() -> None:
    words = conditioning()
    first, report = place(words, area="left half", unique_id="7")
    assert "“red cat”: 2 rows" in report and "weight 1 in area “left half”, 0 outside" in report
    second, _ = place(first, "blue dog", mask=torch.ones(16, 16), inside=0.5, start=2, end=4, unit="steps")
    assert "model_conds" not in words[0][1]
    (one,) = first[0][1]["model_conds"][MARKER].fields
    assert (one.rows, one.inside, one.outside, one.where.node_id) == ((2, 3), 1.0, 0.0, "7")
    both = second[0][1]["model_conds"][MARKER].fields
    assert both[0] is one and both[1].rows == (6, 7) and both[1].where.mask.shape == (1, 16, 16)
    assert torch.equal(second[0][0], words[0][0])
    marker = second[0][1]["model_conds"][MARKER]
    assert marker._copy_with(marker.cond).fields == both


def views(conditioning, phrase="red cat", **inputs):
    values = {**defaults("Place"), "conditioning": conditioning, "phrase": phrase, **inputs}
    return node("Place").place(**values)["ui"]["weighted_clip"]


def test_the_page_gets_words_and_all_places_of_the_chain() -> None:
    first, _ = place(conditioning(text="a Red cat, (blue:0.5)"), area="top half", start=0.25, unique_id="3:7")
    (view,) = views(first, "blue", mask=torch.eye(2)[None], area="left half", inside=0.5, unique_id="8")
    (chunk,) = view["chunks"]
    marked = [(chip["text"], chip["places"]) for chip in chunk["chips"]]
    assert marked == [("a", []), ("Red", [0]), ("cat", [0]), (",", []), ("blue", [1])]
    one, other = view["places"]
    assert (one["node"], one["is_own"], other["node"], other["is_own"]) == ("3:7", False, "8", True)
    assert (one["start"], one["end"], one["unit"], one["area"]) == (0.25, 1.0, "percent", "top half")
    assert one["picture"] == [[1.0] * 16] * 8 + [[0.0] * 16] * 8
    assert (other["has_mask"], other["inside"], other["picture"]) == (True, 0.5, [[1.0, 0.0], [0.0, 0.0]])
    assert view["label"] == ""


def test_the_page_gets_each_different_text_of_a_conditioning_once() -> None:
    timed = conditioning("A1111Encode", "a [red:blue:10] cat AND a dog AND a dog")
    found = views(timed, area="64 320, 0 1")
    assert [view["text"] for view in found] == ["a red cat", "a blue cat", "a dog"]
    assert [len(view["places"]) for view in found] == [1, 0, 0]
    assert found[0]["places"][0]["picture"] is None
    assert [view["label"] for view in found] == ["from 0 to 0.52 of the way", "from 0.52 to 1 of the way", ""]


@pytest.mark.parametrize("inputs", [{}, {"inside": 1.0, "outside": 1.0, "area": "left"}])
def test_weight_1_everywhere_attaches_nothing(inputs) -> None:
    words = conditioning()
    same, report = place(words, **inputs)
    assert same is words and "conditioning unchanged" in report


def test_a_phrase_in_some_texts_of_a_timed_prompt_is_placed_there() -> None:
    timed = conditioning("A1111Encode", "a [red:blue:10] cat")
    found, report = place(timed, area="top")
    assert len(found) == 2 and "in 1 of the 2 entries" in report
    assert [MARKER in values.get("model_conds", {}) for _, values in found] == [True, False]
    assert found[0][1]["end_percent"] == timed[0][1]["end_percent"]


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [(0.6, 1.0, "0 steps of 1 of the 2 texts"), (0.0, 0.5, "0 steps of 1 of the 2 texts"), (0.2, 0.8, "")],
)
def test_a_time_that_does_not_meet_that_of_a_text_is_said(start, end, said) -> None:
    timed = conditioning("A1111Encode", "a red cat [on a mat:in a hat:10]")
    for report in (place(timed, start=start, end=end, outside=0.1, area="left")[1], add(timed, start, end)):
        assert said in report and ("0 steps" in report) == bool(said)


def add(region, start, end) -> str:
    values = {**defaults("Region"), "base": conditioning(), "region": region, "start": start, "end": end}
    return node("Region").place(**values)["result"][1]


def test_a_phrase_may_end_with_a_comma_and_is_quoted_in_short() -> None:
    placed, report = place(conditioning(text="a red cat, a dog"), "red cat, ", area="left")
    assert report.startswith("“red cat”: 2 rows")
    long = "red " * 3000
    _, report = place(conditioning(text=long), long, area="left")
    assert len(report) < 500
    with pytest.raises(ValueError, match="is not in the prompt") as caught:
        place(placed, long)
    assert len(str(caught.value)) < 200


def test_beside_row_weights_the_marker_keeps_them() -> None:
    weighed = conditioning("WeighAttention", "a red (cat:2) and a (dog:-1)")
    found, _ = place(weighed, area="left", inside=0.5)
    own, marker = (one[0][1]["model_conds"][MARKER] for one in (weighed, found))
    assert torch.equal(own.cond, marker.cond) and not own.fields
    with pytest.raises(ValueError, match="“dog” has a weight below 0"):
        place(weighed, "dog", area="left")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows, values: [rows, {"pooled_output": values["pooled_output"]}], "does not say which of its rows"),
        (lambda rows, values: [torch.cat([rows, rows], 1), values], "has changed the rows"),
        (lambda rows, values: [0.5 * rows, values], "has changed the rows"),
    ],
    ids=["stock", "concat", "average"],
)
def test_rows_of_others_are_refused(change, message) -> None:
    ((rows, values),) = conditioning()
    with pytest.raises(ValueError, match=message):
        place([change(rows, values)], area="left")
    assert rows_of("red cat", rows.half(), values) == (2, 3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"phrase": " "}, "phrase is empty"),
        ({"phrase": "green"}, "“green” is not in the prompt"),
        ({"area": "upstairs"}, "“upstairs” is not understood"),
        ({"mask": torch.zeros(1, 4, 4)}, "The mask is empty"),
        ({"mask": torch.full((1, 4, 4), 2.0)}, "from 0 to 1"),
        ({"mask": torch.ones(4)}, "must be a MASK"),
        ({"start": 0.6, "end": 0.4}, "start must be before end"),
        ({"unit": "minutes"}, "unit must be one of: percent, steps"),
    ],
)
def test_what_cannot_be_placed_is_refused(inputs, message) -> None:
    with pytest.raises(ValueError, match=message):
        place(conditioning(), **inputs)


def test_texts_that_differ_between_towers_are_refused_where_the_phrase_is_elsewhere() -> None:
    clip = FakeClip(towers=("clip_l", "clip_g"))
    inputs = {**defaults("SDXLEncode"), "clip": clip}
    different = node("SDXLEncode").encode(**{**inputs, "text_l": "a red cat, art", "text_g": "red cat, art"})["result"][
        0
    ]
    with pytest.raises(ValueError, match="clip_l and clip_g have “red cat” in different rows"):
        place(different)
    same = node("SDXLEncode").encode(**{**inputs, "text_l": TEXT, "text_g": TEXT})["result"][0]
    assert rows_of("red cat", *same[0]) == (2, 3)
    assert same[0][1][WORDS].parts[0].keys() == {"clip_l", "clip_g"}
