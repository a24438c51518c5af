r"""Prompt syntax of the compel library, as InvokeAI and diffusers users write it.

    word+  word--          1.1 or 0.9 for each sign, as a power
    (text)1.3  "text"1.3   that weight; (text)++ and (text)- as well, nothing between bracket and weight
    (text).attend(1.3)     the same, written out
    \( \) \"               those characters
    ("a", "b").blend(1, 2)           one conditioning mixed from several prompts
    ("a", "b").and(1, 0.5)           several prompts behind one another
    cat.swap(dog)                    needs control of the sampler's attention; an encoder reads the original
    withLora(name, 0.5)              leaves no text

Weights multiply, outer first. Neighbours of equal weight are joined with a space. What does not fit the grammar is
text.

The grammar tries its alternatives in a fixed order. Each rule remembers what it found at each place, so that trying
again costs nothing and reading is linear in the length of the text.

Source: docs/weighting.md, "compel syntax"; behaviour of compel 2.5.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..prompt import Fragment, Issue, Lora, Piece, Prompt, PromptError, Section, Span, Swap, unmarked

PLUS, MINUS = 1.1, 0.9
MAX_DEPTH = 40
"""Brackets nested deeper than this are text; compel itself fails at some such depth."""

_SPACE = re.compile(r"[ \t\r\n]*")
_SIGNS = re.compile(r"\++|-+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+)|-?[0-9]+")
_KEYWORD = re.compile(r"[A-Za-z0-9_-]+")
_FREE = re.compile(r"[^ \t\r\n]+")
_WORD = re.compile(r"""(?:\\[()",.+\-=] | [+-](?![\s()",.+\-=]|\Z) | -?[0-9]+ | [^\s()",.+\-=])+""", re.VERBOSE)
_BARE_BRACKET = re.compile(r"(?<!\\)[()]")
_ESCAPE = re.compile(r'\\([()"])')


@dataclass(frozen=True)
class _Node:
    """What a rule found: a word, or a group of nodes with a weight."""

    start: int = 0
    end: int = 0
    """Where the word stands; for a group, nothing."""
    children: tuple[_Node, ...] | None = None
    """None for a word."""
    weight: float = 1.0
    lora: Lora | None = None
    edited: tuple[_Node, ...] | None = None
    """For a swap, what would take the place of the children."""
    options: tuple[_Option, ...] = ()


class _Option(NamedTuple):
    name: str | None
    value: float | str


_Found = tuple[_Node, int]


