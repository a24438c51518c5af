"""Texts of models beyond CLIP: what the host is given to encode, and which rows of it are which words.

The host encodes all texts itself. For weights in the attention it is given them without their syntax, so that its
encoders read what they would read without weights; the weights are noted for the rows, and act while an image is
sampled.

Source: docs/reference/beyond-clip.md, "Weights"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import Any, NamedTuple

from torch import Tensor

from ...weighting.attention import PLAIN, RowEffect, effect_of
from ...weighting.chunking.t5 import T5Rule
from ...weighting.options import EncodeOptions
from ...weighting.phrases.words import Words, words_of
from ...weighting.pipeline import Check
from ...weighting.reading.characters import Character, stripped
from ...weighting.reading.prompt_reader import ReadPrompt
from ...weighting.schemes.scheme import RowOrigin
from ...weighting.syntax import parse
from ...weighting.text.chunks import Token
from ...weighting.text.prompt import Issue, Span
from ...weighting.towers import read_for_towers
from .attention.known_texts import SampledText, TextPart, rows_in
from .conditioning import EncodingRun, answered_by, refuse_infinite
from .engines import Engine, HostModel, WebUIError, as_emphasized, host_option
from .model_readers import clip_engines_of, readers_of
from .t5 import IN_T5, NAME, T5, as_host_reads
from .t5_rows import T5Rows, as_ruled, check_equal_rows

BROKEN = "as this WebUI begins another text behind BREAK"
"""Reason why nobody can tell which rows of a text are its words; so is the next."""
OTHERWISE = "as this WebUI has made other rows of it than it is known to make"
SEVERAL = "Several prompts (.and, .blend) cannot be one text of this model: it is encoded as it is typed."
SPACED = "BREAK is a space in this model, whose text encoder T5 reads a prompt as a whole."
BROKEN_WORD = re.compile("BREAK")  # brackets may come to stand around it
SPECIAL = frozenset("()[]\\")
"""Characters that the host's syntax gives a meaning."""


class _UnknownRows(Exception):
    """Raised where nobody can tell which rows are words; its text is the reason."""


class Weights(NamedTuple):
    """Way in which weights act in the attention."""

    way: str
    """One of ``weighting.attention.WAYS``."""
    strength: float
    keeps_above_one: bool
    """Whether weights above 1 are left to the host, as in the text."""


class WrittenText(NamedTuple):
    """A text as the host is given it."""

    text: str
    weights: Sequence[float] = ()
    """Weight of each of its characters; empty if they are the host's own."""
    issues: Sequence[Issue] = ()
    """Problems of the text as typed."""

    def weight_of(self, span: Span) -> float:
        """Weight of the token of a span: the weight of its first letter."""
        places = range(*span)
        return next((self.weights[place] for place in places if not self.text[place].isspace()), 1.0)

    def is_divided(self, span: Span) -> bool:
        """Whether the letters of a token have several weights."""
        return len({self.weights[place] for place in range(*span) if not self.text[place].isspace()}) > 1


def as_plain(text: str, options: EncodeOptions, weights: Weights, *, is_literal: bool = False) -> WrittenText:
    """A text in the host's syntax without the weights that are to act in the attention.

    Args:
        text: The text as typed; one that is several prompts stays as it is.
        options: Options for reading it.
        weights: The way in which they act.
        is_literal: Whether the host reads brackets as text.

    Raises:
        WebUIError: If it has a weight that is not finite.
    """
    refuse_infinite(text, options.syntax)
    try:
        prompt, characters = stripped(text, options)
    except ValueError:
        return WrittenText(text, [1.0] * len(text), [Issue("not-weighed", SEVERAL, Span(0, 0))])
    issues = list(prompt.issues)
    issues += [
        Issue("break-in-t5", SPACED, Span(character.place, character.place + 5))
        for character in characters
        if character.is_break
    ][:1]
    letters: list[str] = []
    by_letter: list[float] = []

    def write(written: str, weight: float) -> None:
        letters.append(written)
        by_letter.extend([weight] * len(written))

    def above(character: Character) -> float:
        return character.weight if weights.keeps_above_one and not is_literal and character.weight > 1 else 1.0

    plain = "".join(character.text for character in characters)
    inside = {match.start() + 1 for match in BROKEN_WORD.finditer(plain)} if not is_literal else set[int]()
    place = 0
    for host_weight, group in groupby(characters, above):
        if host_weight != 1:
            write("(", 1.0)
        for character in group:
            for letter in character.text:
                is_special = letter in SPECIAL or place in inside  # a backslash within a word leaves it as it is
                write("\\" * (is_special and not is_literal) + letter, character.weight if host_weight == 1 else 1.0)
                place += 1
        if host_weight != 1:
            write(f":{repr(host_weight) if 'e' not in repr(host_weight) else f'{host_weight:f}'})", 1.0)
    return WrittenText("".join(letters), by_letter, issues)


