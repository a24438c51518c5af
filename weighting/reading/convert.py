"""Rewriting a prompt from one syntax into another, so that every token keeps its id and its weight.

Each fragment is written in the target syntax and read back there; the first form that reads back the same is used.
Words may gain or lose spaces between letters and punctuation, which no CLIP token depends on. Anything the target
cannot express is named in an issue.

Source: docs/reference/syntaxes.md, "Converting".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...encoder.tokenizer import CleaningTokenize, can_clean, clean
from ..syntax import SYNTAXES, parse, syntax_of
from ..text.chunks import Token, Tokenize, tokens_by_part
from ..text.prompt import Break, Fragment, Issue, Lora, Prompt, Span, encoded_fragments, quoted, shortened
from ..text.tags import COMMENT_MARKS, Bare, Tag, bare, comment_issues, read_loras

TARGETS = tuple(name for name, syntax in SYNTAXES.items() if syntax.write is not None)
"""Syntaxes that can be written."""

WEIGHT_TOLERANCE = 1e-7
"""Relative difference below which weights are the same: they are written with eight digits."""

_WORD_END = re.compile(r"[\w.:]$")
_WORDS = re.compile(r"[^\W\d_]+|\d|(?:[^\w\s]|_)+|\S")


class Converted(NamedTuple):
    """A prompt in another syntax."""

    text: str
    """The prompt in the target syntax."""
    issues: tuple[Issue, ...]
    """Parts the target cannot express, at their positions in the source."""


def convert(
    text: str, source: str, target: str, tokenize: Tokenize, *, is_cleaned: bool = True, marks: tuple[str, ...] = ()
) -> Converted:
    """Rewrite a prompt.

    Args:
        text: The prompt.
        source: Its syntax.
        target: The target syntax, one of `TARGETS`.
        tokenize: CLIP's tokenizer, for comparison.
        is_cleaned: Whether to remove comments from A1111's syntax and repair its text, as Forge does.
        marks: Marks of other comments in the prompt, as of `comment_spans`.

    Returns:
        The rewritten prompt and issues; issues of reading the source come first.

    Raises:
        ValueError: If a syntax is unknown.

    >>> from ...encoder.tokenizer import default_tokenizer
    >>> convert("a ((red)) [cat], (dog:1.3)", "a1111", "compel", default_tokenizer()).text
    'a (red)1.21 (cat)0.90909091 , (dog)1.3'
    """
    writer = _SyntaxWriter(_Side(source, tokenize, is_cleaned, marks), _Side(target, tokenize, is_cleaned))
    bare_text = writer.source.bare(text)
    prompt = parse(bare_text.fragment.text, source)
    issues = [*prompt.issues]
    written = text
    if source != target:
        written = writer.write(prompt)
        issues += writer.issues
        if not writer.issues and (span := writer.first_difference(prompt, written)) is not None:
            message = f"From here on the {target} syntax reads the prompt differently."
            issues.append(Issue("not-expressible", message, span))
    issues = [replace(issue, span=bare_text.fragment.span_of(issue.span)) for issue in issues]
    if source == target:
        return Converted(text, tuple(issues))
    names, lost = _written_loras(text, prompt, bare_text.tags, writer.target)
    return Converted(
        " ".join(filter(None, [written, *names])), (*issues, *comment_issues(text, bare_text.comments), *lost)
    )


class _Side:
    """A syntax, and how its program gets from text to tokens."""

    def __init__(self, name: str, tokenize: Tokenize, is_cleaned: bool, marks: tuple[str, ...] = ()) -> None:
        self.name = name
        self.syntax = syntax_of(name)
        self.is_cleaned = is_cleaned and self.syntax.is_cleaned
        self.marks = marks or (COMMENT_MARKS[:1] if self.is_cleaned else ())
        self.tokenize = CleaningTokenize(tokenize) if self.is_cleaned else tokenize

    def bare(self, text: str) -> Bare:
        """A prompt without the parts removed before reading."""
        return bare(text, has_comments=self.marks, has_tags=self.syntax.has_tags)

    def tokens(self, prompt: Prompt) -> list[Token]:
        """Tokens of a prompt."""
        return [token for tokens in tokens_by_part(prompt, self.tokenize) for token in tokens or ()]

    def cleaned(self, text: str) -> str:
        """Text as cleaned by the program before it is tokenized."""
        repaired = clean(text) if self.is_cleaned and can_clean() else None
        return text if repaired is None else repaired.text


def _loras(prompt: Prompt, tags: tuple[Tag, ...]) -> list[Lora]:
    """LoRAs named in a prompt and in tags removed from it."""
    return [*prompt.loras, *(Lora(lora.name, lora.clip_strength) for lora in read_loras(tags)[0])]


def _written_loras(text: str, prompt: Prompt, tags: tuple[Tag, ...], target: _Side) -> tuple[list[str], list[Issue]]:
    """LoRAs as written in the target syntax, and issues about those for which it has no form, or none for all of it."""
    named: list[tuple[Lora | None, Span, str, bool]] = []
    named += [(lora, Span(0, len(text)), "A LoRA", True) for lora in prompt.loras]
    for tag in tags:
        loras, problems = read_loras((tag,))
        lora = Lora(loras[0].name, loras[0].clip_strength) if loras else None
        is_whole = not problems and len(tag.items) < 3 and not any(mark in item for mark in "=@" for item in tag.items)
        named.append((lora, tag.span, "A LoRA" if lora else f"“{quoted(text, tag.span)}”", is_whole))
    names: list[str] = []
    issues: dict[Issue, None] = {}
    for lora, span, title, is_whole in named:
        written = _written_lora(lora, target) if lora else ""
        if not written:
            message = f"{title} cannot be written in {target.name}: it is left out."
            issues[Issue("not-expressible", message, span)] = None
            continue
        names.append(written)
        if not is_whole:
            message = f"Of “{quoted(text, span)}” only the name and one strength can be written in {target.name}."
            issues[Issue("not-expressible", message, span)] = None
    return names, list(issues)


def _written_lora(lora: Lora, target: _Side) -> str:
    """A LoRA as written in the target syntax; empty if it has no form for it."""
    if target.syntax.write_lora is None:
        return ""
    written = target.syntax.write_lora(lora)
    reread = target.bare(written)
    return written if _same(_loras(target.syntax.parse(reread.fragment.text), reread.tags), [lora]) else ""


class _SyntaxWriter:
    """Writes parts in one syntax, collecting issues about anything it cannot express."""

    def __init__(self, source: _Side, target: _Side) -> None:
        write = target.syntax.write
        if write is None:
            raise ValueError(f"cannot write syntax {target.name!r}; allowed: {', '.join(TARGETS)}")
        self.source = source
        self.target = target
        self.syntax = target.syntax
        self.write_form = write
        self.issues: list[Issue] = []

    def write(self, prompt: Prompt) -> str:
        self._report_structure(prompt)
        is_first_of_section = {index for index in _section_starts(prompt) if index}
        # a syntax may put a space between fragments; otherwise one separates those that would run together
        is_spaced = self.syntax.is_spaced or syntax_of(prompt.syntax).is_spaced
        pieces: list[str] = []
        previous: Fragment | None = None
        for index, part in enumerate(prompt.parts):
            if isinstance(part, Break) or index in is_first_of_section:
                pieces.append(self._break(part))
                previous = None
            if isinstance(part, Break) or not part.text or (self.syntax.is_spaced and not part.text.strip()):
                continue
            written = self._fragment(part)
            if previous is not None and (is_spaced or self._joins(previous, part, pieces[-1], written)):
                pieces.append(" ")
            pieces.append(written)
            previous = part
        return self.syntax.finish("".join(pieces).strip())

    def _joins(self, previous: Fragment, part: Fragment, before: str, written: str) -> bool:
        """Whether a fragment would be read with what is written before it."""
        if _is_same(previous.weight, part.weight) or before.endswith("\\"):
            return True
        return self.syntax.has_leading_weights and bool(_WORD_END.search(before)) and not written[:1].isspace()

    def _report_structure(self, prompt: Prompt) -> None:
        """Report mixtures and weights of sections, which cannot be written in any syntax."""
        if any(section.shares for section in prompt.sections):
            self._issue("A blend of prompts cannot be written: they follow one another.", Span(0, len(prompt.source)))
        if any(section.weight != 1.0 for section in prompt.sections):
            self._issue("Weights of .and() cannot be written: each is 1.", Span(0, len(prompt.source)))

    def _break(self, part: Fragment | Break) -> str:
        if self.syntax.break_word is not None:
            return f" {self.syntax.break_word} "
        self._issue("BREAK cannot be written: the chunk does not end here.", part.span)
        return " "

    def _fragment(self, part: Fragment) -> str:
        if not part.text.strip():
            return part.text
        text = part.text
        if self.target.is_cleaned and "#" in text:
            message = f"“#” cannot be written in {self.target.name}, where it starts a comment: it is left out."
            self._issue(message, part.span)
            text = text.replace("#", " ")
        expected = [(token_id, part.weight) for token_id, _, _ in self.source.tokenize(text)]
        text = self.source.cleaned(text)
        for candidate in self._candidates(text, part.weight):
            if _same(self._read(candidate), expected):
                return candidate
        self._issue(
            f"“{shortened(part.text.strip())}” with weight {part.weight:g} cannot be written in {self.target.name}.",
            part.span,
        )
        return next(self._candidates(text, 1.0))

    def _candidates(self, text: str, weight: float) -> Iterator[str]:
        """Possible forms of a fragment, the most readable first."""
        spaced = " ".join(_WORDS.findall(text))
        # a sign in compel's brackets must directly precede a word: a space after it would end the word
        glued = re.sub(r"([+-]) (?=\w)", r"\1", spaced)
        for form in (text, spaced, glued):
            yield from self.write_form(form, weight)

    def _read(self, candidate: str) -> list[tuple[object, float]]:
        return [(token.id, token.weight) for token in self.target.tokens(self.syntax.parse(candidate))]

    def first_difference(self, prompt: Prompt, written: str) -> Span | None:
        """Position in the source of the first token that differs in the written text; None if there is none."""
        parsed = self.syntax.parse(self.target.bare(written).fragment.text)
        source_tokens, target_tokens = self.source.tokens(prompt), self.target.tokens(parsed)
        for a, b in zip(source_tokens, target_tokens, strict=False):
            if a.id != b.id or not _is_same(a.weight, b.weight):
                return a.span
        if len(source_tokens) == len(target_tokens):
            return None
        return (
            source_tokens[len(target_tokens)].span
            if len(source_tokens) > len(target_tokens)
            else Span(len(prompt.source), len(prompt.source))
        )

    def _issue(self, message: str, span: Span) -> None:
        self.issues.append(Issue("not-expressible", message, span))


def _section_starts(prompt: Prompt) -> Iterator[int]:
    """For each section and each prompt of a blend, the index of its first fragment among the parts."""
    index = 0
    for section in prompt.sections:
        for parts in section.prompts:
            yield index
            index += len(encoded_fragments(parts))


def _is_same(first: float, second: float) -> bool:
    return math.isclose(first, second, rel_tol=WEIGHT_TOLERANCE, abs_tol=WEIGHT_TOLERANCE) or first == second


def _same(actual: Sequence[tuple[object, float]], expected: Sequence[tuple[object, float]]) -> bool:
    """Whether tokens, or LoRAs, agree in ids, or names, and weights."""
    return len(actual) == len(expected) and all(
        a[0] == b[0] and _is_same(a[1], b[1]) for a, b in zip(actual, expected, strict=True)
    )
