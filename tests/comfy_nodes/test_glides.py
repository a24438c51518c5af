"""Prompts that glide, by the nodes on a fake host: rows of each step by hand in float64, and what is refused."""

from types import SimpleNamespace

import pytest
import torch
from weighted_clip.hosts.comfy.attention.words import rows_of
from weighted_clip.hosts.comfy.clip.timed_prompts import uniform_timing
from weighted_clip.hosts.comfy.mixing import mixed
from weighted_clip.hosts.comfy.weighted_clip.settings import ClipSettings
from weighted_clip.hosts.comfy.weighted_clip.timed_tokens import timed_tokens
from weighted_clip.weighting.timed.glides import GLIDES
from weighted_clip.weighting.timed.schedule import COUNTERS

from .fake_comfy import encode

AS_WRITTEN = {"counter": COUNTERS[1]}
ON = {"glides": GLIDES[1], **AS_WRITTEN}


def entries(text: str, clip=None, **inputs) -> list:
    return encode("A1111Encode", clip, text, **inputs)["result"][0]


def by_hand(shares: dict[str, float], index: int) -> torch.Tensor:
    """Rows, or the pooled vector, of some texts alone, summed in float64."""
    total = torch.zeros((), dtype=torch.float64)
    for text, share in shares.items():
        rows, values = entries(text)[0]
        total = total + (rows if index == 0 else values["pooled_output"]).double() * share
    return total


def test_each_step_of_a_glide_has_its_mixture() -> None:
    conditioning = entries("a [cat:dog:0.2,0.8] here", steps=10, **ON)
    timing = uniform_timing(10)
    assert len(conditioning) == 7  # cat to step 2, five mixtures, dog from step 8
    assert torch.equal(conditioning[0][0], entries("a cat here")[0][0])
    assert torch.equal(conditioning[-1][0], entries("a dog here")[0][0])
    for number, (rows, values) in enumerate(conditioning):
        shares = {"a cat here": 1 - number / 6, "a dog here": number / 6}
        torch.testing.assert_close(rows.double(), by_hand(shares, 0), rtol=0, atol=1e-6)
        torch.testing.assert_close(values["pooled_output"].double(), by_hand(shares, 1), rtol=0, atol=1e-6)
        first, end = (number + 1 if number else 0), (number + 2 if number < 6 else 10)
        assert values.items() >= timing.entry_times(first, end).items()
    later = entries("a [cat:dog:0.2,0.8] here", steps=10, glides=GLIDES[1])
    assert later[0][1]["end_percent"] == pytest.approx(timing.entry_times(0, 3)["end_percent"])


def test_a_shorter_text_is_filled_up_with_the_empty_prompt() -> None:
    long = ", ".join(["a red cat"] * 30)
    conditioning = entries(f"[{long}:a dog:0.0,1.0]", steps=4, **ON)
    rows = conditioning[1][0]  # step 2, half of each
    whole, short, empty = (entries(text)[0][0].double() for text in (long, "a dog", ""))
    assert rows.shape == whole.shape and rows.shape[1] == 154
    torch.testing.assert_close(rows.double(), whole / 2 + torch.cat([short, empty], 1) / 2, rtol=0, atol=1e-6)


@pytest.mark.parametrize("counter", COUNTERS)
def test_a_weight_on_a_line_is_encoded_as_if_it_were_written_so(counter: str) -> None:
    conditioning = entries("a (dog:0.2@0,1.2@1) here", steps=6, glides=GLIDES[1], counter=counter)
    weights = [0.2, 0.4, 0.6, 0.8, 1.0, 1.2] if counter == COUNTERS[1] else [0.2, 0.45, 0.7, 0.95, 1.2]
    assert len(conditioning) == len(weights)
    for (rows, _), weight in zip(conditioning, weights, strict=True):
        torch.testing.assert_close(rows, entries(f"a (dog:{weight}) here")[0][0], rtol=0, atol=1e-6)


