"""Converting between syntaxes: there, and there and back."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import CleaningTokenize, default_tokenizer
from weighted_clip.weighting.reading.convert import TARGETS, convert
from weighted_clip.weighting.syntax import SYNTAXES, parse
from weighted_clip.weighting.text.chunks import tokens_by_part
from weighted_clip.weighting.text.prompt import Break
from weighted_clip.weighting.text.tags import bare, take_tags
from weighted_clip.weighting.timed.schedule import split_and

from .test_syntax import SIGNS

PROMPTS = json.loads((Path(__file__).parents[1] / "data" / "conversion_prompts.json").read_text(encoding="utf-8"))
TOKENIZE = default_tokenizer()


def tokens(text: str, syntax: str) -> list[tuple[object, float]]:
    is_cleaned = syntax == "a1111"
    prompt = parse(bare(text, has_comments=is_cleaned, has_tags=False).fragment.text, syntax)
    tokenize = CleaningTokenize(TOKENIZE) if is_cleaned else TOKENIZE
    return [(token.id, token.weight) for part in tokens_by_part(prompt, tokenize) for token in part or ()]


def is_same(found: list[tuple[object, float]], wanted: list[tuple[object, float]]) -> bool:
    return [i for i, _ in found] == [i for i, _ in wanted] and all(
        abs(a - b) <= 1e-6 for (_, a), (_, b) in zip(found, wanted, strict=True)
    )


def goes_there_and_back(prompt: str, source: str, target: str) -> bool:
    there = convert(prompt, source, target, TOKENIZE).text
    back = convert(there, target, source, TOKENIZE).text
    wanted = tokens(prompt, source)
    return is_same(tokens(there, target), wanted) and is_same(tokens(back, source), wanted)


def test_of_200_prompts_most_go_to_each_other_syntax_and_back() -> None:
    assert len(PROMPTS) == len({prompt["prompt"] for prompt in PROMPTS}) == 200
    kept: dict[tuple[str, str], list[bool]] = {}
    for prompt in PROMPTS:
        for target in TARGETS:
            if target != prompt["syntax"]:
                write = SYNTAXES[target].write
                assert write
                result = goes_there_and_back(prompt["prompt"], prompt["syntax"], target)
                if any(write("a", 0.37)):  # it takes any number
                    kept.setdefault((prompt["syntax"], target), []).append(result)
                parsed = parse(prompt["prompt"], prompt["syntax"])
                is_plain = not (target == "a1111" and "#" in prompt["prompt"]) and all(
                    not isinstance(part, Break) and part.weight >= 0 and any(write("a", part.weight))
                    for part in parsed.parts
                )
                if is_plain and len(tokens(prompt["prompt"], prompt["syntax"])) <= 75:
                    assert result, (prompt, target)
    assert len(kept) >= 6
    for pair, results in kept.items():
        assert sum(results) / len(results) >= 0.95, pair


@pytest.mark.parametrize(
    ("source", "target", "text", "expected"),
    [
        ("a1111", "comfy", "a ((red)) [cat], (dog:1.3)", "a (red:1.21) (cat:0.90909091), (dog:1.3)"),
        ("a1111", "comfy", r"\(a\) [b]", r"\(a\) (b:0.90909091)"),
        ("comfy", "a1111", "(a (b:0.5) c:1.2) [d]", r"(a :1.2)(b:0.5)( c:1.2) \[d\]"),
        ("comfy", "a1111", "(a:1.2)(b:1.2)", "(a:1.2) (b:1.2)"),
        ("comfy", "a1111", "cat AND dog BREAK", "cat and dog break"),
        ("comfy", "compel", "(8:30:1.2) b", "(8:30)1.2 b"),
        ("comfy", "compel", "(a - b:1.2) c+", "(a -b)1.2 c +"),
        ("compel", "a1111", "a tall man (picking apricots+)++", "a tall man (picking:1.21) (apricots:1.331)"),
        ("compel", "a1111", '("a", "b c+").and()', "a BREAK b (c:1.1)"),
        ("none", "a1111", "(a) [b] \\", r"\(a\) \[b\] \\"),
    ],
)
def test_conversions(source: str, target: str, text: str, expected: str) -> None:
    result = convert(text, source, target, TOKENIZE)
    assert result.text == expected
    assert not [issue for issue in result.issues if issue.code == "not-expressible"]


@pytest.mark.parametrize(
    ("source", "target", "text", "place"),
    [
        ("a1111", "comfy", "a BREAK b", "BREAK"),
        ("a1111", "compel", "a BREAK b", "BREAK"),
        ("comfy", "compel", "a (b:-0.5) c", "b"),
        ("comfy", "compel", "a (x=y:1.2) c", "x=y"),
        ("comfy", "compel", "a (wait... what:1.2) c", "wait... what"),
        ("comfy", "a1111", "a (b:inf)", "b"),
        ("compel", "comfy", '("a", "b").blend(1, 2)', '("a", "b").blend(1, 2)'),
        ("compel", "a1111", '("a", "b").and(1, 0.5)', '("a", "b").and(1, 0.5)'),
    ],
)
def test_what_cannot_be_expressed_is_named_at_its_place(source: str, target: str, text: str, place: str) -> None:
    result = convert(text, source, target, TOKENIZE)
    issue = next(issue for issue in result.issues if issue.code == "not-expressible")
    assert text[slice(*issue.span)] == place


@pytest.mark.parametrize("syntax", TARGETS)
def test_the_same_syntax_is_left_as_it_is(syntax: str) -> None:
    assert convert("a ((b  (c:1.2) \\", syntax, syntax, TOKENIZE).text == "a ((b  (c:1.2) \\"


def test_a_syntax_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match=f"'none'.*{', '.join(TARGETS)}"):
        convert("a", "comfy", "none", TOKENIZE)


@pytest.mark.parametrize("source", SYNTAXES)
@pytest.mark.parametrize("target", TARGETS)
@given(text=st.text(st.sampled_from([*SIGNS, "é", "猫", "\ud800"])))
def test_any_text_converts_the_same_or_says_what_is_lost(source: str, target: str, text: str) -> None:
    result = convert(text, source, target, TOKENIZE)
    lost = [issue for issue in result.issues if issue.code == "not-expressible"]
    assert lost or is_same(tokens(result.text, target), tokens(text, source))


@pytest.mark.parametrize(
    ("text", "source", "target", "written"),
    [
        ("a photo at 8:30", "comfy", "a1111", "a photo at 8:(30:1)"),
        ("ratio 16:9", "compel", "a1111", "ratio 16:(9:1)"),
        ("below freezing: -1", "comfy", "a1111", "below freezing: (-1:1)"),
        ("a <b:c> d", "comfy", "a1111", "a < b:c> d"),
        ("<lora:ink:0.8> a (cat:1.2)", "a1111", "compel", "a (cat)1.2 withLora(ink, 0.8)"),
        ("a cat withLora(ink, 0.5)", "compel", "a1111", "a cat <lora:ink:0.5>"),
        ("a cat <lora:ink:0.123456789012>", "a1111", "compel", "a cat withLora(ink, 0.12345679)"),
    ],
)
def test_what_a1111_would_take_for_a_command_stays_text_and_loras_stay_loras(
    text: str, source: str, target: str, written: str
) -> None:
    result = convert(text, source, target, TOKENIZE)
    assert result.text == written
    if target == "a1111":
        (part,) = split_and(take_tags(written)[0].text)
        assert part.weight_span is None
    assert not [issue for issue in result.issues if issue.code == "not-expressible"]


def test_a_backslash_does_not_escape_the_bracket_of_the_next_word() -> None:
    result = convert(r"a \\(cat:1.2)", "a1111", "comfy", TOKENIZE)
    assert (result.text, result.issues) == (r"a \ (cat:1.2)", ())


@pytest.mark.parametrize("tag", ["<lora:ink:0.5:0.8>", "<lora:ink:0.5:stop=10>", "<lora:ink:0@0,1@1>"])
def test_what_is_lost_of_a_lora_is_named(tag: str) -> None:
    result = convert(f"a <lora:b:1> {tag}", "a1111", "compel", TOKENIZE)
    assert [f"a <lora:b:1> {tag}"[slice(*issue.span)] for issue in result.issues] == [tag]


def test_loras_that_the_target_has_no_words_for_are_named_once() -> None:
    result = convert("a cat " + "withLora(ink, 0.5) " * 3, "compel", "comfy", TOKENIZE)
    assert result.text == "a cat"
    lost = [issue for issue in result.issues if issue.code == "not-expressible"]
    assert [issue.message for issue in lost] == ["A LoRA cannot be written in comfy: it is left out."]


def test_a_tag_that_the_target_has_no_words_for_is_left_out_and_named() -> None:
    text = "a <lora:ink:0.8> (cat:1.2) <hypernet:x:1>"
    result = convert(text, "a1111", "comfy", TOKENIZE)
    assert result.text == "a  (cat:1.2)"
    assert [text[slice(*issue.span)] for issue in result.issues] == ["<lora:ink:0.8>", "<hypernet:x:1>"]


@pytest.mark.parametrize(
    "tag",
    [
        "<lora:ink:0.5:0.8>",
        "<lora:ink:te=0.5:unet=1>",
        "<lora:ink:0.2@0.2,1@0.5>",
        "<lora:ink:0.8:lbw=MIDD>",
        "<lora:ink:0.8:0.8:32>",
        "<lora:ink:strong>",
    ],
)
def test_what_the_target_cannot_say_of_a_lora_is_named(tag: str) -> None:
    text = f"a cat {tag} <lora:glow:1>"
    result = convert(text, "a1111", "compel", TOKENIZE)
    assert result.text.endswith("withLora(glow, 1)")
    assert [text[slice(*issue.span)] for issue in result.issues] == [tag]


def test_a_tag_that_is_no_lora_takes_no_lora_along() -> None:
    result = convert("a <hypernet:x:1> cat <lora:ink:0.5>", "a1111", "compel", TOKENIZE)
    assert result.text.endswith("withLora(ink, 0.5)")
    assert [issue.message for issue in result.issues] == [
        "“<hypernet:x:1>” cannot be written in compel: it is left out."
    ]


def test_what_would_be_a_comment_is_left_out_and_named() -> None:
    result = convert("a (#1:1.2) cat", "comfy", "a1111", TOKENIZE)
    assert result.text == "a ( 1:1.2) cat"
    (issue,) = result.issues
    assert (issue.code, issue.span) == ("not-expressible", (3, 5))
    assert "#" in issue.message


def test_comments_are_not_converted_and_named() -> None:
    result = convert("a cat # (ugly:1.3)\nin <lora:ink:1>[a bowl", "a1111", "comfy", TOKENIZE)
    assert result.text == "a cat \nin (a bowl:0.90909091)"
    assert [(issue.code, issue.span.start) for issue in result.issues] == [
        ("unclosed-bracket", 34),
        ("comment", 6),
        ("not-expressible", 22),
    ]


def test_what_forge_cleans_is_written_as_it_reads_it() -> None:
    assert convert("a “red” (caf&eacute;:1.2)", "a1111", "comfy", TOKENIZE) == ('a "red" (café:1.2)', ())


def test_what_forge_would_clean_cannot_be_written_for_it() -> None:
    (issue,) = convert("a “red” cat", "comfy", "a1111", TOKENIZE).issues
    assert issue.code == "not-expressible"
    assert "“red”" in issue.message
