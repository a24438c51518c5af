"""AND_PERP, AND_SALT and AND_TOPK against neutral-prompt's own code: cutting a prompt, and combining predictions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.composing import composed
from weighted_clip.weighting.timed.joining import JOINS, JOINTS, Joined, cut_at_joints
from weighted_clip.weighting.timed.schedule import read_timed, schedule

ON = JOINS[1]
SOUP = st.lists(st.sampled_from([*"ab []:\n(1", "0.5", *(f" {word} " for word in JOINTS), "[c:d:2]"]), max_size=14)


def tree(parts: tuple[Joined, ...]) -> list:
    return [[part.joint, part.weight, tree(part.parts)] for part in parts]


@pytest.mark.cases("neutral_prompt")
def test_a_prompt_is_cut_as_by_neutral_prompt(case: dict) -> None:
    expected, cut = case["expected"], cut_at_joints(case["prompt"])
    if cut is None:
        assert all(word == "AND" and not parts for word, _, parts in expected["tree"])
        return
    assert [cut.fragment.text[slice(*span)] for span in cut.spans] == expected["texts"]
    assert tree(cut.joined.parts) == expected["tree"]


@pytest.mark.cases("neutral_prompt")
def test_predictions_are_combined_as_by_neutral_prompt(case: dict) -> None:
    if "predictions" not in case:
        return
    cut = cut_at_joints(case["prompt"])
    assert cut is not None
    *each, without = (torch.tensor(one, dtype=torch.float64).view(1, 2, 4, 4) for one in case["predictions"])
    expected = torch.tensor(case["expected"]["denoised"], dtype=torch.float64).view(1, 2, 4, 4)
    torch.testing.assert_close(without + 7 * composed(cut.joined, each, without), expected, rtol=0, atol=1e-6)
    pair = [torch.cat([one, one * 2]) for one in each]
    of_pair = composed(cut.joined, pair, torch.cat([without, without * 2]))
    torch.testing.assert_close(of_pair[:1], composed(cut.joined, each, without), rtol=0, atol=1e-12)


@given(SOUP)
def test_any_prompt_is_cut_into_texts_that_point_at_it(tokens: list[str]) -> None:
    source = "".join(tokens)
    prompt = read_timed(source, 3, joins=ON)
    assert len(prompt.branches) == (prompt.joined.num_prompts if prompt.joined else len(prompt.branches))
    for branch in prompt.branches:
        for text in branch.texts:
            assert all(source[slice(*piece.span)] == piece.text for piece in text.fragment.pieces)
    if prompt.joined is None:
        assert prompt == read_timed(source, 3)
        return
    assert len(list(prompt.joined.joints)) == len(prompt.branches)


def test_prompts_change_with_the_steps_in_each_part_and_without_the_option_nothing_is_new() -> None:
    prompt = read_timed("a [cat:dog:2] AND_PERP [x|y]:0.5", 4, joins=ON)
    assert [[text.text for text in branch.texts] for branch in prompt.branches] == [
        ["a cat", "a dog"],
        ["x", "y", "x", "y"],
    ]
    assert [(branch.joint, branch.weight) for branch in prompt.branches] == [("AND", 1.0), ("AND_PERP", 0.5)]
    (text,) = schedule("a AND_PERP b", 4)
    assert text.text == "a AND_PERP b"
    (branch,) = read_timed("a AND_PERP b", 4, joins=ON, is_negative=True).branches
    assert branch.texts[0].text == "a AND_PERP b"


def test_many_brackets_are_read_in_little_time_and_places_are_refused() -> None:
    for many in ("[" * 20_000, "a AND_PERP " + "[x AND_SALT " * 5000, "[a AND b]" * 5000 + "AND_PERP c"):
        assert read_timed(many, 1, joins=ON).branches
    with pytest.raises(ValueError, match="have no places"):
        read_timed("a AND_PERP b MASK(0 0.5)", 4, joins=ON, regions="prompt-control")