def test_glides_of_parts_between_ands_keep_their_weights() -> None:
    conditioning = entries("a [cat:dog:0.0,1.0]:0.5 AND b", steps=2, **ON)
    assert [values["strength"] for _, values in conditioning] == [0.5, 0.5, 1.0]
    torch.testing.assert_close(conditioning[0][0].double(), by_hand({"a cat": 0.5, "a dog": 0.5}, 0), rtol=0, atol=1e-6)


def test_of_dropped_padding_a_shorter_text_keeps_what_the_longest_needs() -> None:
    text = "[a cat:a dog in a bowl:0.0,1.0]"
    dropped, whole = (entries(text, steps=4, padding=padding, **ON)[1][0] for padding in ("drop", "attend"))
    assert torch.equal(dropped, whole[:, :7])


def test_a_line_that_stays_at_one_weight_leaves_one_text_in_any_box() -> None:
    settings = ClipSettings(is_timed=True, glides=GLIDES[1])
    session = SimpleNamespace(settings=settings, method=settings)
    assert timed_tokens("a (cat:1.2,1.2)", session, lambda text: {"l": text}) == {"l": "a (cat:1.2)"}


def test_without_the_option_nothing_is_new() -> None:
    for text in ("a [cat:dog:0.2,0.8]", "(dog:0.2@0,1.2@0.5)"):
        ((rows, _),) = entries(text, steps=10)
        assert torch.equal(rows, encode("TextEncode", None, text, syntax="a1111", scheme="a1111")["result"][0][0][0])
    for text in ("a [cat:dog:0.5]", "[a|b] AND c:0.5"):
        before, after = entries(text, steps=6), entries(text, steps=6, glides=GLIDES[1])
        assert [values.keys() for _, values in before] == [values.keys() for _, values in after]
        assert all(torch.equal(one[0], other[0]) for one, other in zip(before, after, strict=True))


def test_words_of_mixed_rows_have_none_of_their_own() -> None:
    rows, values = entries("a [cat:dog:0.0,1.0]", steps=2, **ON)[0]
    with pytest.raises(ValueError, match="blend of several prompts"):
        rows_of("cat", rows, values)


def test_what_cannot_be_mixed_is_refused() -> None:
    rows = torch.zeros(1, 3, 2)
    with pytest.raises(ValueError, match="'layers', which cannot be mixed"):
        mixed([(0.5, [[rows, {"layers": rows}]]), (0.5, [[rows, {"layers": rows + 1}]])], list)
    with pytest.raises(ValueError, match="same LoRAs"):
        mixed([(0.5, [[rows, {}]]), (0.5, [[rows, {}], [rows, {}]])], list)
    with pytest.raises(ValueError, match="glides must be one of: off, prompt-fusion; got 'on'"):
        entries("a", glides="on")


def test_rows_of_other_encoders_are_filled_with_zeros_and_their_masks_joined() -> None:
    short, long = torch.ones(1, 2, 4), torch.ones(1, 5, 4) * 3
    masks = torch.tensor([[1, 1]]), torch.tensor([[1, 1, 1, 0, 0]])
    parts = [(0.25, [[short, {"attention_mask": masks[0]}]]), (0.75, [[long, {"attention_mask": masks[1]}]])]
    ((rows, values),) = mixed(parts, lambda: [[torch.ones(1, 2, 4), {}]])
    assert rows[0, :, 0].tolist() == [2.5, 2.5, 2.25, 2.25, 2.25]
    assert values["attention_mask"].tolist() == [[1, 1, 1, 0, 0]]


def test_the_ruler_is_told_the_curve_of_each_text_and_weight() -> None:
    result = encode("A1111Encode", None, "a [cat:dog:0.0,1.0] (red:0,1)", steps=5, **ON)
    views = result["ui"]["weighted_clip"]
    curves = [{chip["text"]: chip.get("curve") for chip in view["chunks"][0]["chips"]} for view in views]
    assert curves[0]["cat"] == [0.8, 0.6, 0.4, 0.2, 0.0]
    assert curves[1]["dog"] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert curves[0]["a"] is None
    assert curves[1]["red"] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert "share 0.8 to 0.2" in result["result"][1]
