r"""Weights and edits that a sign keeps from being read, and forms that only other programs read, with what to write.

What is named is text in the syntax at hand, of which the parsed prompt is asked: its marks are what was read as syntax.
Each pattern matches in time linear in the length of the prompt.

Source: docs/reference/problems.md; NovelAI's documentation of strengthening and weakening (2025).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from ..text.prompt import Issue, Prompt, Span, shortened
from ..text.weights import FAR
from . import novelai
from .record import Syntax, decimal

OF_PROMPT_CONTROL = ("CUT", "INT", "SEQ")
"""First words of comfyui-prompt-control's square brackets, which are named as its own."""

_NUMBER = r"(?:[+-][ \t]*)?(?:\d+(?:\.\d*)?|\.\d+)"
_NEAR_WEIGHT = re.compile(
    r"(?P<before>[^\s:;=,(])(?P<sign>[ \t]*[:;=：；＝][:=]*[ \t]*|,)"
    rf"(?P<number>{_NUMBER})(?P<rest>[ \t]*(?:[.,;:，；：][.,;: \t，；：]*)?)\)"
)
_OTHER_NUMBER = re.compile(
    r":\s*(?P<number>[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)e[+-]?\d+|inf(?:inity)?|nan|\d*\.\d*\.[\d.]*\d))\s*\)",
    re.IGNORECASE,
)
_SQUARE = re.compile(r"(?<!\\)\[((?:[^\[\]\\\n]|\\.)*)\]")
_ROUND = re.compile(r"(?<!\\)\((?:[^()\\]|\\.)*\)")
_TIME = re.compile(r" ?([+-]?(?:\d{1,9}(?:[.,]\d*)?|[.,]\d+)) ?(%|steps?|s)?[ ,;:.]*")
_PLAIN_TIME = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*")
_UNCLOSED = {
    "(": re.compile(rf"\((?:[^()\[\]\n\\]|\\.){{1,200}}?:\s*{_NUMBER}[ \t]*(?P<wrong>[\]}}>]|(?=[,\n]|\Z))"),
    "[": re.compile(
        rf"\[(?:[^()\[\]\n\\:|,]|\\.){{1,200}}(?:\|[^()\[\]\n\\,:|]{{1,200}}|:[^()\[\]\n\\,:|]{{1,200}}:\s*{_NUMBER})(?P<wrong>[)}}>]|(?=[,\n]|\Z))"
    ),
}
_BRACES = re.compile(r"(?<![{\\])(\{+)([^\S\n]*[^{}\s\"|:][^{}\n\"|:]*)(\}+)(?!\})")
_COLONS = re.compile(r"(?<![\w.:])(-?(?:\d+(?:\.\d*)?|\.\d+))::([^\S\n]*[^:{}|\[\]()\s][^:{}|\[\]()\n]*)::")
_OPEN_TAG = re.compile(r"<(?:lora|lyco|hypernet):(?![^<>]*>)[^<>\n,\[\]|]*")
_CHOICE = re.compile(r"(?<!\\)\{([^{}\"\n|]*)\|[^{}\"\n]*\}")


def mended(prompt: Prompt) -> Prompt:
    """The prompt with brackets that are never closed covered by their issue as far as they were meant to go.

    >>> from . import parse
    >>> [(issue.span[:], issue.fix) for issue in parse("a (cat:1.2, dog", "a1111").issues]
    [((2, 10), '(cat:1.2)')]
    """
    issues: list[Issue] = []
    for issue in prompt.issues:
        pattern = _UNCLOSED.get(prompt.source[slice(*issue.span)]) if issue.code == "unclosed-bracket" else None
        if pattern and (match := pattern.match(prompt.source, issue.span.start)):
            fix = prompt.source[match.start() : match.start("wrong")].rstrip() + {"(": ")", "[": "]"}[match[0][0]]
            issue = replace(issue, span=Span(*match.span()), fix=fix)
        issues.append(issue)
    return prompt if issues == list(prompt.issues) else replace(prompt, issues=tuple(issues))


def without_repetitions(issues: list[Issue]) -> list[Issue]:
    """Issues without those about a form that another one mends."""
    mending = sorted(issue.span for issue in issues if issue.fix and issue.code in ("near-weight", "unclosed-bracket"))
    unreadable = {issue.span.start: issue for issue in issues if issue.code == "unreadable-weight"}

    def is_mended(span: Span) -> bool:
        index = bisect_right(mending, span.start, key=lambda mend: mend.start)
        around = [*mending[max(index - 1, 0) : index], *mending[index : index + 1]]
        return any(mend.start < span.end and span.start < mend.end for mend in around)

    return [
        issue
        for issue in issues
        if not (issue.code in ("unreadable-weight", "weight-without-brackets") and is_mended(issue.span))
        and not (issue.code == "near-weight" and not issue.fix and any(at in unreadable for at in range(*issue.span)))
    ]


def mend_issues(prompt: Prompt, syntax: Syntax) -> Iterator[Issue]:
    """Issues for each form in a prompt that is probably meant otherwise."""
    if syntax.has_groups:
        yield from _near_weights(prompt)
    if syntax.by_webui:
        yield from _near_edits(prompt.source)
        for match in _OPEN_TAG.finditer(prompt.source):
            fix = f"{match[0].rstrip()}>"
            message = f"The tag “{shortened(match[0])}” is never closed: did you mean “{shortened(fix)}”?"
            yield Issue("unclosed-tag", message, Span(*match.span()), fix=fix)
    if syntax.write is not None:
        if not syntax.has_leading_weights:
            yield from _foreign_weights(prompt.source, syntax)
        for match in _CHOICE.finditer(prompt.source):
            choice = match[1].strip()
            fix = "" if "$" in choice or "::" in choice else choice
            message = f"“{shortened(match[0])}” is text: none of its choices is picked here."
            yield Issue("choice", message, Span(*match.span()), fix=fix)


