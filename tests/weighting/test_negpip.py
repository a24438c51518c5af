"""NegPip: rows and signs of both schemes, against numbers of ComfyUI-ppm and rows encoded one by one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.chunking import ChunkedSection
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.reading.view import token_table, view
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.schemes.negpip import NegPipError, cut_terms, paired, signed
from weighted_clip.weighting.schemes.scheme import SchemeOptions
from weighted_clip.weighting.text.prompt import Fragment, Piece, Span
from weighted_clip.weighting.towers import check_same_signs

from ..door import apply_scheme
from ..toy import case_chunks, toy_encode
from .tiny import LONG, READERS, TINY

DOOR = Encoders({"clip_l": READERS["clip_l"]}, {"clip_l": TINY})
PAIR = Encoders(READERS, {"clip_l": TINY, "clip_g": TINY})
SIGNED = [name for name, scheme in SCHEMES.items() if scheme.is_signed]


def encode(text: str, scheme: str = "negpip_apart", **options) -> EncodedPrompt:
    choices = {"syntax": "a1111", "cleaning": "none", "scheme": scheme} | options
    return DOOR.prepare([text], EncodeOptions(**choices)).run()[0].prompts["clip_l"]


def negative_rows(encoded: EncodedPrompt) -> list[int]:
    assert not encoded.signs or len(encoded.signs) == encoded.hidden.shape[1]
    return [row for row, sign in enumerate(encoded.signs) if sign < 0]


# ---- negpip


@pytest.mark.cases("weighting_numeric", only={"scheme": ["negpip_interleaved"]})
def test_pairs_are_those_of_comfyui_ppm(case: dict) -> None:
    chunks = case_chunks(case)
    rows = apply_scheme("negpip", chunks, toy_encode, SchemeOptions())
    result = signed(rows, [ChunkedSection((tuple(chunks),))], 1.0)
    expected = torch.tensor(case["expected"], dtype=torch.float64)
    torch.testing.assert_close(paired(result.hidden, result.signs)[0], expected, rtol=0, atol=1e-8)
    assert (result.signs == ()) is all(weight >= 0 for row in case["weights"] for weight in row)


@pytest.mark.parametrize("text", ["a (red:1.4) cat (mat:0.3)", "a (red:-1.4) cat (mat:-0.3), (snow:-1)"])
def test_rows_are_those_of_comfy_with_absolute_weights(text: str) -> None:
    found, comfy = encode(text, "negpip"), encode(text.replace(":-", ":"), "comfy")
    torch.testing.assert_close(found.hidden, comfy.hidden, rtol=0, atol=1e-6)
    weights = found.read.chunks[0].weights
    assert negative_rows(found) == [row for row, weight in enumerate(weights) if weight < 0]
    assert len(negative_rows(found)) == text.count(":-")


def test_signs_go_with_their_rows_through_chunks_and_padding() -> None:
    text = f"(red:-1) {LONG}, a (dog:-0.5)"
    weights = [weight for chunk in encode(text, "negpip").read.chunks for weight in chunk.weights]
    expected = [row for row, weight in enumerate(weights) if weight < 0]
    assert len(expected) == 2 and expected[1] > 77
    for padding in ("attend", "mask", "clean"):
        assert negative_rows(encode(text, "negpip", padding=padding)) == expected
    dropped = encode(text, "negpip", padding="drop")
    kept = dropped.read.kept
    assert kept is not None
    second = expected[1] - 77 * (expected[1] // 77) + sum(kept[: expected[1] // 77])
    assert negative_rows(dropped) == [expected[0], second]


def test_strength_takes_weights_part_of_the_way() -> None:
    part, whole = encode("a (red:3) cat (mat:-2)", "negpip", strength=0.5), encode("a (red:2) cat (mat:-0.5)", "negpip")
    torch.testing.assert_close(part.hidden, whole.hidden, rtol=0, atol=1e-6)
    assert negative_rows(part) == negative_rows(whole) != []
    assert negative_rows(encode("a (mat:-2)", "negpip", strength=0.25)) == []
    with pytest.raises(ValueError, match="strength must be a finite number"):
        EncodeOptions(strength=float("nan"))


def test_a_blend_with_weights_below_0_is_refused() -> None:
    text = '("a (red)++ cat", "a dog").blend(1, 1)'
    # compel has no such weights; a normalisation makes them
    with pytest.raises(NegPipError, match=r"\.blend"):
        encode('("a (red)6 cat", "a dog").blend(1, 1)', "negpip", syntax="compel", normalization="mean")
    assert negative_rows(encode(text, "negpip", syntax="compel")) == []


# ---- negpip_apart


@pytest.mark.parametrize(
    ("text", "left", "terms"),
    [
        ("a cat (oil painting:-1.2)", "a cat ", ["(oil painting:1.2)"]),
        ("(a:-1) b ( c , d: -2 )(e:-.5)", " b (e:-.5)", ["(a:1.0)", "( c , d:2.0)"]),
        ("((red:1.2) cat:-1) (dog (big):-1)", "((red:1.2) cat:-1) (dog (big):-1)", []),
        ("(a [b]:-1) [c:(d:-1):5] (:-3)", " [c::5] ", ["(a [b]:1.0)", "(d:1.0)", "(:3.0)"]),
        ("(BREAK:-1) x (y:-0)", " x ", ["(y:0.0)"]),
        (r"\(a:-1) (b:1) (c:-1.2.3) (c:-1e3)", r"\ (b:1) (c:-1.2.3) (c:-1e3)", ["(a:1.0)"]),
    ],
)
def test_terms_are_cut_out_as_the_program_cuts_them(text: str, left: str, terms: list[str]) -> None:
    found, cut = cut_terms(Fragment((Piece(text, Span(0, len(text))),)))
    assert found.text == left
    assert [term.fragment.text for term in cut] == terms
    assert [text[position] for position in found.positions] == list(left)


@given(st.text(alphabet="ab(:)-1. [\\", max_size=30))
def test_what_is_left_and_what_was_cut_out_make_up_the_prompt(text: str) -> None:
    left, terms = cut_terms(Fragment((Piece(text, Span(0, len(text))),)))
    outside = list(text)
    for term in terms:
        assert text[slice(*term.span)].startswith(f"({term.text.text}:")
        outside[slice(*term.span)] = [""] * (term.span.end - term.span.start)
    assert "".join(outside) == left.text


def test_each_term_is_encoded_alone_and_appended() -> None:
    found = encode("a (red:1.3) cat (oil painting:-1.2) on a mat, (dog:-0.5)")
    left = encode("a (red:1.3) cat  on a mat, ", "a1111").hidden
    terms = [encode("(oil painting:1.2)", "a1111").hidden[:, 1:4], encode("(dog:0.5)", "a1111").hidden[:, 1:3]]
    torch.testing.assert_close(found.hidden, torch.cat([left, *terms], dim=1), rtol=0, atol=1e-6)
    assert negative_rows(found) == [77, 78, 79, 80, 81]
    assert found.num_encodings == 3


def test_a_term_of_several_chunks_brings_the_rows_up_to_its_last_eos() -> None:
    term = ("word " * 80).strip()
    found, alone = encode(f"a cat ({term}:-1)"), encode(f"({term}:1)", "a1111")
    assert alone.hidden.shape[1] == 154
    assert found.hidden.shape[1] == 77 + 81
    torch.testing.assert_close(found.hidden[:, 77:], alone.hidden[:, 1:82], rtol=0, atol=1e-6)


def test_without_terms_it_is_a1111_and_signs_are_none() -> None:
    text = "a (red:1.3) cat, ((nested:0.5) words:-1)"
    found, plain = encode(text), encode(text, "a1111")
    assert torch.equal(found.hidden, plain.hidden)
    assert found.signs == ()
    assert encode("(a cat:-1)", syntax="none").read.terms == ()
    for syntax in ("a1111", "comfy"):
        assert len(encode("(a cat:-1)", syntax=syntax).read.terms) == 1


def test_terms_are_shown_as_chunks_with_their_places() -> None:
    text = "a # (not:-1)\ncat (oil  painting:-1.5) <lora:x:1>(dog:-1)"
    read = encode(text, cleaning="as Forge").read
    shown = view(read)
    assert [chunk["num_tokens"] for chunk in shown["chunks"]] == [2, 2, 1]
    chips = [chip for chunk in shown["chunks"] for chip in chunk["chips"]]
    weights = {text[chip["start"] : chip["end"]]: chip["weight"] for chip in chips}
    unweighted = {"a": 1, "# (not:-1)": 1, "cat": 1, "<lora:x:1>": 1, "dog": 1}
    assert weights == {**unweighted, "oil": 1.5, "painting": 1.5}
    assert "chunk 2 of 3: 2/75 tokens" in token_table(read)


def test_a_problem_in_a_term_is_marked_there() -> None:
    text = "a (b [c:-1) d"  # a square bracket never closed
    read = encode(text).read
    assert [(issue.code, text[issue.span.start]) for issue in read.issues] == [("unclosed-bracket", "[")]
    chips = [chip for chunk in view(read)["chunks"] for chip in chunk["chips"]]
    assert {text[chip["start"] : chip["end"]]: chip["problems"] for chip in chips} == {
        "a": [],
        "d": [],
        "b": [],
        "c": [0],
    }


# ---- both


def test_what_cannot_carry_signs_refuses_them_by_name() -> None:
    for scheme in SIGNED:
        with pytest.raises(NegPipError, match="cannot hold that a word of a weight below 0 is taken away"):
            DOOR("a (cat:-1)", syntax="a1111", scheme=scheme)
        assert DOOR("a (cat:1.5)", syntax="a1111", scheme=scheme).hidden.shape == (1, 77, 32)


def test_weights_that_strength_lifts_above_0_need_nothing_to_carry_signs() -> None:
    lifted = DOOR("a (cat:-2)", syntax="a1111", scheme="negpip", strength=0.25)
    torch.testing.assert_close(lifted.hidden, encode("a (cat:0.25)", "comfy").hidden, rtol=0, atol=1e-6)
    with pytest.raises(NegPipError, match="cannot hold"):
        DOOR("a (cat:-2)", syntax="a1111", scheme="negpip", strength=0.5)


def test_towers_must_have_signs_in_the_same_rows() -> None:
    def signs(scheme: str, first: str, second: str) -> tuple[float, ...]:
        prepared = PAIR.prepare([{"clip_l": first, "clip_g": second}], EncodeOptions(scheme=scheme))
        check_same_signs(prepared.reads)
        one, other = (prompt.signs for prompt in prepared.run()[0].prompts.values())
        assert one == other
        return one

    assert signs("negpip", "a (cat:-1)", "a (cat:-2)").index(-1.0) == 2
    assert signs("negpip_apart", "a (cat:-1)", "b (dog:-2)")[77:] == (-1.0, -1.0)
    for scheme in SIGNED:
        with pytest.raises(NegPipError, match="clip_l and clip_g"):
            signs(scheme, "a (cat:-1)", "a (big cat:-1)")
        with pytest.raises(NegPipError, match="clip_l and clip_g"):
            signs(scheme, "a (cat:-1)", "a cat")


@pytest.mark.parametrize("scheme", SIGNED)
def test_phrases_can_be_bound_besides(scheme: str) -> None:
    text = "a red cat and a blue dog, (snow:-1)"
    found, plain = encode(text, scheme, bind="red cat\nblue dog"), encode(text, scheme)
    assert found.signs == plain.signs != ()
    assert not torch.equal(found.hidden[:, :9], plain.hidden[:, :9])
    torch.testing.assert_close(found.hidden[:, 77:], plain.hidden[:, 77:], rtol=0, atol=1e-6)
