"""The schemes lpw and lerp_last against the pipelines of diffusers they are named after.

tests/cases/lpw_syntax.json holds what the pipelines read.
"""

import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.embeddings import TokenId
from weighted_clip.weighting.encode import EncodeOptions, read_prompt
from weighted_clip.weighting.lpw import CODE

LIKE_IT = {"syntax": "a1111", "chunking": "compel brutal"}
"""What the pipelines' way of reading is called here."""
SCHEME_OF = {"sd": "lpw", "sdxl": "lerp_last"}
"""The scheme named after each."""


def ours_of(text: str, scheme: str) -> tuple[list[tuple[TokenId, float]], bool]:
    """The tokens with their weights, and whether the prompt is said to be read otherwise by the pipeline."""
    read = read_prompt(text, EncodeOptions(scheme=scheme, **LIKE_IT), default_tokenizer())
    tokens = [(token.id, token.weight) for chunk in read.chunks for token in chunk.content]
    return tokens, any(issue.code == CODE for issue in read.issues)


def theirs_of(pieces: list[tuple[str, float]]) -> list[tuple[int, float]]:
    return [(token, float(weight)) for text, weight in pieces for token, _, _ in default_tokenizer()(text)]


@pytest.mark.parametrize("name", SCHEME_OF)
@pytest.mark.cases("lpw_syntax")
def test_an_issue_says_where_the_pipeline_reads_otherwise_and_only_there(case: dict, name: str) -> None:
    ours, is_said = ours_of(case["text"], SCHEME_OF[name])
    if case[name] is None:  # it raises
        codes = [i.code for i in read_prompt(case["text"], EncodeOptions(**LIKE_IT), default_tokenizer()).issues]
        assert "unreadable-weight" in codes
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
    read = read_prompt(text, EncodeOptions(syntax="a1111", scheme=scheme), default_tokenizer())
    found = [issue for issue in read.issues if issue.code == CODE]
    assert [text[slice(*issue.span)] for issue in found] == places
    assert any(words in issue.message for issue in found), found


@pytest.mark.parametrize("options", [{"scheme": "a1111", "syntax": "a1111"}, {"scheme": "lpw", "syntax": "comfy"}])
def test_other_schemes_and_syntaxes_say_nothing_of_the_pipelines(options: dict[str, str]) -> None:
    text = "a BREAK (b: 1.2) <lora:x:1> " + "dog, " * 50
    read = read_prompt(text, EncodeOptions(**options), default_tokenizer())
    assert CODE not in [issue.code for issue in read.issues]
