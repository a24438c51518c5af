"""Rewriting a prompt from one syntax into another, so that every token keeps its id and its weight.

Each fragment is written in the target syntax and read back there; the first way of writing it that comes back the same
is taken. Words may gain or lose spaces between letters and punctuation, which no CLIP token depends on. What the target
cannot say is named in an issue.

Source: docs/weighting.md, "Converting".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from .chunks import Token, Tokenize, tokens_by_part
from .extra_networks import Tag, read_loras
from .prompt import Break, Fragment, Issue, Lora, Prompt, Span, encoded_fragments
from .syntax import SYNTAXES, parse, syntax_of

TARGETS = tuple(name for name, syntax in SYNTAXES.items() if syntax.write is not None)
"""Syntaxes that can be written."""

WEIGHT_TOLERANCE = 1e-7
"""Weights this near each other, relatively, are the same: they are written with eight digits."""

_WORDS = re.compile(r"[^\W\d_]+|\d|(?:[^\w\s]|_)+|\S")


class Converted(NamedTuple):
    """A prompt in another syntax."""

    text: str
    """The prompt, to be read as the target syntax."""
    issues: tuple[Issue, ...]
    """What the target cannot express, at its place in the source."""


def convert(text: str, source: str, target: str, tokenize: Tokenize) -> Converted:
    """Rewrite a prompt.

    Args:
        text: The prompt.
        source: The syntax it is in.
        target: The syntax wanted; one of `TARGETS`.
        tokenize: CLIP's tokenizer, to compare with.

    Returns:
        The rewritten prompt and what could not be kept. The issues of reading the source come first.

    Raises:
        ValueError: If a syntax is unknown.

    >>> from ..encoder.tokenizer import default_tokenizer
    >>> convert("a ((red)) [cat], (dog:1.3)", "a1111", "compel", default_tokenizer()).text
    'a (red)1.21 (cat)0.90909091 , (dog)1.3'
    """
    writer = _Writer(target, tokenize)
    bare, tags = syntax_of(source).take_tags(text)
    prompt = parse(bare.text, source)
    if source == target:
        return Converted(text, prompt.issues)
    written = writer.write(prompt)
    issues = [*prompt.issues, *writer.issues]
    if not writer.issues and (span := _first_difference(prompt, parse(written, target), tokenize)) is not None:
        message = f"From here on the {target} syntax reads the prompt in another way."
        issues.append(Issue("not-expressible", message, span))
    if tags:
        issues = [replace(issue, span=bare.span_of(issue.span)) for issue in issues]
    spans = [tag.span for tag in tags] or [Span(0, len(text)) for _ in prompt.loras]
    names, lost = _written_loras(_loras(prompt, tags), spans, target)
    return Converted(" ".join(filter(None, [written, *names])), (*issues, *lost))


def _loras(prompt: Prompt, tags: tuple[Tag, ...]) -> list[Lora]:
    """The LoRAs that a prompt names, and those that tags taken out of it name."""
    return [*prompt.loras, *(Lora(lora.name, lora.clip_strength) for lora in read_loras(tags)[0])]


def _written_loras(loras: Sequence[Lora], spans: Sequence[Span], target: str) -> tuple[list[str], list[Issue]]:
    """LoRAs as the target names them, or an issue for each place with a tag that it has no words for."""
    syntax = syntax_of(target)
    if syntax.write_lora is not None and len(loras) == len(spans):
        names = [syntax.write_lora(lora) for lora in loras]
        bare, tags = syntax.take_tags(" ".join(names))
        found = _loras(syntax.parse(bare.text), tags)
        if _same(found, loras):
            return names, []
    message = f"A LoRA cannot be written in {target}: it is left out."
    return [], [Issue("not-expressible", message, span) for span in dict.fromkeys(spans)]


class _Writer:
    """Writes parts in one syntax, collecting what it cannot say."""

    def __init__(self, target: str, tokenize: Tokenize) -> None:
        write = SYNTAXES[target].write if target in SYNTAXES else None
        if write is None:
            raise ValueError(f"cannot write syntax {target!r}; allowed: {', '.join(TARGETS)}")
        self.target = target
        self.syntax = SYNTAXES[target]
        self.write_form = write
        self.tokenize = tokenize
        self.issues: list[Issue] = []

    def write(self, prompt: Prompt) -> str:
        self._report_structure(prompt)
        is_first_of_section = {index for index in _section_starts(prompt) if index}
        # a syntax may put a space between fragments; elsewhere one keeps those apart that would run into one
        is_spaced = self.syntax.is_spaced or syntax_of(prompt.syntax).is_spaced
        pieces: list[str] = []
        previous: Fragment | None = None
        for index, part in enumerate(prompt.parts):
            if isinstance(part, Break) or index in is_first_of_section:
                pieces.append(self._break(part))
                previous = None
            if isinstance(part, Break) or not part.text or (self.syntax.is_spaced and not part.text.strip()):
                continue
            if previous is not None and (is_spaced or self._joins(previous, part, pieces)):
                pieces.append(" ")
            pieces.append(self._fragment(part))
            previous = part
        return self.syntax.finish("".join(pieces).strip())

    def _joins(self, previous: Fragment, part: Fragment, pieces: Sequence[str]) -> bool:
        return _is_same(previous.weight, part.weight) or pieces[-1].endswith("\\")

    def _report_structure(self, prompt: Prompt) -> None:
        """Mixtures and weights of sections, which no syntax is written with."""
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
        wanted = [(token_id, part.weight) for token_id, _, _ in self.tokenize(part.text)]
        for candidate in self._candidates(part.text, part.weight):
            if _same(self._read(candidate), wanted):
                return candidate
        plain = next(self._candidates(part.text, 1.0))
        self._issue(f"“{part.text.strip()}” with weight {part.weight:g} cannot be written in {self.target}.", part.span)
        return plain

    def _candidates(self, text: str, weight: float) -> Iterator[str]:
        """Ways of writing a fragment, the most readable first."""
        spaced = " ".join(_WORDS.findall(text))
        # a sign in compel's brackets must stand before a word: a space behind it would end the word
        glued = re.sub(r"([+-]) (?=\w)", r"\1", spaced)
        for form in (text, spaced, glued):
            yield from self.write_form(form, weight)

    def _read(self, candidate: str) -> list[tuple[object, float]]:
        return [(token.id, token.weight) for token in _tokens(self.syntax.parse(candidate), self.tokenize)]

    def _issue(self, message: str, span: Span) -> None:
        self.issues.append(Issue("not-expressible", message, span))


def _section_starts(prompt: Prompt) -> Iterator[int]:
    """For each section and each prompt of a blend, the index of its first fragment among the parts."""
    index = 0
    for section in prompt.sections:
        for parts in section.prompts:
            yield index
            index += len(encoded_fragments(parts))


def _tokens(prompt: Prompt, tokenize: Tokenize) -> list[Token]:
    return [token for tokens in tokens_by_part(prompt, tokenize) for token in tokens or ()]


def _is_same(weight: float, other: float) -> bool:
    return math.isclose(weight, other, rel_tol=WEIGHT_TOLERANCE, abs_tol=WEIGHT_TOLERANCE) or weight == other


def _same(found: Sequence[tuple[object, float]], wanted: Sequence[tuple[object, float]]) -> bool:
    """Whether tokens, or LoRAs, have the same ids, or names, and weights."""
    return len(found) == len(wanted) and all(
        a[0] == b[0] and _is_same(a[1], b[1]) for a, b in zip(found, wanted, strict=True)
    )


def _first_difference(prompt: Prompt, written: Prompt, tokenize: Tokenize) -> Span | None:
    """The place in the source of the first token that differs; None if there is none."""
    ours, theirs = _tokens(prompt, tokenize), _tokens(written, tokenize)
    for a, b in zip(ours, theirs, strict=False):
        if a.id != b.id or not _is_same(a.weight, b.weight):
            return a.span
    if len(ours) == len(theirs):
        return None
    return ours[len(theirs)].span if len(ours) > len(theirs) else Span(len(prompt.source), len(prompt.source))