def _near_weights(prompt: Prompt) -> Iterator[Issue]:
    """Numbers in front of a closing bracket that are no weight, because of a sign or their form."""
    source, starts = prompt.source, [mark.start for mark in prompt.marks]

    def is_mark(position: int) -> bool:
        index = bisect_right(starts, position) - 1
        return index >= 0 and position < prompt.marks[index].end

    for match in _NEAR_WEIGHT.finditer(source):
        if not _is_near(match, source) or is_mark(match.start("number")) or not is_mark(match.end() - 1):
            continue
        fix = f":{match['number'].translate(_NO_SPACE)})"
        form = source[max(_opening(source, match.start()), match.start() - 40, 0) : match.end()]
        message = f"“{shortened(form)}” is text, not a weight: did you mean “{shortened(fix, 40)}”?"
        yield Issue("near-weight", message, Span(match.start("sign"), match.end()), fix=fix)
    for match in _OTHER_NUMBER.finditer(source):
        if is_mark(match.start("number")) or not is_mark(match.end() - 1):
            continue
        is_number = match["number"].count(".") < 2
        is_usable = is_number and abs(float(match["number"])) <= FAR
        fix = f":{decimal(float(match['number']))})" if is_usable else ""
        if fix:
            message = f"“{shortened(match[0])}” is text, not a weight: did you mean “{shortened(fix, 40)}”?"
        else:
            message = f"“{shortened(match[0])}” is text, not a weight: a weight is a number such as 1.2."
        yield Issue("near-weight", message, Span(*match.span()), fix=fix)


_NO_SPACE = str.maketrans("", "", " \t")


def _opening(source: str, position: int) -> int:
    """The last opening bracket in the 200 characters before a position; -1 if there is none."""
    return source.rfind("(", max(position - 200, 0), position)


def _is_near(match: re.Match[str], source: str) -> bool:
    """Whether a number is a weight but for a sign, and not part of a ratio, a time or a smiley."""
    sign, number, rest = match["sign"], match["number"], match["rest"].strip()
    has_point = "." in number
    if sign.strip() in ("：", ":"):  # a full-width one alone is named for that
        is_signed = bool(rest) or number != number.translate(_NO_SPACE)
        return is_signed and not ((match["before"].isdigit() or sign[0] in " \t") and not has_point)
    opening = _opening(source, match.start())
    is_call = opening > 0 and (source[opening - 1].isalnum() or source[opening - 1] == "_")
    return has_point and not rest and not is_call and (match["before"].isalpha() or sign[0] != ",")


def _near_edits(source: str) -> Iterator[Issue]:
    """Square brackets with colons that are no edit."""
    for match in _SQUARE.finditer(source):
        inside = match[1]
        for _ in range(3):  # levels of brackets
            inside = _ROUND.sub(lambda group: "_" * len(group[0]), inside)
        before, *parts = re.split(r"[:;]", inside)
        if (
            "|" in inside
            or not parts
            or before in OF_PROMPT_CONTROL
            or _PLAIN_TIME.fullmatch(inside.rpartition(":")[2])
        ):
            continue
        while len(parts) > 1 and not parts[-1].strip():
            parts.pop()  # a colon behind the number
        time = _TIME.fullmatch(re.sub(r"\s+", " ", parts[-1]))
        words = [before, *parts] if time is None else [before, *parts[:-1]]
        if not all(any(map(str.isalpha, word)) or "_" in word for word in words) or not 1 <= len(words) <= 3:
            continue
        if time is None and len(words) == 2 and words[1][:1].isspace():
            continue  # a colon of a sentence
        # the words as they are written, with their groups
        ends = [len(":".join(words[: index + 1])) for index in range(len(words))]
        texts = [match[1][end - len(word) : end] for word, end in zip(words, ends, strict=True)]
        is_clear = len(words) < 3 and (time or len(words) == 2)
        fix = f"[{':'.join(texts)}:{_share(time) if time else '0.5'}]" if is_clear else ""
        if fix:
            message = f"“{shortened(match[0])}” is text with a weight, not an edit: did you mean “{shortened(fix)}”?"
        else:
            message = (
                f"“{shortened(match[0])}” is text with a weight, not an edit: an edit ends in a number, as [a:b:0.5]."
            )
        yield Issue("near-edit", message, Span(*match.span()), fix=fix)


def _share(time: re.Match[str]) -> str:
    number = time[1].replace(",", ".")
    return decimal(float(number) / 100) if time[2] == "%" else number


def _foreign_weights(source: str, syntax: Syntax) -> Iterator[Issue]:
    """NovelAI's weights, ``{{word}}`` and ``1.5::word::``."""
    for match in _BRACES.finditer(source):
        if len(match[1]) == len(match[3]) <= 20:
            yield from _novelai(match, match[2], round(novelai.FACTOR ** len(match[1]), 2), syntax)
    for match in _COLONS.finditer(source):
        yield from _novelai(match, match[2], float(match[1]), syntax)


def _novelai(match: re.Match[str], text: str, weight: float, syntax: Syntax) -> Iterator[Issue]:
    is_usable = syntax.write is not None and math.isfinite(weight) and abs(weight) <= FAR
    fix = next(syntax.write(text.strip(), weight), "") if is_usable and syntax.write else ""
    message = f"“{shortened(match[0])}” is a weight in NovelAI, and text here."
    yield Issue("novelai-weight", message, Span(*match.span()), "novelai", fix)
