"""The grammar of the compel library's prompts: text in, a tree of words and weighted groups out.

Alternatives are tried in a fixed order. Each rule caches its result at each position, so that reading is linear in the
length of the text.

Source: docs/reference/syntaxes.md, "compel syntax"; behaviour of compel 2.5.1.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from ..text.prompt import Lora

PLUS, MINUS = 1.1, 0.9
MAX_DEPTH = 40
"""Maximum nesting of brackets; deeper ones are text. compel itself fails at some such depth."""

_WHITE = " \t\r\n"
_LINE_END = re.compile("[\n\r]")
# in quotes these pairs of characters are one of whitespace; same length, so that positions stay the same
_WHITE_ESCAPES = {r"\n": " \n", r"\r": " \n", r"\t": " \t", r"\f": "\f\f"}
_WHITE_ESCAPE = re.compile(r"\\[nrtf]")
_SPACE = re.compile(r"[ \t\r\n]*")
_GAP = re.compile(r"(?:\f*[ \t\r\n])*")
_SIGNS = re.compile(r"\++|-+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)|-?[0-9]+")
_KEYWORD = re.compile(r"[A-Za-z0-9_-]+")
# no other whitespace ends a word, and no rule accepts the last two
_FREE = re.compile(r"[^ \t\r\n\v\f]+")
_WORD = re.compile(
    r"""(?:\\[()",.+\-=] | [+-](?![ \t\r\n()",.+\-=]|\Z) | -?[0-9]+ | [^ \t\r\n\v\f()",.+\-=])+""", re.VERBOSE
)


@dataclass(frozen=True)
class Node:
    """Result of a rule: a word, or a group of nodes with a weight."""

    start: int = 0
    end: int = 0
    """Start and end of the word; unused for a group."""
    children: tuple[Node, ...] | None = None
    """None for a word."""
    weight: float = 1.0
    lora: Lora | None = None
    edited: tuple[Node, ...] | None = None
    """For a swap, the replacement of the children."""
    options: tuple[Option, ...] = ()

    def moved(self, offset: int) -> Node:
        """The same node, counted from ``offset`` characters earlier."""
        if not offset:
            return self
        children, edited = (
            None if nodes is None else tuple(node.moved(offset) for node in nodes)
            for nodes in (self.children, self.edited)
        )
        return replace(self, start=self.start + offset, end=self.end + offset, children=children, edited=edited)


class Option(NamedTuple):
    """A value in the brackets of an operator."""

    name: str | None
    value: float | str

    @property
    def key(self) -> float | str:
        """The weight as compel takes it: the name, if there is one."""
        return self.value if self.name is None else self.name

    @property
    def number(self) -> float | None:
        """The value as a weight, or None."""
        try:
            return float(self.key)
        except ValueError:
            return None


Found = tuple[Node, int]


