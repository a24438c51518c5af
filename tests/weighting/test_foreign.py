"""Forms of one syntax that are text in another: they are named, and nothing else comes of it."""

from __future__ import annotations

import pytest
from weighted_clip.weighting.syntax import SYNTAXES, parse
from weighted_clip.weighting.view import view

from ..fuzz.processor_time import too_fast_growth
from .tiny import read

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
    assert issue.message == (
        f"“{form}” would be a weight if its number had a point, as in 0.5. With syntax {syntax} it is text."
    )
    assert issue.written_in == ""
    assert parse(text, syntax).parts == SYNTAXES[syntax].parse(text).parts


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("text", ["(a, b:1.2)", "at 10:30, b", "(ratio 16:9, wide)", "1,5 (a:b)", "(a:1,b)"])
def test_another_comma_is_none(syntax: str, text: str) -> None:
    assert "decimal-comma" not in {issue.code for issue in parse(text, syntax).issues}


def test_what_is_text_is_told_exactly() -> None:
    (issue,) = (issue for issue in parse("a (red cat)1.3", "comfy").issues if issue.code == "foreign-syntax")
    assert issue.message.endswith("With syntax comfy what comes after the bracket is text.")


def found_in(text: str, syntax: str) -> list[tuple[str, str]]:
    issues = [issue for issue in parse(text, syntax).issues if issue.code == "foreign-syntax"]
    return [(text[slice(*issue.span)], issue.written_in) for issue in issues]


@pytest.mark.parametrize(("syntax", "text", "form", "owner"), FORMS)
def test_a_form_of_another_syntax_is_named(syntax: str, text: str, form: str, owner: str) -> None:
    assert found_in(text, syntax) == [(form, owner)]
    (issue,) = (issue for issue in parse(text, syntax).issues if issue.code == "foreign-syntax")
    assert f"“{form}”" in issue.message
    assert syntax in issue.message
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
    text = text.replace("(red:1.2)", "red") if syntax == "compel" else text
    assert found_in(text, syntax) == []


def test_the_view_says_whose_form_it_is() -> None:
    (issue,) = view(read("a 🦊 [red] cat"))["issues"]
    assert (issue["written_in"], issue["start"], issue["end"]) == ("a1111", 5, 10)


@pytest.mark.parametrize("syntax", ["comfy", "a1111", "compel"])
@pytest.mark.parametrize("sign", ["[", "(a:1", "<lora:", "a", "+", ")1", ":1", "(", ": ", ").", "-", "1"])
def test_long_texts_are_searched_in_linear_time(syntax: str, sign: str) -> None:
    def search(text: str) -> None:
        for foreign in SYNTAXES[syntax].foreign:
            sum(1 for _ in foreign.form.finditer(text))

    assert too_fast_growth(search, lambda size: sign * (size // len(sign))) == ""
