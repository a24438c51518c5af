"""The schemes lpw and lerp_last against the pipelines of diffusers they are named after: stored, and run from --hosts.

tests/cases/lpw_numeric.json and lpw_syntax.json hold what the pipelines computed and read.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import EncodedTowers, Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes.rows import CODE
from weighted_clip.weighting.text.embeddings import TokenId
from weighted_clip.workshop.peers.diffusers import SCHEME_OF, Pipelines, find_checkout, sdxl_models

from ..libraries import library
from ..toy import toy_encode
from .tiny import READERS, encode, read

LIKE_IT = {"syntax": "a1111", "chunking": "compel brutal", "cleaning": "none"}
"""The pipelines' way of reading, in our options."""
TOWERS = {
    "sd": {"clip_l": READERS["clip_l"]},
    "sdxl": READERS,
}


def options_of(name: str, **given: bool) -> EncodeOptions:
    """For a pipeline with some settings. That for Stable Diffusion 1.x keeps the rows between chunks unless told."""
    scheme = "a1111_global_norm" if name == "sd" and not given.get("no_boseos_middle") else SCHEME_OF[name]
    return EncodeOptions(scheme=scheme, **LIKE_IT)


def encode_toy(name: str, texts: list[str], options: EncodeOptions) -> list[EncodedTowers]:
    encoders = Encoders(TOWERS[name], dict.fromkeys(TOWERS[name], toy_encode))
    return encoders.prepare_together(texts, options).run()


# ---- numbers


@pytest.mark.cases("lpw_numeric")
def test_a_pair_of_texts_equals_the_pipeline(case: dict) -> None:
    name = case["pipeline"]
    found = encode_toy(name, case["prompts"], options_of(name, **case["settings"]))
    for index, (encoded, expected) in enumerate(zip(found, case["expected"], strict=True)):
        rows = torch.tensor([expected], dtype=torch.float64)
        for prompt in encoded.prompts.values():
            torch.testing.assert_close(prompt.hidden, rows, rtol=0, atol=1e-6 if name == "sd" else 1e-8)
        if "pooled" in case:
            pooled = torch.tensor([case["pooled"][index]], dtype=torch.float64)
            torch.testing.assert_close(encoded.pooled, pooled, rtol=0, atol=1e-8)