class Parser:
    """Grammar of one text. Rules return what they found and where it ends, or None."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.line_ends = [*(match.start() for match in _LINE_END.finditer(text)), len(text)]
        self.memo: dict[tuple[str, int, int], Found | None] = {}
        self.depth = 0
        self.is_too_deep = False
        # allowed in brackets and quotes
        self.rules_without_commas = (self.lora, self.attention, self.swap, self.paren, self.quoted, self.word)
        self.rules = (*self.rules_without_commas, partial(self.mark, ","), partial(self.mark, "."))

    # -- small things ------------------------------------------------------------------------------------------------

    def skip(self, position: int, end: int) -> int:
        """Position after whitespace."""
        if position < end and self.text[position] not in _WHITE:
            return position  # the usual case, quicker than a match
        match = _SPACE.match(self.text, position, end)
        return match.end() if match else position

    def gap(self, position: int, end: int) -> int:
        """Position after whitespace between the parts of a prompt; a form feed before other whitespace counts."""
        match = _GAP.match(self.text, position, end)
        return match.end() if match else position

    def literal(self, literal: str, position: int, end: int) -> int | None:
        """End of a literal after whitespace, or None."""
        position = self.skip(position, end)
        return position + len(literal) if self.text.startswith(literal, position, end) else None

    def call(self, name: str, position: int, end: int) -> int | None:
        """End of a name followed by a bracket, or None."""
        behind = self.literal(name, position, end)
        return None if behind is None else self.literal("(", behind, end)

    def once(self, rule: str, position: int, end: int, read: Callable[[int, int], Found | None]) -> Found | None:
        """Read a rule, or recall its earlier result at this position."""
        key = (rule, position, end)
        if key not in self.memo:
            self.memo[key] = read(position, end)
        return self.memo[key]

    # -- words and groups --------------------------------------------------------------------------------------------

    def word(self, position: int, end: int) -> Found | None:
        """A word, which may be adjacent to syntax."""
        return self.once("word", self.skip(position, end), end, self._word)

    def _word(self, position: int, end: int) -> Found | None:
        match = _WORD.match(self.text, position, end)
        return (Node(position, match.end()), match.end()) if match else None

    def free(self, position: int, end: int) -> Found | None:
        """Everything up to the next whitespace."""
        match = _FREE.match(self.text, position, end)
        return (Node(position, match.end()), match.end()) if match else None

    def paren(self, position: int, end: int) -> Found | None:
        """``( … )``."""
        position = self.skip(position, end)
        return self.once("paren", position, end, self._paren) if self.text.startswith("(", position, end) else None

    def _paren(self, position: int, end: int) -> Found | None:
        inside = self.inside(position + 1, end)
        close = inside and self.literal(")", inside[1], end)
        return (Node(children=inside[0]), close) if inside and close else None

    def quoted(self, position: int, end: int) -> Found | None:
        """``" … "``."""
        position = self.skip(position, end)
        return self.once("quoted", position, end, self._quoted) if self.text.startswith('"', position, end) else None

    def _quoted(self, position: int, end: int) -> Found | None:
        content = self.quote(position, end)
        if content is None:
            return None
        start, stop = content
        if not _WHITE_ESCAPE.sub("", self.text[start:stop]).strip():
            return Node(children=(Node(start, start),)), stop + 1
        inside = self.whole(content, Parser.inside)
        return None if inside is None else (Node(children=inside), stop + 1)

    def whole(
        self, content: tuple[int, int], read: Callable[[Parser, int, int], tuple[tuple[Node, ...], int] | None]
    ) -> tuple[Node, ...] | None:
        """Content of a quotation, if all of it fits the grammar; ``read`` is `inside` or `prompt`."""
        start, stop = content
        parser, offset = self, 0
        if _WHITE_ESCAPE.search(self.text, start, stop):
            parser, offset = Parser(_WHITE_ESCAPE.sub(lambda two: _WHITE_ESCAPES[two[0]], self.text[start:stop])), start
            parser.depth = self.depth
        found = read(parser, start - offset, stop - offset)
        self.is_too_deep |= parser.is_too_deep
        if found is None or parser.skip(found[1], stop - offset) != stop - offset:
            return None
        return tuple(node.moved(offset) for node in found[0])

    def inside(self, position: int, end: int, *, commas: bool = True) -> tuple[tuple[Node, ...], int] | None:
        """Content of brackets or quotes; None if nested too deep."""
        if self.depth == MAX_DEPTH:
            self.is_too_deep = True
            return None
        self.depth += 1
        found = self.many(position, end, self.rules if commas else self.rules_without_commas)
        self.depth -= 1
        return found

    def quote(self, position: int, end: int) -> tuple[int, int] | None:
        """Start and end of the content of a quotation."""
        if not self.text.startswith('"', position, end):
            return None
        next_line = bisect_left(self.line_ends, position)
        line_end = min(end, self.line_ends[next_line])
        last_escaped = -1
        search = position + 1
        while (close := self.text.find('"', search, line_end)) >= 0:
            if self.text[close - 1] != "\\" or close == position + 1:
                return position + 1, close
            last_escaped, search = close, close + 1
        return None if last_escaped < 0 else (position + 1, last_escaped)

    def either(self, position: int, end: int, rules: Sequence[Callable[[int, int], Found | None]]) -> Found | None:
        """Result of the first rule that matches."""
        for rule in rules:
            found = rule(position, end)
            if found is not None:
                return found
        return None

    def many(
        self, position: int, end: int, rules: Sequence[Callable[[int, int], Found | None]]
    ) -> tuple[tuple[Node, ...], int]:
        """Results of as many matches as there are."""
        nodes: list[Node] = []
        while (found := self.either(position, end, rules)) is not None:
            nodes.append(found[0])
            position = found[1]
        return tuple(nodes), position

    def target(self, position: int, end: int) -> Found | None:
        """Target of an operator."""
        return self.either(position, end, (self.quoted, self.paren, self.word))

    def mark(self, mark: str, position: int, end: int) -> Found | None:
        """A comma or full stop after whitespace: in brackets a separate word."""
        behind = self.literal(mark, position, end)
        return None if behind is None else (Node(behind - 1, behind), behind)

    # -- operators ---------------------------------------------------------------------------------------------------

    def attention(self, position: int, end: int) -> Found | None:
        """``(text)1.3``, ``(text)++``, ``word+``, ``(text).attend(1.3)``."""
        return self.once("attention", self.skip(position, end), end, self._attention)

    def _attention(self, position: int, end: int) -> Found | None:
        target = self.target(position, end)
        if target and (opened := self.call(".attend", target[1], end)):
            operator = self.operator(self.skip(opened, end), end)
            if operator and (close := self.literal(")", operator[1], end)):
                return Node(children=(target[0],), weight=operator[0]), close
        group = self.quoted(position, end) or self.paren(position, end)
        if group and (operator := self.operator(group[1], end)):
            return Node(children=(group[0],), weight=operator[0]), operator[1]
        word = self.word(position, end)
        if word and (signs := _SIGNS.match(self.text, word[1], end)):
            return Node(children=(word[0],), weight=_power(signs[0])), signs.end()
        return None

    def operator(self, position: int, end: int) -> tuple[float, int] | None:
        """Signs or a number."""
        if signs := _SIGNS.match(self.text, position, end):
            return _power(signs[0]), signs.end()
        number = _NUMBER.match(self.text, position, end)
        return None if number is None else (float(number[0]), number.end())

    def swap(self, position: int, end: int) -> Found | None:
        """``original.swap(edited, options)``."""
        return self.once("swap", self.skip(position, end), end, self._swap)

    def _swap(self, position: int, end: int) -> Found | None:
        target = self.target(position, end)
        opened = target and self.call(".swap", target[1], end)
        inside = opened and self.inside(opened, end, commas=False)
        if not target or not inside:
            return None
        edited, behind = inside
        options: list[Option] = []
        if (comma := self.literal(",", behind, end)) is not None:
            options, behind = self.options(comma, end)
        close = self.literal(")", behind, end)
        return None if close is None else (Node(children=(target[0],), edited=edited, options=tuple(options)), close)

    def lora(self, position: int, end: int) -> Found | None:
        """``withLora(name, weight)``."""
        position = self.skip(position, end)
        opened = self.call("useLora", position, end) or self.call("withLora", position, end)
        name = None if opened is None else _KEYWORD.match(self.text, self.skip(opened, end), end)
        if name is None:
            return None
        weight, behind = 1.0, name.end()
        if (comma := self.literal(",", behind, end)) is not None:
            number = _NUMBER.match(self.text, self.skip(comma, end), end)
            if number is None:
                return None
            weight, behind = float(number[0]), number.end()
        close = self.literal(")", behind, end)
        return None if close is None else (Node(position, close, lora=Lora(name[0], weight), children=()), close)

    def options(self, position: int, end: int) -> tuple[list[Option], int]:
        """Numbers and words between commas, each optionally preceded by ``name=``."""
        found: list[Option] = []
        behind = position
        while True:
            start = self.skip(behind, end)
            name = _KEYWORD.match(self.text, start, end)
            equals = None if name is None else self.literal("=", name.end(), end)
            if equals is not None:
                start = self.skip(equals, end)
            number = _NUMBER.match(self.text, start, end)
            value = number or _KEYWORD.match(self.text, start, end)
            if value is None:
                return found, position
            label = name[0] if name is not None and equals is not None else None
            found.append(Option(label, float(value[0]) if number is not None else value[0]))
            position = value.end()
            comma = self.literal(",", position, end)
            if comma is None:
                return found, position
            behind = comma

    # -- whole prompts -----------------------------------------------------------------------------------------------

    def prompt(self, position: int, end: int) -> tuple[tuple[Node, ...], int]:
        """A whole prompt: grammar where it fits, and otherwise free text."""
        rules = (self.swap, self.lora, self.attention, self.quoted, self.paren, self.free)
        nodes: list[Node] = []
        while (found := self.either(self.gap(position, end), end, rules)) is not None:
            nodes.append(found[0])
            position = found[1]
        return tuple(nodes), self.gap(position, end)

    def several(self, operators: Sequence[str], position: int, end: int) -> Several | None:
        """``(target, target, ...)`` followed by one of the operators."""
        opened = behind = self.literal("(", position, end)
        if behind is None:
            return None
        parts: list[tuple[Node, ...]] = []
        while opened is not None:
            part = self.several_part(opened, end)
            if part is None:
                return None
            parts.append(part[0])
            behind = part[1]
            opened = self.literal(",", behind, end)
        close = self.literal(")", behind, end)
        if close is None:
            return None
        for operator in operators:
            if opened := self.call(operator, close, end):
                options, behind = self.options(opened, end)
                if (finish := self.literal(")", behind, end)) is not None:
                    return Several(operator, parts, options, finish)
        return None

    def several_part(self, position: int, end: int) -> tuple[tuple[Node, ...], int] | None:
        """One of the prompts between the commas of a blend or conjunction."""
        found = self.target(position, end)
        if found is not None:
            return (found[0],), found[1]
        position = self.skip(position, end)
        content = self.quote(position, end)
        if content is None:
            return None
        nodes = self.whole(content, Parser.prompt)
        return None if nodes is None else (nodes, content[1] + 1)


class Several(NamedTuple):
    """The prompts of a blend or a conjunction."""

    operator: str
    parts: list[tuple[Node, ...]]
    options: list[Option]
    end: int


def _power(signs: str) -> float:
    try:
        return (PLUS if signs[0] == "+" else MINUS) ** len(signs)
    except OverflowError:
        return math.inf
