"""Prompts that glide: shares of texts against prompt-fusion's own code, lines by hand, bounds, and bad input."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_clip.weighting.reading.timed_view import standing_texts
from weighted_clip.weighting.syntax import parse
from weighted_clip.weighting.timed.editing import MAX_GLIDES, MAX_MIXED, read_editing
from weighted_clip.weighting.timed.glides import GLIDES
from weighted_clip.weighting.timed.schedule import COUNTERS, MAX_GLIDING, TimedText, read_timed, runs, schedule

ON = GLIDES[1]
WEBUI, WRITTEN = COUNTERS
SOUP = st.text(alphabet="ab :|[]()\\,@.0159", max_size=40)


def shares_of(text: TimedText) -> dict[str, float]:
    mixture = [(mixed.share, mixed.fragment.text) for mixed in text.mixture] or [(1.0, text.text)]
    shares: dict[str, float] = {}
    for share, written in mixture:
        # as tokens are: words, digits and marks, whatever is between them
        key = " ".join(re.findall(r"\w+|[^\w\s]", re.sub(r"(?<=\d)\.0(?!\d)", "", written)))
        shares[key] = shares.get(key, 0.0) + share
    return shares


def at(texts: tuple[TimedText, ...], step: int) -> TimedText:
    return next(text for text in texts if step <= text.last_step)


@pytest.mark.cases("glide")
def test_shares_at_each_step_equal_prompt_fusions(case: dict) -> None:
    steps, hires_steps = case["steps"], case["hires_steps"]
    texts = schedule(case["prompt"], steps, hires_steps=hires_steps, old_rule=case["use_old_scheduling"], glides=ON)
    for step, expected in enumerate(case["expected"]):
        reference: dict[str, float] = {}
        for share, text in expected:
            key = " ".join(re.findall(r"\w+|[^\w\s]", re.sub(r"(?<=\d)\.0(?!\d)", "", text)))
            reference[key] = reference.get(key, 0.0) + share
        found = {key: share for key, share in shares_of(at(texts, step)).items() if abs(share) > 1e-12}
        reference = {key: share for key, share in reference.items() if abs(share) > 1e-12}
        assert found == pytest.approx(reference, abs=1e-9), step


def line(prompt: str, steps: int, counter: str) -> list[float]:
    (branch,) = read_timed(prompt, steps, glides=ON, counter=counter).branches
    written = [run.fragment.text for run in runs(branch, steps, counter) for _ in range(run.first, run.end)]
    return [float(re.search(r"\(dog:(.*)\)", text)[1]) for text in written]


def test_a_weight_follows_its_line_as_strengths_of_loras_do() -> None:
    assert line("a (dog:0.2@0,1.2@0.5) b", 11, WRITTEN) == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, *[1.2] * 6])
    assert line("a (dog:0.2@0,1.2@0.5) b", 12, WEBUI) == pytest.approx([0.2, 0.2, 0.4, 0.6, 0.8, 1.0, *[1.2] * 6])
    assert line("(dog:1@3; 0@5, -1@7)", 8, WRITTEN) == pytest.approx([1, 1, 1, 0.5, 0, -0.5, -1, -1])
    assert line("(dog:0.5@0.2)", 3, WRITTEN) == [0.5] * 3


def test_without_the_option_and_without_the_notation_nothing_changes() -> None:
    for prompt in ("a [cat:dog:0.2,0.8]", "(dog:0.2@0,1.2@0.5)", "(a:0,5)", "[a|b:0.5]"):
        (text,) = schedule(prompt, 10)
        assert text.text == prompt
    for prompt in ("a [cat:dog:0.5]", "[a|b|c]", "[a:b:5] AND (c:1.2):0.8", "[[a]:3] (b:1.2)"):
        assert read_timed(prompt, 10, glides=ON).branches == read_timed(prompt, 10).branches


@settings(max_examples=300, deadline=None)
@given(SOUP, st.integers(1, 9))
def test_any_prompt_has_shares_of_sum_one_and_pieces_that_point_at_it(source: str, steps: int) -> None:
    try:
        prompt = read_timed(source, steps, glides=ON)
    except ValueError as error:
        assert "have no sum" in str(error) or "at most" in str(error)
        return
    for branch in prompt.branches:
        last_steps = [text.last_step for text in branch.texts]
        assert last_steps[-1] == steps
        assert all(before < after for before, after in pairwise(last_steps))
        for text in branch.texts:
            assert sum(mixed.share for mixed in text.mixture or ()) == pytest.approx(1.0 if text.mixture else 0.0)
            for fragment in text.fragments:
                assert all(0 <= place <= len(source) for place in fragment.positions)
        if not any(branch.glides for branch in prompt.branches) and "@" not in source and "," not in source:
            assert branch.texts == read_timed(source, steps).branches[prompt.branches.index(branch)].texts


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("[cat:dog:0.2,nan]", "unread-glide"),
        ("[cat:dog:0.2,inf]", "unread-glide"),
        ("(dog:0.2@)", "unread-glide"),
        ("(dog:@0.5)", "unread-glide"),
        ("(dog:nan@0,1@1)", "unread-glide"),
        ("[cat:dog:8,2]", "backward-glide"),
        ("[cat:dog:fish:2,8]", "uneven-glide"),
        ("[cat:dog:30,40]", "glide-without-change"),
        ("[cat:dog:-9,-2]", "glide-without-change"),
    ],
)
def test_bad_notation_is_named(prompt: str, code: str) -> None:
    (issue,) = read_timed(f"a {prompt} b", 10, glides=ON).issues
    assert issue.code == code
    assert issue.span == (2, 2 + len(prompt))


def test_numbers_of_any_length_are_read() -> None:
    digits = "9" * 5000
    assert line(f"(dog:{digits}@0,0@1)", 3, WRITTEN)[0] == 1e30
    (text,) = schedule(f"[cat:dog:{digits},{digits}]", 4, glides=ON)
    assert text.text == "cat"


@pytest.mark.parametrize(
    "prompt",
    [
        "[a:b:1,-1:mean]",
        "".join(f"[a{number}:b:0,9]" for number in range(7)),  # 2 ** 7 texts at once
        "[a" + ":b" * MAX_MIXED + ":" + "," * MAX_MIXED + ":bezier]",
        "[a:" * (MAX_GLIDES + 1) + "b" + ":0,9]" * (MAX_GLIDES + 1),
    ],
)
def test_what_cannot_be_mixed_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError, match=r"have no sum|at most"):
        read_timed(prompt, 10, glides=ON)


def test_as_many_glides_and_mixed_texts_as_are_allowed_are_read() -> None:
    assert len(read_editing("[a:b:0,9] " * 100, glides=True).parts) >= 100
    with pytest.raises(ValueError, match="may have 100 glides"):
        read_editing("[a:b:0,9] " * 101, glides=True)
    (branch,) = read_timed("".join(f"[a{number}:b:0,9]" for number in range(6)), 10, glides=ON).branches
    assert max(len(text.mixture) for text in branch.texts) == 64


def test_a_glide_of_thousands_of_points_is_read_and_one_of_thousands_of_steps_is_refused() -> None:
    many = ":".join(f"w{number}" for number in range(3000))
    (branch,) = read_timed(f"[{many}:{',' * 2999}]", 30, glides=ON).branches
    assert branch.at(0, WEBUI).text == "w0"
    with pytest.raises(ValueError, match="fewer steps"):
        read_timed("[a:b:0.0,1.0]", MAX_GLIDING + 1, glides=ON)


def test_texts_that_differ_by_a_weight_on_a_line_are_shown_as_one() -> None:
    prompt = read_timed("a (dog:0.2,1.2) [cat:fish:3,6]<lora:ink:1>", 8, glides=ON)
    texts = standing_texts(prompt, 8, WRITTEN)
    assert [text.steps for text in texts] == [((1, 6),), ((5, 8),)]
    assert [round(share, 2) for share in texts[0].shares] == [1, 1, 1, 1, 0.67, 0.33, 0, 0]
    assert len(texts[0].versions) == 6


def test_forms_that_nothing_reads_are_named_where_they_are_text() -> None:
    found = [
        issue.message for issue in parse("[a:b:0.2,0.8] (c:0.2@0,1@1) [d:e:f:,5 ,9:bezier] [g:h:0.5]", "a1111").issues
    ]
    assert sorted(message.partition("”")[0] for message in found if "where glides" in message) == sorted(
        ["“[a:b:0.2,0.8]", "“(c:0.2@0,1@1)", "“[d:e:f:,5 ,9:bezier]"]
    )
    assert not any("where glides" in issue.message for issue in parse("[cat:dog:0,5] (cat:1.2)", "a1111").issues)
