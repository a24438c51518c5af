"""Prompt editing, alternation and AND against the case files, and what must hold for any prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.text.prompt import Span
from weighted_clip.weighting.timed.editing import edits_of, mixture_at, read_editing
from weighted_clip.weighting.timed.schedule import COUNTERS, Branch, read_timed, schedule, split_and

SOUP = st.text(alphabet="ab :|[]()\\\n.0123", max_size=40)


@pytest.mark.cases("a1111_schedule")
def test_texts_equal_the_reference(case: dict) -> None:
    texts = schedule(
        case["prompt"], case["steps"], hires_steps=case["hires_steps"], old_rule=case["use_old_scheduling"]
    )
    assert [[text.last_step, text.text] for text in texts] == case["expected"]


@pytest.mark.cases("a1111_and")
def test_and_equals_the_reference(case: dict) -> None:
    parts = split_and(case["prompt"])
    texts = [case["prompt"][slice(*part.span)] for part in parts]
    assert [[text, part.weight] for text, part in zip(texts, parts, strict=True)] == case["expected"]
    assert list(dict.fromkeys(texts)) == case["flat"]


def test_an_empty_part_of_a_prompt_reads_like_any_other() -> None:
    assert [part.span for part in split_and("AND")] == [Span(0, 0), Span(3, 3)]
    assert [text.text for text in schedule("", 4)] == [""]


@given(SOUP)
def test_pieces_are_the_text_they_point_at(source: str) -> None:
    for part in split_and(source):
        for _, fragment, _ in schedule(source, 7, part.span):
            assert all(source[slice(*piece.span)] == piece.text for piece in fragment.pieces)
            assert all(part.span.start <= place < part.span.end for place in fragment.positions)


@given(SOUP)
def test_the_parts_of_a_prompt_and_the_syntax_between_them_are_all_of_it(source: str) -> None:
    parts, culprit = read_editing(source)
    if culprit is not None:
        assert parts == (Span(0, len(source)),)
        assert source[culprit.start] in "|\\"
    ends = [0, *(part.end if isinstance(part, Span) else part.span.end for part in parts)]
    starts = [*(part.start if isinstance(part, Span) else part.span.start for part in parts), len(source)]
    assert starts == ends


@given(SOUP, st.integers(1, 12))
def test_last_steps_ascend_to_the_number_of_steps(source: str, steps: int) -> None:
    last_steps = [text.last_step for text in schedule(source, steps)]
    assert last_steps == sorted(set(last_steps))
    assert last_steps[0] >= 1
    assert last_steps[-1] == steps


@given(SOUP, st.integers(1, 12))
def test_every_step_has_the_text_of_its_own_rendering(source: str, steps: int) -> None:
    """The texts between two borders do not change, so each step's own rendering is in the list."""
    parts = read_editing(source).parts
    last_steps = {edit.span: schedule_step(edit.when, steps) for edit in edits_of(parts) if hasattr(edit, "when")}
    branch = Branch(1.0, schedule(source, steps))
    for call in range(steps):
        rendered = "".join(source[slice(*span)] for span in mixture_at(parts, call + 1, last_steps)[0][1])
        assert branch.at(call, "as written").text == rendered


