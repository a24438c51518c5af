"""Prompts joined by AND_PERP, AND_SALT and AND_TOPK, with brackets: how a prompt is cut into them.

A bracket right behind such a word, or at the beginning, that holds more than one prompt is one of its own. A colon and
a number before the next word, or at the end of all or of such a bracket, are a weight. All else is text.

Source: behaviour of sd-webui-neutral-prompt 64ee2be (2024-03).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from ..text.prompt import Fragment, Piece, Span
from ..text.weights import clamped

Joins = Literal["AND", "neutral-prompt"]
JOINS: tuple[Joins, ...] = get_args(Joins)
"""Words that join prompts, default first."""
Joint = Literal["AND", "AND_PERP", "AND_SALT", "AND_TOPK"]
JOINTS: tuple[Joint, ...] = get_args(Joint)
"""Words that join prompts."""

MAX_DEPTH = 16
"""Maximum depth of brackets with several prompts; deeper ones are text."""

_MARK = re.compile(r"\[|\]|:|\b(?:AND_PERP|AND_SALT|AND_TOPK|AND)\b")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")


class Joined(NamedTuple):
    """A prompt, or several that are made into one."""

    joint: Joint
    """Word before it; AND for the first one."""
    weight: float
    """Its weight, finite."""
    parts: tuple[Joined, ...] = ()
    """Prompts that it is made of; none for a prompt."""

    @property
    def num_prompts(self) -> int:
        """Number of prompts in it, each with a prediction."""
        return sum(part.num_prompts for part in self.parts) if self.parts else 1

    @property
    def weights(self) -> Iterator[float]:
        """Weight of each prompt in it, in order, times those of the brackets around it."""
        for part in self.parts:
            yield from (part.weight * inner for inner in (part.weights if part.parts else (1.0,)))

    @property
    def joints(self) -> Iterator[Joint]:
        """Word before each prompt in it; before the first one in a bracket, that before the bracket."""
        for part in self.parts:
            first, *others = part.joints if part.parts else (part.joint,)
            yield part.joint if part.parts else first
            yield from others

    @property
    def sum_of_weights(self) -> float:
        """Sum of the weights of those that AND joins, by which ComfyUI divides."""
        return sum(part.weight for part in self.parts if part.joint == "AND")


class JoinedCut(NamedTuple):
    """A prompt cut into joined ones."""

    fragment: Fragment
    """Their texts, one behind the other, in positions of the prompt."""
    spans: tuple[Span, ...]
    """Each prompt in the text of the fragment."""
    joined: Joined
    """How they are joined."""


def cut_at_joints(source: str) -> JoinedCut | None:
    """Cut a prompt; None if nothing but AND joins it, which `split_and` reads.

    >>> cut = cut_at_joints("a cat AND_PERP [a dog AND_SALT fur:0.5]:-1")
    >>> [cut.fragment.text[slice(*span)] for span in cut.spans], list(cut.joined.weights)
    (['a cat', 'a dog', ' fur'], [1.0, -1.0, -0.5])
    """
    scan = _Scan(source)
    parts, _ = scan.prompts(0, 0)
    joined = Joined("AND", 1.0, tuple(parts))
    if all(part.joint == "AND" and not part.parts for part in parts):
        return None
    pieces: list[Piece] = []
    spans: list[Span] = []
    length = 0
    for tokens in scan.texts:
        text_pieces = [Piece(source[slice(*token)], token) for token in tokens]
        if text_pieces:  # no token is white space alone
            start = text_pieces[-1].span.start
            kept = text_pieces[-1].text.rstrip()
            text_pieces[-1] = Piece(kept, Span(start, start + len(kept)))
        start, length = length, length + sum(len(piece.text) for piece in text_pieces)
        spans.append(Span(start, length))
        pieces += text_pieces
    return JoinedCut(Fragment(tuple(pieces)), tuple(spans), joined)


class _Scan:
    """A prompt in marks and stretches of text between them, without those of white space alone."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens: list[Span] = []
        self.texts: list[list[Span]] = []
        """Tokens of each prompt in order."""
        end = 0
        for mark in _MARK.finditer(source):
            self._add(end, mark.start())
            self.tokens.append(Span(*mark.span()))
            end = mark.end()
        self._add(end, len(source))

    def _add(self, start: int, end: int) -> None:
        if self.source[start:end].strip():
            self.tokens.append(Span(start, end))

    def at(self, index: int) -> str:
        """A token's text; empty behind the last."""
        return self.source[slice(*self.tokens[index])] if index < len(self.tokens) else ""

    def prompts(self, index: int, depth: int) -> tuple[list[Joined], int]:
        """Prompts from a token on, to the end or that of their bracket; and the token there."""
        found: list[Joined] = []
        while not found or (index < len(self.tokens) and not (depth and self.at(index) == "]")):
            part, index = self.prompt(index, depth, is_first=not found)
            found.append(part)
        return found, index

    def prompt(self, index: int, depth: int, *, is_first: bool) -> tuple[Joined, int]:
        joint: Joint = "AND"
        if not is_first and self.at(index) in JOINTS:
            joint, index = next(word for word in JOINTS if word == self.at(index)), index + 1
        if self.at(index) == "[" and depth < MAX_DEPTH:
            count = len(self.texts)
            parts, end = self.prompts(index + 1, depth + 1)
            if len(parts) > 1:
                weight, end = self.weight(end + 1)
                return Joined(joint, weight, tuple(parts)), end
            del self.texts[count:]
        weight, end = self.text(index, is_nested=depth > 0)
        return Joined(joint, weight), end

    def weight(self, index: int) -> tuple[float, int]:
        """Weight of a bracket."""
        if self.at(index) == ":" and _NUMBER.fullmatch(self.at(index + 1).strip()):
            return clamped(float(self.at(index + 1))), index + 2
        return 1.0, index

    def text(self, index: int, *, is_nested: bool) -> tuple[float, int]:
        """Read a text, its weight, and the token behind them."""
        tokens: list[Span] = []
        self.texts.append(tokens)
        depth = 0
        while index < len(self.tokens):
            token = self.at(index)
            if token == "]":
                if not depth and is_nested:
                    break
                depth = max(0, depth - 1)
            elif token == "[":
                depth += 1
            elif token in JOINTS:
                break
            elif token == ":" and _NUMBER.fullmatch(self.at(index + 1).strip()):
                behind = self.at(index + 2)
                if behind in ("", *JOINTS) or (behind == "]" and not depth):
                    return clamped(float(self.at(index + 1))), index + 2
            tokens.append(self.tokens[index])
            index += 1
        return 1.0, index