@pytest.mark.cases("lpw_numeric", only={"pipeline": ["sdxl"]})
def test_the_longer_text_of_a_pair_is_the_same_alone_and_the_shorter_if_filled_by_hand(case: dict) -> None:
    options = options_of("sdxl")
    reads = [read_prompt(text, options, default_tokenizer()) for text in case["prompts"]]
    counts = [sum(chunk.num_content for chunk in one.chunks) for one in reads]
    for text, count, expected, pooled in zip(case["prompts"], counts, case["expected"], case["pooled"], strict=True):
        (alone,) = encode_toy("sdxl", [text + "<|endoftext|>" * (max(counts) - count)], options)
        for prompt in alone.prompts.values():
            torch.testing.assert_close(prompt.hidden[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)
        torch.testing.assert_close(alone.pooled[0], torch.tensor(pooled, dtype=torch.float64), rtol=0, atol=1e-8)


def test_a_weight_that_float16_cannot_hold_is_clamped_and_said() -> None:
    def encoded(text: str, scheme: str = "lerp_last"):
        return encode(text, toy_encode, scheme=scheme)

    huge = encoded("a (cat:1e5) b (dog:-1e9)")
    assert torch.equal(huge.hidden, encoded("a (cat:65504) b (dog:-65504)").hidden)
    (issue,) = (one for one in huge.read.issues if one.code != "far-weight")
    assert (issue.code, huge.read.prompt.source[slice(*issue.span)]) == ("clamped-weight", "cat")
    assert torch.equal(encoded("a (cat:1.0004)").hidden, encoded("a cat").hidden)
    assert not torch.equal(encoded("a (cat:1.0004)", "comfy").hidden, encoded("a cat", "comfy").hidden)


def test_chunks_that_another_rule_leaves_short_end_at_their_own_eos() -> None:
    """The pipeline has no such chunks; ours move from the EOS that closes each, and none has padding."""
    encoded, *parts = (
        encode(text, toy_encode, syntax="a1111", scheme="lerp_last")
        for text in ("(a:1.5) cat BREAK b", "(a:1.5) cat", "b")
    )
    assert torch.equal(encoded.hidden, torch.cat([part.hidden for part in parts], dim=1))
    assert torch.equal(encoded.pooled, parts[-1].pooled)
    assert encoded.hidden.shape[1] == 4 + 3


def test_blended_prompts_are_filled_to_the_fullest() -> None:
    options = EncodeOptions(syntax="compel", scheme="lerp_last")
    short = encode_toy("sd", ['("(a)1.5", "a red cat").blend(1, 0)'], options)[0].hidden
    pair = encode_toy("sd", ["(a)1.5", "a red cat"], options)
    torch.testing.assert_close(short, pair[0].hidden)


# ---- reading


def ours_of(text: str, scheme: str) -> tuple[list[tuple[TokenId, float]], bool]:
    """The tokens with their weights, and whether the prompt is said to be read otherwise by the pipeline."""
    found = read(text, scheme=scheme, **LIKE_IT)
    tokens = [(token.id, token.weight) for chunk in found.chunks for token in chunk.content]
    return tokens, any(issue.code == CODE for issue in found.issues)


def theirs_of(pieces: list[tuple[str, float]]) -> list[tuple[int, float]]:
    return [(token, float(weight)) for text, weight in pieces for token, _, _ in default_tokenizer()(text)]


@pytest.mark.parametrize("name", SCHEME_OF)
@pytest.mark.cases("lpw_syntax")
def test_an_issue_says_where_the_pipeline_reads_otherwise_and_only_there(case: dict, name: str) -> None:
    ours, is_said = ours_of(case["text"], SCHEME_OF[name])
    if case[name] is None:  # it raises
        assert "unreadable-weight" in [issue.code for issue in read(case["text"], **LIKE_IT).issues]
    else:
        assert (ours != theirs_of(case[name])) == is_said


@pytest.mark.parametrize(
    ("text", "scheme", "places", "words"),
    [
        ("a BREAK b", "lpw", ["BREAK"], "as the word “break”; here"),
        ("a BREAK b", "lerp_last", ["BREAK"], "as the word “break” at weight -1; here"),
        ("(a BREAK b)", "lpw", ["BREAK"], "the weight of its brackets"),
        ("<lora:x:1> a (b <y:2>: 1.2 ) c", "lerp_last", ["<lora:x:1>", "<y:2>", ": 1.2 )"], "white space"),
        ("a <lora:x:1> b # c", "lpw", ["<lora:x:1>", "# c"], "reads this as text"),
        ("cat, " + "dog " * 60 + "cat, " + "dog " * 30, "lpw", [""], "cuts at 75 tokens"),
    ],
)
def test_the_issues_name_the_places_and_what_the_pipeline_does(
    text: str, scheme: str, places: list[str], words: str
) -> None:
    found = [issue for issue in read(text, syntax="a1111", scheme=scheme).issues if issue.code == CODE]
    assert [text[slice(*issue.span)] for issue in found] == places
    assert any(words in issue.message for issue in found), found


@pytest.mark.parametrize("options", [{"scheme": "a1111", "syntax": "a1111"}, {"scheme": "lpw", "syntax": "comfy"}])
def test_other_schemes_and_syntaxes_say_nothing_of_the_pipelines(options: dict[str, str]) -> None:
    text = "a BREAK (b: 1.2) <lora:x:1> " + "dog, " * 50
    assert CODE not in [issue.code for issue in read(text, **options).issues]


# ---- the pipelines themselves


@pytest.fixture(scope="module")
def models():
    sdxl = sdxl_models()
    return {"sd": {"clip_l": sdxl["clip_l"]}, "sdxl": sdxl}


@pytest.fixture(scope="module")
def pipelines(request: pytest.FixtureRequest, models) -> Pipelines:
    library("diffusers")
    folder = request.config.getoption("--hosts")
    checkout = None if folder is None else find_checkout(Path(folder))
    if checkout is None:
        pytest.skip("no pipelines: give --hosts DIR (a folder with a checkout of diffusers)")
    return Pipelines(checkout, models)


GARDEN = "red castle, (blue:1.3) garden. near the [river], "
PAIRS = [
    ("a (red:1.4) cat and a (dog:0.5) in a bowl", "bad (hands:1.31)"),
    ("a red cat", "(ugly:-0.7) [x], ((c))"),
    ("a", ""),
    ("", "(b:0)"),
    (GARDEN * 12, "(bad:1.2)"),
    ("(bad:1.2)", GARDEN * 12),
    ("cat " * 75, "(dog:1.2) " * 75),
    ("cat " * 150, "a"),
    ("cat " * 225, "(dog:0.5) " * 76),
    ("a (<|endoftext|> b:1.2) c", "(d:1.3) e f g h"),
]


@pytest.mark.host
@pytest.mark.parametrize(
    ("name", "given"), [("sd", {}), ("sd", {"no_boseos_middle": True}), ("sdxl", {})], ids=["sd", "sd middle", "sdxl"]
)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0][:12]} | {pair[1][:12]}")
def test_equals_the_pipeline_on_towers_of_transformers(
    pipelines: Pipelines, models, name: str, given: dict, pair: tuple[str, str]
) -> None:
    theirs = pipelines.encode(name, *pair, **given)
    ours = Encoders.of_models(models[name]).prepare_together(pair, options_of(name, **given)).run()
    for index, encoded in enumerate(ours):
        torch.testing.assert_close(encoded.hidden, theirs.hidden[index], rtol=0, atol=1e-5)
        if theirs.pooled is not None:
            torch.testing.assert_close(encoded.pooled, theirs.pooled[index], rtol=0, atol=1e-5)


SIGNS = (
    *(
        "a",
        "cat",
        "red ",
        "(",
        ")",
        "[",
        "]",
        "((",
        "))",
        ":1.2)",
        ":0.5)",
        ": 1.2)",
        ":1.2 )",
        ":-1)",
        ": )",
        ":",
        "\\",
    ),
    *(
        "\\(",
        "\\)",
        "\\\\",
        " BREAK ",
        "BREAK",
        "BREAK,",
        "<lora:x:1>",
        "<a:b>",
        "<",
        ">",
        ":1.2.3)",
        " AND ",
        "\n",
        "猫",
    ),
    *("|", "[a:b:3]", "１", ":１)", " : 1.3 ) ", "\u3000", ":1.2\u3000)", "a_BREAK", "BREAK1"),
)


@pytest.mark.host
@pytest.mark.parametrize("name", SCHEME_OF)
def test_random_prompts_are_read_alike_or_said_to_be_not(pipelines: Pipelines, name: str) -> None:
    parse: Callable[[str], list[tuple[str, float]]] = pipelines.modules[name].parse_prompt_attention

    @settings(max_examples=2000, database=None)
    @given(st.lists(st.sampled_from(SIGNS), max_size=14).map("".join))
    def check(text: str) -> None:
        try:
            theirs = theirs_of(parse(text))
        except ValueError:  # a weight that is no number
            return
        ours, is_said = ours_of(text, SCHEME_OF[name])
        assert (ours != theirs) == is_said

    check()
