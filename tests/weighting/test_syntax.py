"""The syntaxes against the case files, what must hold for any string, and forms of one syntax in another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import OPTIONS, EncodeOptions
from weighted_clip.weighting.reading.convert import convert
from weighted_clip.weighting.reading.prompt_reader import read_prompt, relocated
from weighted_clip.weighting.reading.view import view
from weighted_clip.weighting.syntax import SYNTAXES, Syntax, parse
from weighted_clip.weighting.text.prompt import Break, Fragment, Piece, Prompt, PromptError, Span, Swap, unmarked
from weighted_clip.weighting.timed.schedule import read_timed

from ..fuzz.text_targets import check_prompt
from .tiny import read


def as_case(prompt: Prompt) -> list[list[object]]:
    """The form of the case files: ``[text, weight]``, a break being ``["BREAK", -1.0]``."""
    return [["BREAK", -1.0] if isinstance(part, Break) else [part.text, part.weight] for part in prompt.parts]


def assert_same_parts(found: list[list[object]], expected: list[list[object]]) -> None:
    assert [text for text, _ in found] == [text for text, _ in expected]
    for (_, weight), (_, wanted) in zip(found, expected, strict=True):
        wanted = float(wanted)  # the files hold "inf" and "nan" as strings
        assert weight == wanted or (math.isnan(weight) and math.isnan(wanted))


def compel_part(part: Fragment | Swap) -> object:
    if isinstance(part, Fragment):
        return [part.text, part.weight]
    sides = {name: [compel_part(f) for f in getattr(part, name)] for name in ("original", "edited")}
    return {"swap": {**sides, "options": dict(part.settings)}}


def as_compel_case(prompt: Prompt) -> dict[str, object]:
    """The form of the compel case file: a conjunction of prompts and blends."""
    prompts: list[object] = []
    for section in prompt.sections:
        found = [{"type": "prompt", "fragments": [compel_part(part) for part in parts]} for parts in section.prompts]
        if section.shares:
            shares = {"weights": list(section.shares), "normalize": section.normalize}
            prompts.append({"type": "blend", **shares, "prompts": found})
        else:
            prompts += found
    weights = [section.weight for section in prompt.sections]
    return {"weights": weights, "prompts": prompts, "loras": [list(lora) for lora in prompt.loras]}


@pytest.mark.cases(*(f"{name}_syntax" for name in SYNTAXES if name != "none"))
def test_equals_the_reference(case: dict, case_file: str) -> None:
    syntax = case_file.removesuffix("_syntax")
    if "error" in case:
        with pytest.raises(PromptError):
            parse(case["prompt"], syntax, strict=True)
        assert parse(case["prompt"], syntax).issues
    elif isinstance(case["expected"], dict):
        assert as_compel_case(parse(case["prompt"], syntax, strict=True)) == case["expected"]
    else:
        assert_same_parts(as_case(parse(case["prompt"], syntax, strict=True)), case["expected"])


def test_what_the_reference_refuses_becomes_an_issue_and_is_read_as_text() -> None:
    prompt = parse("a (cat:1.2.3) b", "a1111")
    assert as_case(prompt) == [["a ", 1.0], ["cat:1.2.3", 1.1], [" b", 1.0]]
    (issue,) = prompt.issues
    assert issue.code == "unreadable-weight"
    assert prompt.source[slice(*issue.span)] == "1.2.3"


@pytest.mark.parametrize("number", [1, 700])
def test_weights_multiply_from_the_inside_however_many_pieces_they_have(number: int) -> None:
    """To the last bit, which depends on the order."""
    (fragment,) = parse("(((" + r"\(" * number + ":1.3):0.7):1.1)", "a1111").fragments
    assert fragment.weight == 1.3 * 0.7 * 1.1 != 1.1 * 0.7 * 1.3


def test_a_refusal_quotes_the_prompt_with_carets() -> None:
    with pytest.raises(PromptError) as caught:
        parse("first line\na (cat:1.2.3) b", "a1111", strict=True)
    message, line, carets = str(caught.value).split("\n")
    assert "1.2.3" in message
    start = carets.index("^")
    assert line[start : start + carets.count("^")] == "1.2.3"


@pytest.mark.parametrize(
    ("syntax", "text", "codes"),
    [
        ("a1111", "a (b", ["unclosed-bracket"]),
        ("a1111", "a [b (c", ["unclosed-bracket", "unclosed-bracket"]),
        ("a1111", "a) b]", ["unopened-bracket", "unopened-bracket"]),
        ("a1111", "(a BREAK b)", ["break-in-brackets"]),
        ("a1111", "a BREAK b", []),
        ("a1111", r"\(a\) (b:1.2)", []),
        ("a1111", "a \\ b", ["lone-backslash"]),
        ("a1111", "a [b:c:0.5] [d|e]", ["unread-edit", "unread-edit"]),
        ("a1111", "a AND b, SAND", ["unread-and"]),
        ("a1111", "a [b: c] | [d]", []),
        ("comfy", "a (b", ["unclosed-bracket"]),
        ("comfy", "((a)", ["unclosed-bracket"]),
        ("comfy", "a) b", ["unopened-bracket"]),
        ("comfy", "(a:inf)", ["infinite-weight"]),
        ("comfy", "(a:1.2) [b]", ["foreign-syntax"]),
        ("compel", '("a", "b").blend(1)', ["weight-count"]),
        ("compel", '("a", "b").blend(1, 1) c', ["ignored-text"]),
        ("compel", '("a", "b").and() c', ["ignored-text"]),
        ("compel", "cat.swap(dog)", ["swap"]),
        ("compel", "a (b)1.2 c+", []),
        ("compel", "a (b)1.2 c+ d) (e", ["bracket-as-text", "bracket-as-text"]),
        ("compel", "a withLora(style, 0.5)", ["lora"]),
        ("compel", '("a.swap(b)", "c").blend(1, 1)', ["swap", "swap-in-blend"]),
        ("compel", "a.swap(b.swap(c))", ["swap", "swap", "nested-swap"]),
        ("compel", "(a.swap(b)).swap(c)", ["swap", "swap", "nested-swap"]),
        ("compel", '("withLora(x)", "a").blend()', ["lora", "empty-part"]),
        ("compel", '("a", "b").blend(x, 1, y=2, 2)', ["unreadable-weight"]),
        ("compel", '("a", "b").and(1, no_normalize)', ["unreadable-weight", "weight-count"]),
        ("compel", "a\vb\fc", ["odd-space"]),
        ("compel", "\v", []),
        ("compel", '("a", "b").blend(' + "9" * 400 + ", 1)", ["infinite-weight"]),
        ("compel", "cat.swap(dog, s_start=abc, shape_freedom=-1)", ["swap"]),
        ("compel", "a" + "+" * 8000, []),
        ("novelai", "{a 1.5::b::, [c]", []),
        ("novelai", "a} b]", ["unopened-bracket", "unopened-bracket"]),
        ("novelai", "{a [b", ["unclosed-bracket", "unclosed-bracket"]),
        ("novelai", "1.5::a", ["unclosed-number"]),
        ("novelai", "a::b", ["unopened-number"]),
        ("novelai", "1,5::a::", ["decimal-comma"]),
        ("novelai", "9" * 400 + "::a::", ["infinite-weight"]),
        ("novelai", "(a:1.2) <lora:b:1> dog++", ["foreign-syntax", "foreign-syntax", "foreign-syntax"]),
        ("novelai", "{{a}} 13::b::", ["far-weight"]),
        ("none", "(a:1.2) BREAK ] __b__ c:1.2 d_(e) （f：1.2）", []),
        ("comfy", "__a__, a/__b/*c_d__ and __init, ____, x__y__z", ["wildcard", "wildcard"]),
        ("compel", "__a__", ["wildcard"]),
        ("a1111", "(a:10) (b:-10) (c:10.5) (d:-11)", ["far-weight", "far-weight"]),
        ("comfy", "((a:4):40)", []),
        ("compel", "(a)11", ["far-weight"]),
        ("a1111", r"saber_\(fate\) a_(b:1.2) c (d) _(e", ["unclosed-bracket"]),
        ("comfy", "16:9, 1:1.5, a:2, (b:1.2), (c : 1.2 ), embedding:d", []),
        ("a1111", "<lora:a:0.5:0.8> [b:c:0.5] [d:0.5]", ["unread-edit", "unread-edit"]),
        ("a1111", "（猫） （ａ：b）", []),
    ],
)
def test_issues_name_the_problem(syntax: str, text: str, codes: list[str]) -> None:
    assert sorted(issue.code for issue in parse(text, syntax).issues) == sorted(codes)


@pytest.mark.parametrize(
    ("code", "text", "fixed", "meant"),
    [
        ("far-weight", "a (cat:13) dog", "a (cat:1.3) dog", {"cat": 1.3}),
        ("far-weight", "(cat : 125 )", "(cat : 1.25 )", {"cat ": 1.25}),
        ("weight-without-brackets", "a red cat:1.2, dog", "a red (cat:1.2), dog", {"cat": 1.2}),
        ("weight-without-brackets", "embedding:a-b:0.5", "(embedding:a-b:0.5)", {"embedding:a-b": 0.5}),
        ("name-with-brackets", "saber_(fate), b", r"saber_\(fate\), b", {}),
        ("full-width-weight", "a （dog：1.3） b", "a (dog:1.3) b", {"dog": 1.3}),
        ("full-width-weight", "(dog：0．5)", "(dog:0.5)", {"dog": 0.5}),
        ("full-width-weight", "（狗：1。5）", "(狗:1.5)", {"狗": 1.5}),
        ("near-weight", "a (realistic:-1.5,) b", "a (realistic:-1.5) b", {"realistic": -1.5}),
        ("near-weight", "(cat;1.2)", "(cat:1.2)", {"cat": 1.2}),
        ("near-weight", "(red cat = 1.2 )", "(red cat:1.2)", {"red cat": 1.2}),
        ("near-weight", "(cat,1.2)", "(cat:1.2)", {"cat": 1.2}),
        ("near-weight", "(word:1.2:)", "(word:1.2)", {"word": 1.2}),
        ("near-weight", "(word : 1.2 ; )", "(word:1.2)", {"word": 1.2}),
        ("near-weight", "(cat:1.2.)", "(cat:1.2)", {"cat": 1.2}),
        ("near-weight", "(cat:- 1.5)", "(cat:-1.5)", {"cat": -1.5}),
        ("near-weight", "(cat：1.2，)", "(cat:1.2)", {"cat": 1.2}),
        ("near-weight", "(a, b:2,)", "(a, b:2)", {"a, b": 2.0}),
        ("decimal-comma", "(cat:0,5)", "(cat:0.5)", {"cat": 0.5}),
        ("unclosed-bracket", "a (cat:1.2, dog", "a (cat:1.2), dog", {"cat": 1.2}),
        ("novelai-weight", "a {{cat}} b", "a (cat:1.1) b", {"cat": 1.1}),
        ("novelai-weight", "a {red cat} b", "a (red cat:1.05) b", {"red cat": 1.05}),
        ("novelai-weight", "1.5::red cat::, dog", "(red cat:1.5), dog", {"red cat": 1.5}),
        ("novelai-weight", "-1::hat::", "(hat:-1)", {"hat": -1.0}),
        ("choice", "a {red|blue} cat", "a red cat", {}),
    ],
)
@pytest.mark.parametrize("syntax", ["comfy", "a1111"])
def test_a_fix_is_read_as_meant(syntax: str, code: str, text: str, fixed: str, meant: dict[str, float]) -> None:
    (issue,) = parse(text, syntax).issues
    assert issue.code == code
    written = text[: issue.span.start] + issue.fix + text[issue.span.end :]
    assert written == fixed
    prompt = parse(written, syntax)
    assert prompt.issues == ()
    assert {one.text: one.weight for one in prompt.fragments if one.weight != 1} == meant


@pytest.mark.parametrize(
    ("code", "text", "fixed"),
    [
        ("near-edit", "a [cat:dog:0,5] b", "a [cat:dog:0.5] b"),
        ("near-edit", "[cat:dog:50%]", "[cat:dog:0.5]"),
        ("near-edit", "[cat:dog: 10 steps ]", "[cat:dog:10]"),
        ("near-edit", "[cat:dog]", "[cat:dog:0.5]"),
        ("near-edit", "[cat:0,5]", "[cat:0.5]"),
        ("near-edit", "[cat:dog:0.5:]", "[cat:dog:0.5]"),
        ("near-edit", "[cat;dog;0.5]", "[cat:dog:0.5]"),
        ("near-edit", "[(red:1.2) cat:blue:.5,]", "[(red:1.2) cat:blue:.5]"),
        ("near-edit", "[((red) cat:1.2):blue:50%]", "[((red) cat:1.2):blue:0.5]"),
        ("unclosed-bracket", "a [cat|dog, b", "a [cat|dog], b"),
        ("unclosed-bracket", "a [cat:dog:0.5", "a [cat:dog:0.5]"),
        ("unclosed-tag", "a <lora:ink:0.8", "a <lora:ink:0.8>"),
        ("unclosed-tag", "a <lora:ink:0.8, b", "a <lora:ink:0.8>, b"),
    ],
)
def test_a_mended_edit_changes_with_the_steps(code: str, text: str, fixed: str) -> None:
    (issue,) = (issue for issue in parse(text, "a1111").issues if issue.code == code)
    assert text[: issue.span.start] + issue.fix + text[issue.span.end :] == fixed
    before, after = (read_timed(one, 20) for one in (text, fixed))
    if code == "unclosed-tag":
        assert [one.code for one in after.issues] == ["lora"]
    else:
        assert len(after.branches[0].texts) > len(before.branches[0].texts)
        assert not after.issues


@pytest.mark.parametrize(
    ("text", "weight"),
    [("{" * 20_000 + "a", math.inf), ("[" * 20_000 + "a", 0.0), ("0::" + "{" * 20_000 + "a", 0.0)],
    ids=["up", "down", "of 0"],
)
def test_brackets_weigh_up_to_infinity(text: str, weight: float) -> None:
    assert [fragment.weight for fragment in parse(text, "novelai").fragments] == [weight]


@pytest.mark.parametrize("syntax", ["comfy", "a1111"])
@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e400", "1e9", "1e9 ", "-Infinity"])
def test_a_weight_that_cannot_be_is_said_in_both_syntaxes(syntax: str, number: str) -> None:
    codes = {issue.code for issue in read(f"a (dog:{number}) b", syntax=syntax).issues}
    assert codes & {"near-weight", "clamped-weight", "far-weight"}


@pytest.mark.parametrize("syntax", ["comfy", "a1111"])
def test_prompts_that_are_right_have_no_slips(syntax: str) -> None:
    for text in RIGHT:
        text = text.replace("[", "(").replace("]", ")") if syntax == "comfy" else text
        issues = parse(text, syntax).issues
        assert [issue.message for issue in issues if issue.fix or issue.code.startswith("near-")] == []


RIGHT = (
    *(
        "a (cat:1.2), (dog:0.5), ((bird)), masterpiece, best quality",
        "a photo, 16:9, f/1.8, 50mm",
        "(best quality; 8k)",
    ),
    *(
        "(Canon EOS, 50mm, f1.8)",
        "(16:9)",
        "(aspect ratio 16:9,)",
        "a clock (12:30,)",
        "smile :3, (smile :3,)",
    ),
    *(
        "(stable diffusion 1.5)",
        "(version 2.1)",
        "[style: anime]",
        "[portrait]",
        "[[cat]], [a, b]",
        "score_9, score_8_up",
    ),
    *(
        "a = b",
        "(a = b)",
        "1girl, ^_^, >:), =)",
        '{"subject": "a cat", "weight": 1.2}',
        "{ }",
        "std::string",
        "a::b::c",
    ),
    *(
        "ratio 4::3",
        r"pikachu \(pokemon\), (a\) 1.2)",
        "a cat; a dog",
        "(a; b, c)",
        "time: 10, place: 5",
        "(cat : 1.2 )",
    ),
    *(
        "f(x=1.5)",
        "(time; 8)",
        "Re:Zero, (re:zero)",
        "(2001: a space odyssey:1.1)",
        "<3, a < b > c",
        "(a:+1.2)",
        "(a:.5)",
    ),
)


def test_numbers_of_edits_are_no_near_edits() -> None:
    for text in (
        "[cat:dog:0.5]",
        "[cat:10]",
        "[cat::5]",
        "[cat:dog: 5 ]",
        "[a|b]",
        "[a:b|c]",
        "[cat:1e1]",
        r"\[cat:dog\]",
    ):
        assert "near-edit" not in {issue.code for issue in parse(text, "a1111").issues}


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize(
    ("prompt", "data"),
    [
        ("a cat, ", "\n Negative prompt: dog:1.2, [x]\nSteps: 20, Sampler: Euler, Seed: 1\n"),
        ("a cat\n", "Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Clip skip: 2, x:1.2, __z__"),
        ("", "Negative prompt: dog"),
        ("a cat. ", "Negative prompt: dog"),
        ("a red cat, ", "Steps: 20, Sampler: Euler a, Seed: 1"),
        ("", '{"prompt": "a cat", "steps": 20, "seed": 1}'),
    ],
)
def test_generation_data_is_one_problem_from_its_beginning_on(syntax: str, prompt: str, data: str) -> None:
    text = prompt + data
    (issue,) = parse(text, syntax).issues
    assert issue.code == "generation-data"
    assert text[slice(*issue.span)].strip() == data.strip()


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_settings_that_cannot_be_split_are_named(syntax: str) -> None:
    text = "a cat\nSteps: 20 Sampler: Euler a Seed: 1"
    assert [issue.code for issue in parse(text, syntax).issues] == ["unread-generation-data"]


def test_words_of_generation_data_alone_are_a_prompt() -> None:
    for text in ("steps: 20, stairs", "a negative prompt: dog", "Steps: 20", "Negative prompt:"):
        assert parse(text, "comfy").issues == ()


def test_a_weight_without_a_meant_one_is_named_without_a_fix() -> None:
    (issue,) = parse("(a (b:3) c:10.5)", "a1111").issues[:1]
    assert (issue.code, issue.fix) == ("far-weight", "")


def test_a_fix_for_a_form_that_editing_has_taken_apart_is_not_offered() -> None:
    source = "ca[x::5]t:1.2, (dog:13)"
    fragment = Fragment((Piece("ca", Span(0, 2)), Piece("t:1.2, (dog:13)", Span(8, 23))))
    apart, whole = relocated(read(fragment.text), source, fragment).issues
    assert (apart.span, apart.fix, whole.fix) == (Span(0, 13), "", "1.3")
    assert source[slice(*whole.span)] == "13"


def test_brackets_too_deep_for_compel_are_text_and_reported() -> None:
    text = "( " * 100 + "a" + ") " * 100
    prompt = parse(text, "compel")
    assert "too-deep" in [issue.code for issue in prompt.issues]
    assert "".join(fragment.text for fragment in prompt.fragments).count("(") >= 50


def test_none_takes_every_character_for_text() -> None:
    assert as_case(parse(r"(a:1.2) \[b] BREAK", "none")) == [[r"(a:1.2) \[b] BREAK", 1.0]]


def test_unknown_syntax_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=f"'latex'.*{', '.join(SYNTAXES)}"):
        parse("a", "latex")


WRITTEN = "".join(text for syntax in SYNTAXES.values() if syntax.write for text in syntax.write("a", 1.1))
SIGNS = "".join(dict.fromkeys('ab ()[]\\:.,1-+"=\n' + WRITTEN))
"""Signs of all syntaxes; random texts are made of them."""

bracket_soup = st.lists(
    st.sampled_from(
        [
            *SIGNS,
            "(a b)",
            ".and()",
            ".blend(1,1)",
            ".swap(",
            "a.swap(b.swap(c))",
            "(a.swap(b)).swap(c)",
            '"withLora(x, 0.5)"',
            '("a","b")',
            "++",
            "BREAK ",
            " BREAK",
            "(x:1.2)",
            "\ud800",
            "猫",
            "é",
        ]
    )
).map("".join)


@pytest.mark.no_cover
@settings(max_examples=1500)
@given(text=st.one_of(st.text(), bracket_soup))
@example(text="")
@example(text="(" * 2000)
@example(text="(" * 3000 + "a" + ")" * 3000)
@example(text="\ud800(\udfff:1.1)")
def test_any_string_parses_in_every_syntax_and_its_spans_tile_the_text(text: str) -> None:
    for syntax in SYNTAXES:
        check_prompt(parse(text, syntax), text)


@given(text=st.text(st.characters(blacklist_characters="()[]\\:", blacklist_categories=["Cs"])))
def test_text_without_syntax_is_one_piece_of_weight_one(text: str) -> None:
    expected = [[text, 1.0]] if text else []
    assert as_case(parse(text, "comfy")) == expected
    if "BREAK" not in text:
        assert as_case(parse(text, "a1111")) == [[text, 1.0]]


def parse_toy(source: str, *, strict: bool = False) -> Prompt:
    """Words; !word weighs 2, and / ends a chunk."""
    parts: list[Fragment | Break] = []
    covered: list[Span] = []
    for match in re.finditer(r"(!?)(\S+)", source):
        covered.append(Span(*match.span(2)))
        weight = 2.0 if match[1] else 1.0
        parts.append(Break(covered[-1]) if match[0] == "/" else Fragment((Piece(match[2], covered[-1]),), weight))
    return Prompt(source, "toy", tuple(parts), unmarked(len(source), covered))


def write_toy(text: str, weight: float) -> Iterator[str]:
    if weight in (1.0, 2.0):
        yield " ".join("!" * (weight == 2.0) + word for word in text.split())


TOY = Syntax(
    parse_toy, "!word weighs 2.", chunking="a1111", write=write_toy, is_spaced=True, break_word="/", has_tags=True
)


def read_toy(text: str, **options: str) -> list[list[tuple[str, float]]]:
    chunks = read_prompt(text, EncodeOptions(syntax="toy", **options), default_tokenizer()).chunks
    return [[(text[slice(*token.span)], token.weight) for token in chunk.content] for chunk in chunks]


@pytest.mark.parametrize("options", [{}, {"chunking": "a1111"}, {"chunking": "compel words"}])
def test_a_syntax_is_read_as_its_record_says(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYNTAXES, "toy", TOY)
    monkeypatch.setitem(OPTIONS, "syntax", OPTIONS["syntax"]._replace(choices=("toy",)))
    chunks = [[("a", 1.0), ("red", 2.0)], [("cat", 1.0)]]
    assert read_toy("a <lora:ink:1> !red / cat", **options) == chunks


def test_a_syntax_is_converted_as_its_record_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYNTAXES, "toy", TOY)
    there = convert("a (red:2) BREAK <lora:ink:1> cat", "a1111", "toy", default_tokenizer())
    assert there.text == "a !red / cat"
    assert [issue.message for issue in there.issues] == ["A LoRA cannot be written in toy: it is left out."]
    back = convert("a <lora:ink:1> !red / cat", "toy", "a1111", default_tokenizer())
    assert back == ("a (red:2) BREAK cat <lora:ink:1>", ())
    (issue,) = convert("a (red:1.5) cat", "a1111", "toy", default_tokenizer()).issues
    assert issue.message == "“red” with weight 1.5 cannot be written in toy."
    monkeypatch.setitem(SYNTAXES, "toy", replace(TOY, write=None))
    with pytest.raises(ValueError, match="cannot write syntax 'toy'"):
        convert("a", "comfy", "toy", default_tokenizer())


# --- forms of other syntaxes


NO_FORMS = (
    "a photo of a cat, (red:1.2) dog",
    "C++ and A+, 18+, grade B-, wow--no, self-made, red-haired",
    "(red)-haired (woman), (2020) (cat).",
    r"a \(cat:1.1\) and \[b\], [] [",
    "10:30, ratio 16:9 break <3 <b>",
    "a cat. (b) dog... and. so",
)
FORMS = (
    ("compel", "a (cat:1.1)", "(cat:1.1)", "comfy"),
    ("compel", "a (big (red) cat: .5 )", ": .5 )", "comfy"),
    ("compel", "a [b] c", "[b]", "a1111"),
    ("compel", "a BREAK b", "BREAK", "a1111"),
    ("compel", "a <lora:ink:0.8> b", "<lora:ink:0.8>", "a1111"),
    ("comfy", "a [big cat] b", "[big cat]", "a1111"),
    ("comfy", "a [cat:dog:0.5] b", "[cat:dog:0.5]", "a1111"),
    ("comfy", "a BREAK b", "BREAK", "a1111"),
    ("comfy", "a <lora:ink:1>", "<lora:ink:1>", "a1111"),
    ("comfy", "(cat)++", "(cat)++", "compel"),
    ("comfy", "a (red cat)1.3, b", "(red cat)1.3", "compel"),
    ("comfy", "a (cat)0.5. b", "(cat)0.5", "compel"),
    ("comfy", "a cat++ b", "cat++", "compel"),
    ("comfy", "a cat--, b", "cat--", "compel"),
    ("comfy", '("a", "b").blend(1, 2)', ").blend(", "compel"),
    ("a1111", "(cat)-", "(cat)-", "compel"),
    ("a1111", "a cat.swap(dog)", ".swap(", "compel"),
    ("a1111", "a withLora(ink, 1)", "withLora(", "compel"),
    ("a1111", '("a", "b").and()', ").and(", "compel"),
)


DECIMAL_COMMAS = (("a (dog:0,5) b", "(dog:0,5)"), ("((a) b:1,25 )", ":1,25 )"), ("(x: ,5)", "(x: ,5)"))


@pytest.mark.parametrize("syntax", ["a1111", "comfy"])
@pytest.mark.parametrize(("text", "form"), DECIMAL_COMMAS)
def test_a_decimal_comma_is_named(syntax: str, text: str, form: str) -> None:
    (issue,) = (issue for issue in parse(text, syntax).issues if issue.code == "decimal-comma")
    assert text[slice(*issue.span)] == form
    assert issue.written_in == ""
    assert parse(text, syntax).parts == SYNTAXES[syntax].parse(text).parts


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("text", ["(a, b:1.2)", "at 10:30, b", "(ratio 16:9, wide)", "1,5 (a:b)", "(a:1,b)"])
def test_another_comma_is_none(syntax: str, text: str) -> None:
    assert "decimal-comma" not in {issue.code for issue in parse(text, syntax).issues}


@pytest.mark.parametrize("syntax", ["comfy", "compel"])
@pytest.mark.parametrize("kind", ["lora", "lyco"])
def test_of_a_loras_tag_is_said_what_loads_it(syntax: str, kind: str) -> None:
    pasted = f"a cat <{kind}:ink:0.8>\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1"
    for text in (f"a cat <{kind}:ink:0.8>", pasted):
        (issue,) = (issue for issue in parse(text, syntax).issues if issue.code == "foreign-syntax")
        assert "LoRA Tag Loader" in issue.message


def found_in(text: str, syntax: str) -> list[tuple[str, str]]:
    issues = [issue for issue in parse(text, syntax).issues if issue.code == "foreign-syntax"]
    return [(text[slice(*issue.span)], issue.written_in) for issue in issues]


@pytest.mark.parametrize(("syntax", "text", "form", "owner"), FORMS)
def test_a_form_of_another_syntax_is_named(syntax: str, text: str, form: str, owner: str) -> None:
    assert found_in(text, syntax) == [(form, owner)]
    # where it is at home nothing is said of it
    assert found_in(text, owner) == []


@pytest.mark.parametrize(("syntax", "text", "form", "owner"), FORMS)
def test_nothing_but_the_issue_comes_of_it(syntax: str, text: str, form: str, owner: str) -> None:
    del form, owner
    plain = SYNTAXES[syntax].parse(text)
    prompt = parse(text, syntax)
    assert (prompt.parts, prompt.marks, prompt.sections, prompt.loras) == (
        *(plain.parts, plain.marks, plain.sections, plain.loras),
    )
    assert [issue for issue in prompt.issues if issue.code != "foreign-syntax"] == list(plain.issues)


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("text", NO_FORMS)
def test_what_is_written_for_other_reasons_is_no_form(syntax: str, text: str) -> None:
    text = text.replace("(red:1.2)", "red") if syntax in ("compel", "novelai") else text
    assert found_in(text, syntax) == []


OF_EXTENSIONS = (
    ("a AND_PERP b :1", "AND_PERP"),
    ("a AND_SALT b", "AND_SALT"),
    ("a AND_TOPK b", "AND_TOPK"),
    ("a ADDCOMM b", "ADDCOMM"),
    ("a ADDROW b", "ADDROW"),
    ("a ADDCOL b", "ADDCOL"),
    ("a ADDBASE b", "ADDBASE"),
    ("a [SEQ:red:0.2:blue:0.8] cat", "[SEQ:red:0.2:blue:0.8]"),
    ("a [INT:red:blue:0.1] cat", "[INT:red:blue:0.1]"),
    ("a [CUT:white cat:white]", "[CUT:white cat:white]"),
    ("STYLE(A1111, length) a cat", "STYLE(A1111, length)"),
    ("a cat NOISE(0.1)", "NOISE(0.1)"),
    ("a cat TE(l=dog)", "TE(l=dog)"),
    ("a cat SHUFFLE(1", "SHUFFLE("),
    ("a cat MASK(0 0.5)", "MASK(0 0.5)"),
)


@pytest.mark.parametrize("syntax", [name for name in SYNTAXES if SYNTAXES[name].foreign])
@pytest.mark.parametrize(("text", "form"), OF_EXTENSIONS)
def test_a_word_of_an_extension_is_named_and_stays_text(syntax: str, text: str, form: str) -> None:
    assert found_in(text, syntax) == [(form, "")]
    assert parse(text, syntax).parts == SYNTAXES[syntax].parse(text).parts


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize(
    "text", ["a mask (red), ADD COLOUR, IN STYLE, AND, AND_", "style(x) noise(1) [cut: a]", "CUT: a, SEQ"]
)
def test_a_word_alike_is_no_extensions(syntax: str, text: str) -> None:
    text = text.replace("[cut: a]", "cut: a")
    assert found_in(text, syntax) == []


@pytest.mark.parametrize("syntax", ["comfy", "compel"])
def test_a_tag_of_swarm_is_named(syntax: str) -> None:
    assert found_in("a <segment:face> cat <random:red|blue>", syntax) == [
        ("<segment:face>", ""),
        ("<random:red|blue>", ""),
    ]


def test_the_view_says_whose_form_it_is() -> None:
    (issue,) = view(read("a 🦊 [red] cat"))["issues"]
    assert (issue["written_in"], issue["start"], issue["end"]) == ("a1111", 5, 10)
