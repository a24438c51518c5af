"""Reading and encoding as front ends do: options, padding, clamping, the view."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.normalization import normalize
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.padding import PADDINGS, padding_visible
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.reading.view import token_table, view
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.schemes.repeat import copies_of
from weighted_clip.weighting.syntax import SYNTAXES
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT, ChunkLayout
from weighted_clip.weighting.text.prompt import PromptError

from ..door import num_rows
from ..libraries import needs_masked_kernel
from .tiny import TINY, encode, read


@pytest.mark.parametrize(
    "field", ["syntax", "scheme", "normalization", "chunking", "padding", "pooled", "law", "mask_method"]
)
def test_unknown_options_are_refused_with_the_allowed_ones(field: str) -> None:
    with pytest.raises(ValueError, match=rf"{field} must be one of: .*; got 'nonsense'"):
        EncodeOptions(**{field: "nonsense"})


@pytest.mark.parametrize("filler", ["", "two words", "chiaroscuro"])
def test_a_filler_that_is_not_one_token_is_refused(filler: str) -> None:
    with pytest.raises(ValueError, match=f"{filler!r} is {len(default_tokenizer()(filler))}"):
        encode("a (cat:0.5)", scheme="masked_blend", mask_method="token", filler=filler)


def test_strict_reaches_the_parser() -> None:
    with pytest.raises(PromptError):
        read("(a:1.2.3)", syntax="a1111", strict=True)


@pytest.mark.parametrize(
    ("text", "weight"), [("(a:inf)", 1e30), ("(a:-inf)", -1e30), ("(a:nan)", 1.0), ("(a:1e300)", 1e30)]
)
def test_weights_no_float32_can_carry_are_clamped_and_said(text: str, weight: float) -> None:
    result = read(text)
    assert result.chunks[0].weights[1] == weight
    assert "clamped-weight" in [issue.code for issue in result.issues]
    assert torch.isfinite(encode(text).hidden).all()


def test_problems_beyond_a_hundred_are_counted() -> None:
    result = read(")" * 150, syntax="a1111")
    assert len(result.issues) == 101
    assert result.issues[-1].message.startswith("50 more problems")


def test_padding_masks_hide_what_they_say() -> None:
    chunks = read("a cat").chunks
    ids = chunks[0].ids
    visible = {padding: padding_visible(padding, CLIP_L_LAYOUT)(chunks[0]) for padding in PADDINGS}
    assert visible["attend"] is None
    assert visible["mask"] == bytes([1] * 4 + [0] * 73)
    assert visible["mask EOS too"] == bytes([1] * 3 + [0] * 74)
    # with an id of its own for padding, EOS is not padding, and neither is a typed token of that id
    layout = ChunkLayout(pad_id=0)
    exclamation = read_prompt("a !", EncodeOptions(), default_tokenizer(), layout).chunks
    for padding in ("mask", "mask EOS too"):
        assert padding_visible(padding, layout)(exclamation[0]) == bytes([1] * 4 + [0] * 73)
    assert ids[3] == CLIP_L_LAYOUT.eos_id


def test_masking_padding_changes_padding_rows_only() -> None:
    needs_masked_kernel()
    attend, mask = encode("a (cat:1.3)").hidden, encode("a (cat:1.3)", padding="mask").hidden
    assert torch.equal(attend[:, :4], mask[:, :4])
    assert not torch.equal(attend[:, 4:], mask[:, 4:])


def test_padding_is_masked_in_the_shortened_chunk_too() -> None:
    """With the method ``remove`` the padding starts earlier in the encoding without the word."""
    seen = []

    def spy(ids, mask=None, *, is_causal=True):
        seen.append(mask)
        return TINY(ids, mask, is_causal=is_causal)

    encode("a (cat:0.5)", spy, scheme="masked_blend", mask_method="remove", padding="mask")
    assert seen[0][:, 0].sum(-1).tolist() == [4, 3]


def test_normalization_length_and_mean_by_hand() -> None:
    chunks = read("(chiaroscuro:2.2) cat", syntax="comfy").chunks
    pieces = len(default_tokenizer()("chiaroscuro"))
    assert pieces == 4
    length = normalize(chunks, "length")[0].weights
    assert length[1] == pytest.approx(1 + 1.2 / 4**0.5)
    assert length[5] == 1.0
    mean = normalize(chunks, "mean")[0].weights
    assert sum(mean[1:6]) / 5 == pytest.approx(1.0)
    assert mean[1] - mean[5] == pytest.approx(1.2)
    assert mean[0] == mean[6] == 1.0
    assert normalize(read("").chunks, "length+mean") == read("").chunks


def test_view_counts_utf16_units_and_leaves_nothing_out() -> None:
    prompt = read("🦊 (cat:1.2) BREAK [dog (x", syntax="a1111", scheme="a1111")
    data = view(prompt)
    assert json.loads(json.dumps(data)) == data
    text = data["text"].encode("utf-16-le")

    def cut(start: int, end: int) -> str:
        return text[2 * start : 2 * end].decode("utf-16-le")

    first, second = data["chunks"]
    assert [(chip["text"], len(chip["ids"])) for chip in first["chips"]] == [("🦊", 2), ("cat", 1)]
    assert all(cut(chip["start"], chip["end"]) == chip["text"] for chip in first["chips"] + second["chips"])
    assert (first["has_break"], second["has_break"]) == (True, False)
    assert [cut(issue["start"], issue["end"]) for issue in data["issues"]] == ["[", "("]
    assert data["num_tokens"] == first["num_tokens"] + second["num_tokens"] == 5
    marks = "".join(data["text"][slice(*span)] for span in prompt.prompt.marks)
    assert marks == "(:1.2)  [(" or marks.replace(" ", "") == "(:1.2)[("


def test_table_shows_every_token_with_its_weight_and_every_problem() -> None:
    table = token_table(read("a (red:1.4) cat (x", syntax="a1111"))
    lines = table.splitlines()
    assert lines[0] == "chunk 1 of 1: 4/75 tokens"
    assert [line.split()[1] for line in lines[1:5]] == ["320", "736", "2368", "343"]
    assert lines[2].endswith("1.4")
    assert lines[1].rstrip().endswith("'a'")
    assert "1 problem:" in table
    assert "never closed" in lines[-1]


@pytest.mark.parametrize("syntax", SYNTAXES)
@settings(max_examples=60)
@given(text=st.text(), scheme=st.sampled_from(list(SCHEMES)))
def test_any_text_gives_finite_conditioning_and_a_view(syntax: str, text: str, scheme: str) -> None:
    result = encode(text, syntax=syntax, scheme=scheme)
    rows = copies_of(result.read).count(None) if SCHEMES[scheme].is_repeating else num_rows(result.read)
    assert result.hidden.shape == (1, rows, 32)
    assert result.pooled.shape == (1, 32)
    assert torch.isfinite(result.hidden).all()
    json.dumps(view(result.read))
    token_table(result.read)
