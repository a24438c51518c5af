"""The A1111 Prompt node on a fake host: timed prompts become entries, each text is encoded once."""

import pytest
import torch
from weighted_clip.hosts.comfy.timed import uniform_timing
from weighted_clip.weighting.timed.schedule import COUNTERS

from .fake_comfy import FakeClip, Tower, node

AS_WRITTEN = {"counter": COUNTERS[1]}


def encode(text: str, clip=None, **inputs) -> dict:
    return node("A1111Encode").encode(clip or FakeClip(), text, "Original", 20, "attend", **inputs)


def entries(text: str, **inputs) -> list:
    return encode(text, **inputs)["result"][0]


def test_a_prompt_without_times_is_one_plain_entry() -> None:
    ((_, values),) = entries("a (red:1.2) [cat]")
    assert values.keys() == {"pooled_output"}


def test_an_edit_becomes_two_entries_that_meet_at_its_step() -> None:
    first, second = entries("a [cat:dog:10]", steps=20, **AS_WRITTEN)
    timing = uniform_timing(20)
    assert first[1].items() >= timing.entry_times(0, 10).items()
    assert second[1].items() >= timing.entry_times(10, 20).items()
    assert torch.equal(first[0], entries("a cat")[0][0])
    assert torch.equal(second[0], entries("a dog")[0][0])
    later = entries("a [cat:dog:10]", steps=20)
    assert later[0][1].items() >= timing.entry_times(0, 11).items()


def test_branches_of_and_carry_their_weight_as_strength() -> None:
    conditioning = entries("a cat:0.5 AND [a|b] dog", steps=4, **AS_WRITTEN)
    assert [values["strength"] for _, values in conditioning] == [0.5, 1.0, 1.0, 1.0, 1.0]
    assert "start_percent" not in conditioning[0][1]
    assert torch.equal(conditioning[1][0], conditioning[3][0])
    assert torch.equal(conditioning[1][0], entries(" a dog")[0][0])


def test_equal_texts_are_encoded_once(monkeypatch) -> None:
    calls = []
    inner = Tower.encode
    monkeypatch.setattr(Tower, "encode", lambda self, tokens: calls.append(len(tokens)) or inner(self, tokens))
    assert len(entries("[a|b|a|c] cat AND a cat", steps=40)) > 20
    assert len(calls) == 4  # "a cat", "b cat", "c cat", " a cat"


def test_a_part_of_weight_0_is_left_to_the_host() -> None:
    assert [values["strength"] for _, values in entries("a AND b:0")] == [1.0, 0.0]


@pytest.mark.parametrize("text", ["a:1 AND b:-1", "a:0 AND b:0", "a:-2 AND b"])
def test_weights_that_comfyui_cannot_divide_by_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"sum to -?\d.*ComfyUI divides by this sum"):
        encode(text)


def test_what_became_of_each_text_reaches_the_front_end() -> None:
    result = encode("a [cat:(dog:10] AND b:0.5", **AS_WRITTEN)
    views = result["ui"]["weighted_clip"]
    assert [(view["branch"], view["weight"], view["steps"]) for view in views] == [
        (0, 1.0, [[1, 20]]),
        (1, 0.5, [[1, 20]]),
    ]
    views = encode("x [cat:dog:10] y", steps=20, **AS_WRITTEN)["ui"]["weighted_clip"]
    assert [view["steps"] for view in views] == [[[1, 10]], [[11, 20]]]
    assert {view["text"] for view in views} == {"x [cat:dog:10] y"}
    shown = [[(chip["text"], chip["start"]) for chip in view["chunks"][0]["chips"]] for view in views]
    assert shown == [[("x", 0), ("cat", 3), ("y", 15)], [("x", 0), ("dog", 7), ("y", 15)]]


def test_problems_stand_at_their_place_in_the_whole_prompt_and_once() -> None:
    text = "[cat:dog:10] and a (bird"
    result = encode(text, **AS_WRITTEN)
    issues = [issue for view in result["ui"]["weighted_clip"] for issue in view["issues"]]
    assert sorted(issue["code"] for issue in issues) == ["unclosed-bracket", "uniform-steps"]
    (unclosed,) = (issue for issue in issues if issue["code"] == "unclosed-bracket")
    assert text[unclosed["start"]] == "("
    assert len(result["ui"]["text"]) == 2


def test_the_report_says_which_text_stands_when() -> None:
    report = encode("a [cat|dog] AND b:2", steps=3, **AS_WRITTEN)["result"][1]
    assert "3 steps, assumed to be of equal length" in report
    assert "steps 1, 3, AND weight 1: “a cat”" in report
    assert "steps 1 to 3, AND weight 2: “ b”" in report


def test_sigmas_say_how_many_steps_there_are() -> None:
    sigmas = torch.tensor([14.6, 7.0, 3.0, 1.0, 0.0])
    result = encode("[cat:dog:0.5]", steps=50, sigmas=sigmas, **AS_WRITTEN)
    assert [view["steps"] for view in result["ui"]["weighted_clip"]] == [[[1, 2]], [[3, 4]]]
    assert result["ui"]["text"] == []
    assert "4 steps, timed by sigmas and Stable Diffusion's noise levels" in result["result"][1]


def test_the_time_is_not_assumed_where_nothing_depends_on_it() -> None:
    assert encode("a cat AND a dog")["ui"]["text"] == []


def test_entries_of_a_scheduled_hook_are_no_times() -> None:
    class Hooked(FakeClip):
        def clone(self):
            return Hooked(self.cond_stage_model, self.patcher.object_patches, self.towers)

        def encode_from_tokens_scheduled(self, tokens, add_dict=None):
            return super().encode_from_tokens_scheduled(tokens, add_dict) * 3

    result = encode("a cat", clip=Hooked())
    assert len(result["result"][0]) == 3
    assert result["ui"]["text"] == []
    assert "equal length" not in result["result"][1]


def test_without_emphasis_times_are_read_all_the_same() -> None:
    result = node("A1111Encode").encode(FakeClip(), "[(cat):dog:5]", "None", 20, "attend", **AS_WRITTEN)
    texts = [[chip["text"] for chip in view["chunks"][0]["chips"]] for view in result["ui"]["weighted_clip"]]
    assert texts == [["(", "cat", ")"], ["dog"]]


def test_a_prompt_is_cleaned_as_in_the_webui_unless_told_otherwise() -> None:
    typed = "a “red” cat # [on a mat::5]\nin a bowl"
    assert [len(entries(typed)), len(entries(typed, cleaning="none"))] == [1, 2]
    assert torch.equal(entries(typed)[0][0], entries('a "red" cat \nin a bowl')[0][0])
    assert not torch.equal(entries("“a”")[0][0], entries("“a”", cleaning="none")[0][0])
