"""Schemes against the case files, the compel library, and what must hold for any prompt."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_clip.weighting.chunking import CHUNKINGS
from weighted_clip.weighting.normalization import normalize
from weighted_clip.weighting.options import OPTIONS
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.schemes.scheme import SchemeOptions
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT, ChunkLayout, Token, close_chunk

from ..door import apply_scheme, num_rows
from ..libraries import needs_masked_kernel
from ..toy import case_chunks, toy_encode
from .tiny import TINY, encode, read

# names in the case files: names of the programs, and ours
OURS = {
    "adv_compel": "adv_compel",
    "adv_comfy++": "comfy++",
    "adv_down_weight": "down_weight",
    "perp": "perp",
    "a1111_original": "a1111",
    "a1111_no_norm": "a1111_no_norm",
    "adv_A1111": "a1111_global_norm",
    "adv_comfy": "comfy",
    "comfy": "comfy",
    "comfy_pad0": "comfy",
}


@pytest.mark.cases("weighting_numeric", only={"scheme": list(OURS)})
def test_equals_the_program_it_is_named_after(case: dict) -> None:
    layout = ChunkLayout(pad_id=0) if case["scheme"] == "comfy_pad0" else CLIP_L_LAYOUT
    chunks = normalize(case_chunks(case), case.get("normalization", "none"))
    result = apply_scheme(OURS[case["scheme"]], chunks, toy_encode, SchemeOptions(layout=layout))
    expected = torch.tensor(case["expected"], dtype=torch.float64)
    torch.testing.assert_close(result.hidden[0], expected, rtol=0, atol=1e-8)
    if "pooled" in case:
        pooled = torch.tensor([case["pooled"]], dtype=torch.float64)
        torch.testing.assert_close(result.pooled, pooled, rtol=0, atol=1e-8)


SPLITS = {
    "SENTENCES": "compel sentences",
    "PHRASES": "compel phrases",
    "WORDS": "compel words",
    "BRUTAL": "compel brutal",
}
EOS_ROWS = {"COPY_FIRST_CLS_TOKEN": "first", "MERGE_CLS_TOKENS": "mean"}


@pytest.mark.cases("weighting_numeric", only={"scheme": ["compel_real"]})
def test_compel_prompts_equal_the_compel_library_from_text_to_rows(case: dict) -> None:
    given = case["options"]
    split, _, eos_rows = given.get("split", "SENTENCES").partition("|")
    result = encode(
        case["prompt"],
        toy_encode,
        syntax="compel",
        scheme="compel" if "downweight_mode" not in given else "masked_blend",
        law="compel",
        mask_method="attention" if "downweight_mode" not in given else "remove",
        chunking=SPLITS[split] if given.get("truncate_long_prompts") is False else "compel truncate",
        padding="mask" if given.get("padding_attention_mask_value") == 0 else "attend",
        eos_rows=EOS_ROWS.get(eos_rows, "own"),
    )
    expected = torch.tensor(case["expected"], dtype=torch.float64)
    torch.testing.assert_close(result.hidden[0], expected, rtol=0, atol=1e-8)


@pytest.mark.cases("masked_blend")
def test_masked_blend_equals_its_definition(case: dict) -> None:
    # the cases take CLIP-L's empty prompt and padding throughout, also for the chunks that are padded with 0
    options = SchemeOptions(law=case["law"], mask_method=case["method"])
    result = apply_scheme("masked_blend", case_chunks(case), toy_encode, options)
    expected = torch.tensor(case["expected"], dtype=torch.float64)
    torch.testing.assert_close(result.hidden[0], expected, rtol=0, atol=1e-8)


WORDS = ["cat", "dog", "red", "castle", "river", ",", "猫", "chiaroscuro"]

weighted_words = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from([-0.5, 0.0, 0.3, 0.5, 1.0, 1.0, 1.2, 3.0])),
    min_size=1,
    max_size=12,
)


def prompt_of(words: list[tuple[str, float]]) -> str:
    return " ".join(word if weight == 1.0 else f"({word}:{weight})" for word, weight in words)


def plain(text: str) -> torch.Tensor:
    (chunk,) = read(text, syntax="none").chunks
    return TINY([chunk.ids]).hidden


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=20)
@given(words=st.lists(st.sampled_from(WORDS), max_size=12), data=st.data())
def test_weights_of_one_give_the_plain_encoding_bit_for_bit(scheme: str, words: list[str], data) -> None:
    text = " ".join(words)
    menus = ("normalization", "law", "mask_method")
    chosen = {name: data.draw(st.sampled_from(OPTIONS[name].choices)) for name in menus}
    encoded = encode(text, scheme=scheme, **chosen)
    assert torch.equal(encoded.hidden, plain(text)[:, : num_rows(encoded.read)])
    assert encoded.num_encodings == 1


@pytest.mark.parametrize("scheme", ["comfy", "a1111_no_norm", "perp", "lerp_last", "unweighted"])
@settings(max_examples=20)
@given(words=weighted_words)
def test_rows_of_weight_one_are_copies_where_a_scheme_works_row_by_row(scheme: str, words) -> None:
    encoded = encode(prompt_of(words), scheme=scheme)
    rows = num_rows(encoded.read)
    weights = torch.tensor(encoded.read.chunks[0].weights[:rows])
    base = TINY([encoded.read.chunks[0].ids, close_chunk([], CLIP_L_LAYOUT).ids]).hidden[:1, :rows]
    assert torch.equal(encoded.hidden[:, weights == 1], base[:, weights == 1])


@pytest.mark.parametrize("scheme", SCHEMES)
@settings(max_examples=20)
@given(words=weighted_words, padding=st.sampled_from(["attend", "mask", "mask EOS too"]))
def test_no_scheme_gives_nan(scheme: str, words, padding: str) -> None:
    for law in OPTIONS["law"].choices:
        encoded = encode(prompt_of(words), scheme=scheme, padding=padding, law=law)
        assert torch.isfinite(encoded.hidden).all()
        assert torch.isfinite(encoded.pooled).all()


@pytest.mark.parametrize("method", OPTIONS["mask_method"].choices)
@settings(max_examples=40)
@given(words=st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from([0.0, 1.0])), min_size=1, max_size=12))
def test_nested_with_words_at_zero_equals_the_encoding_with_them_absent(method: str, words) -> None:
    encoded = encode(prompt_of(words), scheme="masked_blend", mask_method=method)
    (chunk,) = encoded.read.chunks
    gone = [token.weight == 0.0 for token in chunk.tokens]
    ids, mask = list(chunk.ids), None
    if method == "attention":
        mask = ~torch.tensor([[gone]])
    elif method == "token":
        ids = [266 if absent else token for token, absent in zip(ids, gone, strict=True)]
    else:
        kept = [token for token, absent in zip(ids, gone, strict=True) if not absent]
        ids = kept + [CLIP_L_LAYOUT.pad_id] * (77 - len(kept))
    torch.testing.assert_close(encoded.hidden, TINY([ids], mask).hidden[:1], rtol=0, atol=1e-6)
    if method == "remove" and any(weight for _, weight in words):
        # the same as never having typed them
        rest = " ".join(word for word, weight in words if weight)
        torch.testing.assert_close(encoded.hidden, plain(rest), rtol=0, atol=1e-6)


def test_nested_blend_lies_between_its_corners() -> None:
    """One faded word: the blend is on the line between present and absent, at its weight."""
    for weight in (0.25, 0.75):
        faded, gone, whole = (encode(f"a (cat:{w}) sat", scheme="masked_blend").hidden for w in (weight, 0.0, 1.0))
        torch.testing.assert_close(faded, weight * whole + (1 - weight) * gone, rtol=0, atol=1e-6)


def test_two_words_at_zero_are_gone_by_the_nested_law_and_half_there_by_compels() -> None:
    text, rest = "a (cat:0) and a (dog:0) sat", "a and a sat"
    assert torch.allclose(encode(text, scheme="masked_blend", mask_method="remove").hidden, plain(rest), atol=1e-6)
    half = encode(text, scheme="masked_blend", mask_method="remove", law="compel").hidden
    assert (half - plain(rest)).abs().max() > 0.01


def test_negative_weights_act_as_zero_and_say_so() -> None:
    negative, zero = encode("a (cat:-2) b", scheme="masked_blend"), encode("a (cat:0) b", scheme="masked_blend")
    assert torch.equal(negative.hidden, zero.hidden)
    (issue,) = negative.read.issues
    assert issue.code == "negative-weight"
    assert "acts as 0" in issue.message and "scheme negpip" in issue.message
    assert negative.read.prompt.source[slice(*issue.span)] == "cat"


def test_pooled_is_unweighted_or_blended() -> None:
    needs_masked_kernel()
    text = "a (cat:0.25) sat"
    unweighted = encode(text, scheme="masked_blend").pooled
    blended = encode(text, scheme="masked_blend", pooled="weighted").pooled
    absent = encode("a (cat:0) sat", scheme="masked_blend", pooled="weighted").pooled
    assert torch.equal(unweighted, encode("a cat sat").pooled)
    torch.testing.assert_close(blended, 0.25 * unweighted + 0.75 * absent, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("weight", "share"), [(-1.5, -1.5), (-1.0, -2.0), (0.5, -0.5), (1.5, 1.5)])
def test_perp_moves_a_row_by_so_many_projections(weight: float, share: float) -> None:
    """prompt-control counts from 1 up to -1, and from 0 beyond."""
    row, empty = encode("a cat sat").hidden[0, 2], encode("").hidden[0, 2]
    moved = row + share * (empty @ row) / (row @ row) * row
    torch.testing.assert_close(encode(f"a (cat:{weight}) sat", scheme="perp").hidden[0, 2], moved, rtol=0, atol=1e-5)


def test_long_prompts_have_a_mean_for_each_chunk_or_one_for_all() -> None:
    text = "(" + "cat " * 80 + ":1.5) " + "dog " * 40
    one, each = encode(text, scheme="a1111_global_norm"), encode(text, scheme="a1111")
    base = encode(text, scheme="unweighted").hidden.unflatten(1, (-1, 77))
    torch.testing.assert_close(each.hidden.unflatten(1, (-1, 77)).mean((2, 3)), base.mean((2, 3)))
    torch.testing.assert_close(one.hidden.mean(), base.mean())
    assert (each.hidden - one.hidden).abs().max() > 1e-3


def test_a_mean_near_zero_is_reported_and_never_divides_by_zero() -> None:
    def centred(ids, mask=None, *, is_causal=True):
        encoding = toy_encode(ids, mask)
        hidden = encoding.hidden - encoding.hidden.mean(dim=(1, 2), keepdim=True)
        return encoding._replace(hidden=torch.zeros_like(hidden) if ids[0][1] == 320 else hidden)

    chunk = close_chunk([Token(320, 1.3, 1, 0)], CLIP_L_LAYOUT)
    result = apply_scheme("a1111", [chunk], centred, SchemeOptions())
    assert torch.isfinite(result.hidden).all()

    def tilted(ids, mask=None, *, is_causal=True):
        encoding = toy_encode(ids, mask)
        weights = torch.ones(77, 1, dtype=torch.float64)
        weights[1] = 1.3
        return encoding._replace(hidden=encoding.hidden - (encoding.hidden * weights).mean() / weights.mean() + 1e-7)

    result = apply_scheme("a1111", [replace(chunk)], tilted, SchemeOptions())
    assert [issue.code for issue in result.issues] == ["unstable-mean"]


def test_a_scheme_that_applies_no_weights_says_so() -> None:
    encoded = encode("a (cat:1.3)", scheme="unweighted")
    (issue,) = encoded.read.issues
    assert issue.code == "ignored-weights"
    assert encoded.read.prompt.source[slice(*issue.span)] == "cat"
    assert not encode("a cat", scheme="unweighted").read.issues


def test_a_blend_mixes_pooled_vectors_only_if_asked() -> None:
    text = '("a cat", "a dog").blend(3, 1)'
    cat, dog = (encode(prompt, syntax="compel").pooled for prompt in ("a cat", "a dog"))
    assert torch.equal(encode(text, syntax="compel").pooled, cat)
    blended = encode(text, syntax="compel", pooled="weighted").pooled
    torch.testing.assert_close(blended, 0.75 * cat + 0.25 * dog, rtol=0, atol=1e-6)


def test_a_blend_whose_weights_sum_to_zero_is_reported_and_finite() -> None:
    encoded = encode('("a cat", "a dog").blend(1, -1)', syntax="compel")
    assert [issue.code for issue in encoded.read.issues] == ["zero-blend"]
    torch.testing.assert_close(encoded.hidden, plain("a cat") - plain("a dog"), rtol=0, atol=1e-6)


def test_text_cut_by_truncation_is_reported_where_it_starts() -> None:
    text = "word " * 75 + "lost words"
    encoded = encode(text, syntax="compel", chunking="compel truncate")
    (issue,) = encoded.read.issues
    assert issue.code == "text-cut"
    assert text[slice(*issue.span)] == "lost words"
    assert "2 tokens" in issue.message


def test_a_phrase_that_fills_the_chunk_stays_as_it_is_if_the_next_one_is_cut_off() -> None:
    """To compel the end token is part of a phrase that is itself cut, and not of one that just fits."""
    phrase = f"({'cat ' * 74}dog)0.5"
    chosen = {"syntax": "compel", "scheme": "compel", "chunking": "compel truncate"}
    alone, followed = encode(phrase, **chosen), encode(f"{phrase} red owl", **chosen)
    assert [issue.code for issue in followed.read.issues] == ["text-cut"]
    torch.testing.assert_close(followed.hidden, alone.hidden, rtol=0, atol=1e-6)
    longer = encode(f"({'cat ' * 75}dog)0.5", **chosen)
    assert (longer.hidden[0, -1] - alone.hidden[0, -1]).abs().max() > 1e-3


def test_every_scheme_works_with_every_chunk_rule() -> None:
    text = "(a red cat:1.3), [a dog] BREAK " + "words, " * 50 + "(end:0.5)"
    for scheme in SCHEMES:
        for chunking in CHUNKINGS:
            encoded = encode(text, syntax="a1111", scheme=scheme, chunking=chunking)
            assert encoded.hidden.shape == (1, num_rows(encoded.read), 32) or scheme == "repeat"
            assert torch.isfinite(encoded.hidden).all()