class _Parser:
    """The grammar over one text. Rules return what they found and where it ends, or None."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.memo: dict[tuple[str, int, int], _Found | None] = {}
        self.depth = 0
        self.is_too_deep = False
        # what may stand in brackets and quotes
        self.rules_without_commas = (self.lora, self.attention, self.swap, self.paren, self.quoted, self.word)
        self.rules = (*self.rules_without_commas, self.comma, self.dot)

    # -- small things ------------------------------------------------------------------------------------------------

    def skip(self, position: int, end: int) -> int:
        match = _SPACE.match(self.text, position, end)
        return match.end() if match else position

    def literal(self, literal: str, position: int, end: int) -> int | None:
        """The end of a literal behind white space, or None."""
        position = self.skip(position, end)
        return position + len(literal) if self.text.startswith(literal, position, end) else None

    def once(self, rule: str, position: int, end: int, read: Callable[[int, int], _Found | None]) -> _Found | None:
        """Read a rule, or recall what it gave here before."""
        key = (rule, position, end)
        if key not in self.memo:
            self.memo[key] = read(position, end)
        return self.memo[key]

    # -- words and groups --------------------------------------------------------------------------------------------

    def word(self, position: int, end: int) -> _Found | None:
        return self.once("word", self.skip(position, end), end, self._word)

    def _word(self, position: int, end: int) -> _Found | None:
        match = _WORD.match(self.text, position, end)
        return (_Node(position, match.end()), match.end()) if match else None

    def free(self, position: int, end: int) -> _Found | None:
        match = _FREE.match(self.text, position, end)
        return (_Node(position, match.end()), match.end()) if match else None

    def paren(self, position: int, end: int) -> _Found | None:
        return self.once("paren", self.skip(position, end), end, self._paren)

    def _paren(self, position: int, end: int) -> _Found | None:
        inside = self.inside(position + 1, end) if self.text.startswith("(", position, end) else None
        close = None if inside is None else self.literal(")", inside[1], end)
        return None if inside is None or close is None else (_Node(children=inside[0]), close)

    def quoted(self, position: int, end: int) -> _Found | None:
        return self.once("quoted", self.skip(position, end), end, self._quoted)

    def _quoted(self, position: int, end: int) -> _Found | None:
        content = self.quote(position, end)
        if content is None:
            return None
        start, stop = content
        if not self.text[start:stop].strip():
            return _Node(children=(_Node(start, start),)), stop + 1
        inside = self.inside(start, stop)
        is_whole = inside is not None and self.skip(inside[1], stop) == stop
        return (_Node(children=inside[0]), stop + 1) if inside is not None and is_whole else None

    def inside(self, position: int, end: int, *, commas: bool = True) -> tuple[tuple[_Node, ...], int] | None:
        """What stands in brackets or quotes; None where they are nested too deep."""
        if self.depth == MAX_DEPTH:
            self.is_too_deep = True
            return None
        self.depth += 1
        found = self.many(position, end, self.rules if commas else self.rules_without_commas)
        self.depth -= 1
        return found

    def quote(self, position: int, end: int) -> tuple[int, int] | None:
        """Where the content of a quotation starts and ends."""
        if not self.text.startswith('"', position, end):
            return None
        line_end = self.text.find("\n", position, end)
        line_end = end if line_end < 0 else line_end
        last_escaped = -1
        search = position + 1
        while (close := self.text.find('"', search, line_end)) >= 0:
            if self.text[close - 1] != "\\" or close == position + 1:
                return position + 1, close
            last_escaped, search = close, close + 1
        return None if last_escaped < 0 else (position + 1, last_escaped)

    def either(self, position: int, end: int, rules: Sequence[Callable[[int, int], _Found | None]]) -> _Found | None:
        """The first rule that reads something."""
        for rule in rules:
            found = rule(position, end)
            if found is not None:
                return found
        return None

    def many(
        self, position: int, end: int, rules: Sequence[Callable[[int, int], _Found | None]]
    ) -> tuple[tuple[_Node, ...], int]:
        """As many as there are."""
        nodes: list[_Node] = []
        while (found := self.either(position, end, rules)) is not None:
            nodes.append(found[0])
            position = found[1]
        return tuple(nodes), position

    def target(self, position: int, end: int) -> _Found | None:
        """What an operator can act on."""
        return self.either(position, end, (self.quoted, self.paren, self.word))

    def comma(self, position: int, end: int) -> _Found | None:
        return self.punctuation(",", position, end)

    def dot(self, position: int, end: int) -> _Found | None:
        return self.punctuation(".", position, end)

    def punctuation(self, mark: str, position: int, end: int) -> _Found | None:
        behind = self.literal(mark, position, end)
        return None if behind is None else (_Node(behind - 1, behind), behind)

    # -- operators ---------------------------------------------------------------------------------------------------

    def attention(self, position: int, end: int) -> _Found | None:
        return self.once("attention", self.skip(position, end), end, self._attention)

    def _attention(self, position: int, end: int) -> _Found | None:
        target = self.target(position, end)
        if target is not None and (behind := self.literal(".attend", target[1], end)) is not None:
            opened = self.literal("(", behind, end)
            operator = None if opened is None else self.operator(self.skip(opened, end), end)
            close = None if operator is None else self.literal(")", operator[1], end)
            if operator is not None and close is not None:
                return _Node(children=(target[0],), weight=operator[0]), close
        group = self.quoted(position, end) or self.paren(position, end)
        if group is not None and (operator := self.operator(group[1], end)) is not None:
            return _Node(children=(group[0],), weight=operator[0]), operator[1]
        word = self.word(position, end)
        if word is not None and (signs := _SIGNS.match(self.text, word[1], end)) is not None:
            return _Node(children=(word[0],), weight=_power(signs[0])), signs.end()
        return None

    def operator(self, position: int, end: int) -> tuple[float, int] | None:
        """Signs or a number."""
        if (signs := _SIGNS.match(self.text, position, end)) is not None:
            return _power(signs[0]), signs.end()
        number = _NUMBER.match(self.text, position, end)
        return None if number is None else (float(number[0]), number.end())

    def swap(self, position: int, end: int) -> _Found | None:
        return self.once("swap", self.skip(position, end), end, self._swap)

    def _swap(self, position: int, end: int) -> _Found | None:
        target = self.target(position, end)
        behind = None if target is None else self.literal(".swap", target[1], end)
        opened = None if behind is None else self.literal("(", behind, end)
        if target is None or opened is None:
            return None
        inside = self.inside(opened, end, commas=False)
        if inside is None:
            return None
        edited, behind = inside
        options: list[_Option] = []
        if (comma := self.literal(",", behind, end)) is not None:
            options, behind = self.options(comma, end)
        close = self.literal(")", behind, end)
        return None if close is None else (_Node(children=(target[0],), edited=edited, options=tuple(options)), close)

    def lora(self, position: int, end: int) -> _Found | None:
        position = self.skip(position, end)
        name_start = self.literal("useLora", position, end) or self.literal("withLora", position, end)
        opened = None if name_start is None else self.literal("(", name_start, end)
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
        return None if close is None else (_Node(position, close, lora=Lora(name[0], weight), children=()), close)

    def options(self, position: int, end: int) -> tuple[list[_Option], int]:
        """Numbers and words between commas, each possibly behind ``name=``."""
        found: list[_Option] = []
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
            found.append(_Option(label, float(value[0]) if number is not None else value[0]))
            position = value.end()
            comma = self.literal(",", position, end)
            if comma is None:
                return found, position
            behind = comma

    # -- whole prompts -----------------------------------------------------------------------------------------------

    def prompt(self, position: int, end: int) -> tuple[tuple[_Node, ...], int]:
        rules = (self.swap, self.lora, self.attention, self.quoted, self.paren, self.free)
        nodes: list[_Node] = []
        while (found := self.either(self.skip(position, end), end, rules)) is not None:
            nodes.append(found[0])
            position = found[1]
        return tuple(nodes), self.skip(position, end)

    def several(self, operators: Sequence[str], position: int, end: int) -> _Several | None:
        """``(target, target, ...)`` with one of the operators behind it."""
        opened = behind = self.literal("(", position, end)
        if behind is None:
            return None
        parts: list[tuple[_Node, ...]] = []
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
            start = self.literal(operator, close, end)
            opened = None if start is None else self.literal("(", start, end)
            if opened is not None:
                options, behind = self.options(opened, end)
                if (finish := self.literal(")", behind, end)) is not None:
                    return _Several(parts, options, finish)
        return None

    def several_part(self, position: int, end: int) -> tuple[tuple[_Node, ...], int] | None:
        found = self.target(position, end)
        if found is not None:
            return (found[0],), found[1]
        position = self.skip(position, end)
        content = self.quote(position, end)
        if content is None:
            return None
        nodes, behind = self.prompt(*content)
        return (nodes, content[1] + 1) if behind == content[1] else None


class _Several(NamedTuple):
    """The prompts of a blend or a conjunction."""

    parts: list[tuple[_Node, ...]]
    options: list[_Option]
    end: int


def _power(signs: str) -> float:
    try:
        return (PLUS if signs[0] == "+" else MINUS) ** len(signs)
    except OverflowError:
        return math.inf


# -- from what was found to a prompt -----------------------------------------------------------------------------------


def parse(source: str, *, strict: bool = False) -> Prompt:
    """Read a prompt as the compel library does.

    Args:
        source: Any string.
        strict: Raise where compel raises, instead of reporting an issue.

    Returns:
        The prompt. Its ``sections`` hold what ``.and`` and ``.blend`` say; its ``parts`` are all fragments in order.

    Raises:
        PromptError: In strict mode, if a blend or conjunction has another number of weights than of prompts, or text
            stands behind a blend.

    >>> [(f.text, f.weight) for f in parse("a tall man (picking apricots+)++").fragments]
    [('a tall man', 1.0), ('picking', 1.2100000000000002), ('apricots', 1.3310000000000004)]
    """
    return _Reader(source, strict=strict).read()


class _Reader:
    """Turns nodes into fragments whose pieces stand in the source."""

    def __init__(self, source: str, *, strict: bool) -> None:
        self.source = source
        self.strict = strict
        self.text, self.places = _spaced_commas(source)
        self.places.append(len(source))
        self.parser = _Parser(self.text)
        self.loras: list[Lora] = []
        self.issues: list[Issue] = []

    def read(self) -> Prompt:
        sections = self.sections() if self.source.strip() else (_single((_EMPTY,)),)
        parts = tuple(
            fragment
            for section in sections
            for prompt in section.prompts
            for part in prompt
            for fragment in _encoded(part)
        )
        if self.parser.is_too_deep:
            message = f"Brackets nested deeper than {MAX_DEPTH} are text."
            self.issues.append(Issue("too-deep", message, Span(0, len(self.source))))
        covered = sorted(piece.span for fragment in parts for piece in fragment.pieces)
        return Prompt(
            source=self.source,
            syntax="compel",
            parts=parts,
            marks=unmarked(len(self.source), covered),
            issues=tuple(sorted(self.issues, key=lambda issue: issue.span)),
            sections=sections,
            loras=tuple(self.loras),
        )

    def sections(self) -> tuple[Section, ...]:
        end = len(self.text)
        conjunction = self.parser.several((".and", ".add"), 0, end)
        if conjunction is not None:
            weights, _ = self.weights(conjunction)
            self.ignored(conjunction.end, "text behind .and() is ignored, as in compel")
            prompts = [self.flat(nodes) for nodes in conjunction.parts]
            return tuple(_single(prompt, weight) for prompt, weight in zip(prompts, weights, strict=True) if prompt)
        before, start = self.parser.many(0, end, [self.parser.lora])
        blend = self.parser.several((".blend",), start, end)
        if blend is not None:
            weights, normalize = self.weights(blend)
            after, behind = self.parser.many(blend.end, end, [self.parser.lora])
            self.collect([*before, *after])
            self.ignored(behind, "text behind .blend() is ignored; compel refuses it", is_error=True)
            prompts = tuple(self.flat(nodes) or (_EMPTY,) for nodes in blend.parts)
            if any(isinstance(part, Swap) for prompt in prompts for part in prompt):
                self.problem("swap-in-blend", "A blend cannot hold a .swap().", self.span(0, blend.end))
            return (Section(prompts, tuple(weights), normalize=normalize),)
        nodes, _ = self.parser.prompt(0, end)
        prompt = self.flat(nodes)
        return (_single(prompt),) if prompt else ()

    def weights(self, several: _Several) -> tuple[list[float], bool]:
        """Weights of the prompts, and whether they are to be divided by their sum."""
        options = [option.value for option in several.options if option.name is None]
        normalize = options[-1:] != ["no_normalize"]
        numbers = [value for value in options if isinstance(value, float)]
        count = len(several.parts)
        if not all(map(math.isfinite, numbers)):
            self.issues.append(
                Issue("infinite-weight", "A weight is not finite: each is 1.", self.span(0, several.end))
            )
            numbers = []
        if numbers and len(numbers) != count:
            message = f"{len(numbers)} weights for {count} prompts: each weighs 1."
            self.problem("weight-count", message, self.span(0, several.end))
            numbers = []
        return numbers or [1.0] * count, normalize

    def ignored(self, position: int, message: str, *, is_error: bool = False) -> None:
        """Say that the text from here on has no effect, if there is any."""
        if self.text[position:].strip():
            span = self.span(position, len(self.text))
            if is_error:
                self.problem("ignored-text", f"The {message}.", span)
            else:
                self.issues.append(Issue("ignored-text", f"The {message}.", span))

    def problem(self, code: str, message: str, span: Span) -> None:
        """What compel refuses."""
        if self.strict:
            raise PromptError(message, self.source, span)
        self.issues.append(Issue(code, message, span))

    def span(self, start: int, end: int) -> Span:
        """A stretch of the text as it stands in the source."""
        return Span(self.places[start], self.places[end])

    def collect(self, nodes: Sequence[_Node]) -> None:
        """Note LoRAs, and brackets that have become text."""
        for node in nodes:
            if node.lora is not None:
                self.loras.append(node.lora)
                message = f"The LoRA “{node.lora.name}” is named in the text; an encoder does not load it."
                self.issues.append(Issue("lora", message, self.span(node.start, node.end)))
            elif node.children is None and _BARE_BRACKET.search(self.text, node.start, node.end):
                message = "Brackets here do not fit compel's grammar: they are text."
                self.issues.append(Issue("bracket-as-text", message, self.span(node.start, node.end)))

    def flat(self, nodes: Sequence[_Node]) -> tuple[Fragment | Swap, ...]:
        """Words with their products of weights, neighbours of equal weight joined."""
        return tuple(self.fused(self.leaves(nodes, 1.0)))

    def leaves(self, nodes: Sequence[_Node], scale: float) -> Iterator[tuple[_Text, float] | Swap]:
        self.collect(nodes)
        for node in nodes:
            if node.edited is not None:
                yield self.swap(node, scale)
            elif node.children is not None:
                yield from self.leaves(node.children, scale * node.weight)
            else:
                yield _Text(self.text[node.start : node.end], self.places[node.start : node.end]), scale

    def swap(self, node: _Node, scale: float) -> Swap:
        original, edited = (
            tuple(part for part in self.fused(self.leaves(side or (), scale)) if isinstance(part, Fragment))
            or (_EMPTY,)
            for side in (node.children, node.edited)
        )
        given = {option.name: option.value for option in node.options if isinstance(option.value, float)}
        settings = {"s_start": 0.0, "s_end": 0.0, "t_start": 0.2, "t_end": 1.0}
        settings |= {str(name): value for name, value in given.items() if name in settings}
        if "shape_freedom" in given:
            settings["s_end"] = 1.0 - max(given["shape_freedom"], 0.0) ** (1.0 / 3.0)
        message = ".swap() needs control of the sampler's attention, which an encoder has not: the original is encoded."
        self.issues.append(Issue("swap", message, original[0].span))
        return Swap(original, edited, tuple(settings.items()))

    def fused(self, leaves: Iterator[tuple[_Text, float] | Swap]) -> Iterator[Fragment | Swap]:
        run: list[_Text] = []
        weight = 1.0
        for leaf in leaves:
            if isinstance(leaf, Swap):
                yield from _fragment(run, weight)
                run = []
                yield leaf
                continue
            if run and leaf[1] != weight:
                yield from _fragment(run, weight)
                run = []
            run.append(leaf[0])
            weight = leaf[1]
        yield from _fragment(run, weight)


class _Text(NamedTuple):
    """A word and where each of its characters stands in the source."""

    characters: str
    places: list[int]


_EMPTY = Fragment((Piece("", Span(0, 0)),))


def _single(prompt: tuple[Fragment | Swap, ...], weight: float = 1.0) -> Section:
    return Section((prompt,), weight=weight)


def _encoded(part: Fragment | Swap) -> tuple[Fragment, ...]:
    """The fragments of a part that an encoder reads."""
    return part.original if isinstance(part, Swap) else (part,)


def _fragment(run: list[_Text], weight: float) -> Iterator[Fragment]:
    """Words of one weight as one fragment, a space between them.

    An escape loses its backslash each time compel makes a fragment of it: once as it is read, once as the tree is
    flattened, and once for each word joined to it.
    """
    if not run:
        return
    pieces: list[Piece] = []
    for index, word in enumerate(run):
        characters, places = word
        passes = 2 + (len(run) - max(index, 1))
        while passes and (shorter := _unescaped(characters, places)) is not None:
            characters, places = shorter
            passes -= 1
        if index:
            end = pieces[-1].span.end
            pieces.append(Piece(" ", Span(end, end)))
        pieces += _runs(characters, places) or [Piece("", Span(places[0], places[0]) if places else Span(0, 0))]
    yield Fragment(tuple(pieces), weight)


def _unescaped(characters: str, places: list[int]) -> _Text | None:
    """Without the backslashes of its escapes; None if it has none."""
    gone = {match.start() for match in _ESCAPE.finditer(characters)}
    if not gone:
        return None
    kept = [index for index in range(len(characters)) if index not in gone]
    return _Text("".join(characters[index] for index in kept), [places[index] for index in kept])


def _runs(characters: str, places: list[int]) -> list[Piece]:
    """Pieces whose characters stand behind one another in the source."""
    pieces: list[Piece] = []
    start = 0
    for index in range(1, len(characters) + 1):
        if index == len(characters) or places[index] != places[index - 1] + 1:
            pieces.append(Piece(characters[start:index], Span(places[start], places[index - 1] + 1)))
            start = index
    return pieces


def _spaced_commas(source: str) -> tuple[str, list[int]]:
    """The text with a space behind each comma that has none, and for each character its place in the source."""
    parts: list[str] = []
    places: list[int] = []
    position = 0
    for match in re.finditer(r",(\S)", source):
        comma = match.start()
        parts += [source[position : comma + 1], " ", match[1]]
        places += [*range(position, comma + 1), comma, match.start(1)]
        position = match.end()
    parts.append(source[position:])
    places += range(position, len(source))
    return "".join(parts), places