@dataclass(frozen=True)
class HostEncodedTexts:
    """Texts as the host has encoded them."""

    result: Any
    """The host's own."""
    texts: list[SampledText]
    issues: list[tuple[str, Issue]]
    """Problems, each with its text."""


class JointTexts:
    """Texts of one model, as read for a generation."""

    def __init__(self, model: HostModel, options: EncodeOptions, weights: Weights | None) -> None:
        """Read texts for a model by options; without ``weights`` they are the host's own, unless a rule acts."""
        self._model, self._weights = model, weights
        self._run: EncodingRun | None = None
        self._options = as_emphasized(options)
        self._is_literal = host_option("emphasis", default="Original") == "None"
        self._as_host = as_emphasized(replace(as_host_reads(options), syntax="a1111"))
        self._readers = readers_of(model)

    def written(self, text: str) -> WrittenText:
        """A text as the host is given it."""
        if self._weights is None:
            return WrittenText(text)
        return as_plain(text, self._options, self._weights, is_literal=self._is_literal)

    @contextmanager
    def by_rule(
        self, rule: T5Rule, texts: Sequence[Sequence[str]], check: Check, tell: Callable[[str], None]
    ) -> Iterator[None]:
        """Let T5 make rows by a program's rule in the context, or let the host make them and tell why.

        Args:
            rule: The rule.
            texts: The texts, in the groups in which the host stacks them.
            check: Called before each pass of an encoder. An exception it raises ends the work.
            tell: Called with the reason if the rule cannot be followed.

        Raises:
            WebUIError: If a text has a weight that is not finite.
        """
        for text in chain.from_iterable(texts):
            refuse_infinite(text, self._options.syntax)
        engines: dict[str, Engine | T5Rows] = {}
        run: EncodingRun | None = None
        try:
            engines = {**clip_engines_of(self._model), IN_T5: T5Rows.of(getattr(self._model, NAME), rule)}
            planned = EncodingRun(engines, as_ruled(self._options), texts, check)
            check_equal_rows(prompt for group in texts for prompt in planned.prepare(group).reads[IN_T5])
            run = planned
        except WebUIError as error:
            tell(str(error))
        with answered_by(run, engines) if run is not None else nullcontext():
            self._run = run
            try:
                yield
            finally:
                self._run = None

    @property
    def syntax(self) -> str:
        """Syntax in which words are read."""
        return self._as_host.syntax if self._run is None and self._weights is None else self._options.syntax

    def words_in(self, texts: Sequence[str]) -> list[Words]:
        """Words of each text."""
        if self._run is not None:
            return [words_of(parse(text, self._options.syntax).parts) for text in texts]
        return [words_of(parse(self.written(text).text, self._as_host.syntax).parts) for text in texts]

    def encode(self, texts: Any, *, is_negative: bool) -> HostEncodedTexts:
        """Let the host encode texts; ``texts`` is its list, which may know more about them."""
        if self._run is not None:
            return self._by_rule(self._run, texts, is_negative=is_negative)
        written = [self.written(text) for text in texts]
        asked = copy.copy(texts)  # the host's list, with what it knows
        asked[:] = [host_text.text for host_text in written]
        result = self._model.get_learned_conditioning(texts if self._weights is None else asked)
        rows, sampled_texts = rows_in(result), list[SampledText]()
        issues = [(text, issue) for text, host_text in zip(texts, written, strict=True) for issue in host_text.issues]
        is_mixed = len(rows) != len(texts)
        for text_rows, text, host_text in zip(rows, texts, written, strict=False):
            sampled_text, lines = self._text(text_rows, host_text, is_negative=is_negative, is_mixed=is_mixed)
            sampled_texts.append(sampled_text)
            issues += [(text, Issue("not-weighed", line, Span(0, 0))) for line in lines]
        return HostEncodedTexts(result, sampled_texts, issues)

    def _by_rule(self, run: EncodingRun, texts: Any, *, is_negative: bool) -> HostEncodedTexts:
        """Same as `encode`, with T5's rows as a run makes them."""
        result = self._model.get_learned_conditioning(texts)
        prompts = [run.encode(IN_T5, [text])[0] for text in texts]
        sampled_texts = [
            SampledText.of_towers(rows, len(rows), {IN_T5: prompt}, is_negative=is_negative)
            for rows, prompt in zip(rows_in(result), prompts, strict=True)
        ]
        issues = [(text, issue) for text, prompt in zip(texts, prompts, strict=True) for issue in prompt.read.issues]
        return HostEncodedTexts(result, sampled_texts, issues)

    def _text(
        self, rows: Tensor, written: WrittenText, *, is_negative: bool, is_mixed: bool
    ) -> tuple[SampledText, Sequence[str]]:
        """A text with its rows, and lines about its weights; ``is_mixed`` is whether the host has mixed texts up."""
        text = SampledText(rows, len(rows), (), is_negative)
        try:
            if is_mixed:
                raise _UnknownRows(BROKEN)
            parts, tokens = self._parts(written.text, len(rows))
        except _UnknownRows as reason:
            is_weighed = any(weight != 1 for weight in written.weights)
            lines = [f"Weights do not act in this text, {reason}."] if is_weighed else []
            return replace(text, unknown=str(reason)), lines
        text = replace(text, parts=parts)
        if self._weights is None:
            return text, ()
        lines = [
            f"“{written.text[slice(*token.span)].strip()}” is one token of this text encoder: all of it gets the "
            f"weight {written.weight_of(token.span):g}."
            for token in tokens
            if token.span and written.is_divided(token.span)
        ]
        effects = tuple(self._effect(token, written) for token in tokens)
        if all(effect == PLAIN for effect in effects):
            return text, lines
        taken_away = frozenset(row for row, effect in enumerate(effects) if effect.factor < 0)
        return replace(text, effects=effects, taken_away=taken_away), tuple(dict.fromkeys(lines))

    def _effect(self, token: Token, written: WrittenText) -> RowEffect:
        assert self._weights is not None
        weight = 1.0 if token.span is None else written.weight_of(token.span)
        return effect_of(weight, self._weights.way, self._weights.strength)

    def _parts(self, text: str, num_rows: int) -> tuple[tuple[TextPart, ...], list[Token]]:
        """Parts of a text's rows, and the token of each row; raises `_UnknownRows` if they cannot be told."""
        readers = self._readers
        parts: list[TextPart] = []
        tokens: list[Token] = []
        if readers.clip and (readers.is_t5_off or (readers.t5 is not None and readers.t5.is_joined)):
            reads = read_for_towers(text, self._as_host, readers.clip)
            first = next(iter(reads.values())).chunks
            places = [(number, place) for number, chunk in enumerate(first) for place in range(len(chunk.tokens))]
            by_tower = {tower: _words(prompt, places) for tower, prompt in reads.items()}
            clip_tokens = [first[number].tokens[place] for number, place in places]
            parts.append(TextPart(0, len(clip_tokens), by_tower))
            tokens += clip_tokens
        if readers.t5 is not None:
            tokens += self._in_t5(readers.t5, text, num_rows - len(tokens), parts)
        if len(tokens) > num_rows or not parts:
            raise _UnknownRows(OTHERWISE)
        return tuple(parts), tokens + [Token(0)] * (num_rows - len(tokens))

    def _in_t5(self, t5: T5, text: str, num_rows: int, parts: list[TextPart]) -> list[Token]:
        """Tokens of T5's rows, whose part is added to others."""
        prompt = t5.read(text, self._as_host)
        if len(prompt.chunks) > 1:
            raise _UnknownRows(BROKEN)
        chunk = next(iter(prompt.chunks))
        tokenize_line: Any = getattr(t5.owner, "tokenize_line", None)
        host_chunks = [] if tokenize_line is None else tokenize_line(text)[0]
        ids = [token.id for token in chunk.content]
        if len(host_chunks) != 1 or list(host_chunks[0].tokens[: len(ids) + 1]) != [*ids, t5.owner.id_end]:
            raise _UnknownRows(OTHERWISE)
        tokens = list(chunk.tokens[1:])
        if len(tokens) > num_rows:
            raise _UnknownRows(OTHERWISE)
        words = _words(prompt, [(0, place) for place in range(1, 1 + len(tokens))])
        parts.append(TextPart(parts[-1].num_rows if parts else 0, len(tokens), {IN_T5: words}))
        return tokens


def _words(prompt: ReadPrompt, rows: Iterable[tuple[int, int]]) -> Words:
    """Words of a text with the chunk of each row and its place there."""
    return words_of(prompt.prompt.parts, prompt.chunks, [RowOrigin(*row) for row in rows])