def schedule_step(when: str, steps: int) -> float:
    """weighting.md: a number with a point is a part of the steps."""
    return min(float(when) * steps // 1 if "." in when else float(when) // 1, steps)


@pytest.mark.parametrize(
    ("prompt", "counter", "expected"),
    [
        ("[a:b:5]", COUNTERS[0], "aaaaaabbbb"),  # an entry up to step 5 serves six calls
        ("[a:b:5]", COUNTERS[1], "aaaaabbbbb"),
        ("[a|b]", COUNTERS[0], "aababababa"),  # the first option twice, the last entry never
        ("[a|b]", COUNTERS[1], "ababababab"),
        ("[a|b|c]", COUNTERS[0], "aabcabcabc"),
        ("[a:b:0.2][c:d:1.0]", COUNTERS[1], "aabbbbbbbb"),
    ],
)
def test_the_two_counters(prompt: str, counter: str, expected: str) -> None:
    branch = Branch(1.0, schedule(prompt, 10))
    assert "".join(branch.at(call, counter).text[0] for call in range(10)) == expected


def test_beyond_the_last_step_the_first_text_comes_again() -> None:
    branch = Branch(1.0, schedule("[a:b:2]", 4))
    assert [branch.at(call, COUNTERS[0]).text for call in (3, 4, 5, 6)] == ["b", "b", "a", "a"]
    assert [branch.at(call, COUNTERS[1]).text for call in (3, 4, 5)] == ["b", "a", "a"]


def test_each_branch_keeps_its_own_weight_and_texts() -> None:
    prompt = read_timed("a [b:c:0.5]:0.7 AND [d|e]", 4)
    assert [branch.weight for branch in prompt.branches] == [0.7, 1.0]
    assert [[text.text for text in branch.texts] for branch in prompt.branches] == [
        ["a b", "a c"],
        [" d", " e", " d", " e"],
    ]
    assert not prompt.issues


@pytest.mark.parametrize(
    ("prompt", "code", "place"),
    [
        ("a photo at 8:30", "lone-and-weight", ":30"),
        ("a | b [c:d:5]", "no-editing", "|"),
        ("[a|b:0.5] c", "no-editing", "|"),
        ("[a:b:5] c\\", "no-editing", "\\"),
        ("a [b:c:11] d", "edit-without-change", "[b:c:11]"),
        ("a [b:c:0.01] d", "edit-without-change", "[b:c:0.01]"),
        ("x AND a [b:c:-1] d", "edit-without-change", "[b:c:-1]"),
    ],
)
def test_what_the_author_should_know(prompt: str, code: str, place: str) -> None:
    (issue,) = read_timed(prompt, 10).issues
    assert issue.code == code
    assert prompt[slice(*issue.span)] == place


@pytest.mark.parametrize("prompt", ["a cat", "a | b", "[a:b:5]", "[a|b]", "a:1 AND b:2", "(a:1.2)", "[a]", "a \\", ""])
def test_nothing_to_know(prompt: str) -> None:
    assert not read_timed(prompt, 10).issues


@pytest.mark.parametrize("steps", [0, -1, 10001])
def test_steps_out_of_range_are_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=rf"1 to 10000, got {steps}"):
        read_timed("a", steps)


@pytest.mark.parametrize(
    "unit", ["[", "(", "[a:", "[a|", "((a)", "[[a:b:1]", "a AND ", "[:::", ":1", "\\(", "[a:1", "9"]
)
def test_long_prompts_are_read_in_one_pass(unit: str) -> None:
    source = unit * 20_000
    assert schedule(source, 3)[-1].last_step == 3
    assert split_and(source)
    deep = "(" * 5_000 + "[a:b:2]" * 10 + ")" * 5_000
    assert schedule(deep, 3)[0].text.count("a") == 10


@pytest.mark.parametrize("when", ["1e999", "-1e999", "1.0e999", "9" * 400, "0." + "0" * 400 + "1"])
def test_numbers_of_any_size(when: str) -> None:
    assert schedule(f"[a:b:{when}]", 5)[-1].last_step == 5


def test_thousands_of_steps_share_their_texts() -> None:
    texts = schedule("word " * 10_000 + "[a|b]", 10_000)
    assert len(texts) == 10_000
    assert len({id(text.fragment) for text in texts}) == 2


def test_more_changes_than_memory_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match=r"12000 edits and alternations over 10000 steps are too many"):
        schedule("[a|b]" * 12_000, 10_000)
    assert len(schedule("[a|b]" * 12_000, 20)) == 20
    with pytest.raises(ValueError, match=r"9001 parts between ANDs over 10000 steps are too many"):
        read_timed("a AND " * 9_000, 10_000)


NINES = "9" * 400


@pytest.mark.parametrize(
    ("text", "weights", "codes"),
    [
        (f"a AND b:{NINES}", [1.0, 1e30], ["clamped-weight"]),
        (f"a:{NINES} AND b:-{NINES}", [1e30, -1e30], ["clamped-weight", "clamped-weight"]),
        (f"a AND b:{NINES}.5", [1.0, 1e30], ["clamped-weight"]),
        ("a AND b:13", [1.0, 13.0], ["far-weight"]),
        ("a AND b:-12.5", [1.0, -12.5], ["far-weight"]),
        ("a AND b:10", [1.0, 10.0], []),
    ],
)
def test_weights_of_parts_are_finite_and_named_like_those_of_words(text: str, weights: list, codes: list) -> None:
    prompt = read_timed(text, 5)
    assert [branch.weight for branch in prompt.branches] == weights == [part.weight for part in split_and(text)]
    assert [issue.code for issue in prompt.issues] == codes
    assert all(text[slice(*issue.span)].strip(": ") in text for issue in prompt.issues)


def test_a_weight_of_a_part_without_its_point_is_mended() -> None:
    text = "a AND b : 13 AND c"
    (issue,) = read_timed(text, 5).issues
    assert text[: issue.span.start] + issue.fix + text[issue.span.end :] == "a AND b : 1.3 AND c"
