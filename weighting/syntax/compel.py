r"""Prompt syntax of the compel library, as InvokeAI and diffusers users write it.

    word+  word--          1.1 or 0.9 for each sign, as a power
    (text)1.3  "text"1.3   that weight; (text)++ and (text)- as well, nothing between bracket and weight
    (text).attend(1.3)     the same, written out
    \( \) \"               those characters
    ("a", "b").blend(1, 2)           one conditioning mixed from several prompts
    ("a", "b").and(1, 0.5)           several prompts one after another
    cat.swap(dog)                    needs control of the sampler's attention; an encoder reads the original
    withLora(name, 0.5)              leaves no text

Weights multiply, outer first. Neighbours of equal weight are joined with a space. Anything that does not fit the
grammar is text.

Source: docs/reference/syntaxes.md, "compel syntax"; behaviour of compel 2.5.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..text.prompt import (
    Fragment,
    Issue,
    Lora,
    Piece,
    Prompt,
    PromptError,
    Section,
    Span,
    Swap,
    encoded_fragments,
    pieces_of,
    shortened,
)
from .compel_grammar import MAX_DEPTH, CompelNode, CompelParser, Several
from .record import NUMBER_IN_BRACKETS, OF_A1111, OF_EXTENSIONS, OF_SWARM, Syntax, decimal

_ODD_SPACE = re.compile(r"[\v\f]")
_BARE_BRACKET = re.compile(r"(?<!\\)[()]")
# from the first of its backslashes only: starting at each of them would be quadratic
_ESCAPE = re.compile(r'(?<!\\)(\\+)[()"]')


def parse(source: str, *, strict: bool = False) -> Prompt:
    """Read a prompt as the compel library does.

    Args:
        source: Any string.
        strict: Whether to raise where compel raises, instead of reporting an issue.

    Returns:
        The prompt. Its ``sections`` represent ``.and`` and ``.blend``; its ``parts`` are all fragments in order.

    Raises:
        PromptError: In strict mode, if a blend or conjunction has different numbers of weights and prompts, or text
            follows a blend.

    >>> [(f.text, f.weight) for f in parse("a tall man (picking apricots+)++").fragments]
    [('a tall man', 1.0), ('picking', 1.2100000000000002), ('apricots', 1.3310000000000004)]
    """
    return _NodeReader(source, strict=strict).read()


class _NodeReader:
    """Turns nodes into fragments whose pieces refer to the source."""

    def __init__(self, source: str, *, strict: bool) -> None:
        self.source = source
        self.strict = strict
        self.text, self.positions = _spaced_commas(_ODD_SPACE.sub(" ", source))
        self.positions.append(len(source))
        self.parser = CompelParser(self.text)
        self.loras: list[Lora] = []
        self.issues: list[Issue] = []

    def read(self) -> Prompt:
        odd = _ODD_SPACE.search(self.source)
        if not self.source.strip():
            sections = (_single((_EMPTY,)),)
        else:
            if odd:
                message = "Vertical tabs and form feeds, which compel refuses, are read as spaces."
                self.problem("odd-space", message, Span(*odd.span()))
            sections = self.sections()
        parts = encoded_fragments(part for section in sections for prompt in section.prompts for part in prompt)
        if self.parser.is_too_deep:
            message = f"Brackets nested deeper than {MAX_DEPTH} are text."
            self.issues.append(Issue("too-deep", message, Span(0, len(self.source))))
        return Prompt.of(self.source, "compel", parts, self.issues, sections=sections, loras=tuple(self.loras))

    def sections(self) -> tuple[Section[Fragment | Swap], ...]:
        end = len(self.text)
        conjunction = self.parser.several((".and", ".add"), 0, end)
        if conjunction is not None:
            weights, _ = self.weights(conjunction)
            self.ignored(conjunction.end, "text after .and() is ignored, as in compel")
            prompts = [self.flat(nodes) for nodes in conjunction.parts]
            return tuple(_single(prompt, weight) for prompt, weight in zip(prompts, weights, strict=True) if prompt)
        before, start = self.parser.many(0, end, [self.parser.lora])
        blend = self.parser.several((".blend",), start, end)
        if blend is not None:
            weights, normalize = self.weights(blend)
            after, stop = self.parser.many(blend.end, end, [self.parser.lora])
            self.ignored(stop, "text after .blend() is ignored; compel refuses it", is_error=True)
            self.collect(before)
            prompts = tuple(map(self.flat, blend.parts))
            self.collect(after)
            if not all(prompts):
                message = "A part of the blend holds no text, which compel refuses: it is read as the empty prompt."
                self.problem("empty-part", message, self.span(0, blend.end))
                prompts = tuple(prompt or (_EMPTY,) for prompt in prompts)
            if any(isinstance(part, Swap) for prompt in prompts for part in prompt):
                self.problem("swap-in-blend", "A blend cannot hold a .swap().", self.span(0, blend.end))
            return (Section(prompts, tuple(weights), normalize=normalize),)
        nodes, _ = self.parser.prompt(0, end)
        prompt = self.flat(nodes)
        return (_single(prompt),) if prompt else ()

    def weights(self, several: Several) -> tuple[list[float], bool]:
        """Weights of the prompts, and whether to divide them by their sum."""
        options = list(several.options)
        normalize = several.operator != ".blend" or not options or options[-1].key != "no_normalize"
        if not normalize:
            options.pop()
        words = [str(option.key) for option in options if option.number is None]
        if words:
            more = f", and {len(words) - 1} more are" if words[1:] else " is"
            message = f"“{shortened(words[0])}”{more} no weight: left out."
            self.problem("unreadable-weight", message, self.span(0, several.end))
        numbers = [option.number for option in options if option.number is not None]
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
        """Report that the text from here on, if any, has no effect."""
        if self.parser.skip(position, len(self.text)) < len(self.text):
            span = self.span(position, len(self.text))
            if is_error:
                self.problem("ignored-text", f"The {message}.", span)
            else:
                self.issues.append(Issue("ignored-text", f"The {message}.", span))

    def problem(self, code: str, message: str, span: Span) -> None:
        """Report something that compel refuses."""
        if self.strict:
            raise PromptError(message, self.source, span)
        self.issues.append(Issue(code, message, span))

    def span(self, start: int, end: int) -> Span:
        """Span in the source of a stretch of the text."""
        return Span(self.positions[start], self.positions[end])

    def collect(self, nodes: Sequence[CompelNode]) -> None:
        """Collect LoRAs, and brackets that have become text."""
        for node in nodes:
            if node.lora is not None:
                self.loras.append(node.lora)
                message = f"The LoRA “{shortened(node.lora.name)}” is named in the text; an encoder does not load it."
                self.issues.append(Issue("lora", message, self.span(node.start, node.end)))
            elif node.children is None and _BARE_BRACKET.search(self.text, node.start, node.end):
                message = "Brackets here do not fit compel's grammar: they are text."
                self.issues.append(Issue("bracket-as-text", message, self.span(node.start, node.end)))

    def flat(self, nodes: Sequence[CompelNode]) -> tuple[Fragment | Swap, ...]:
        """Words with their products of weights, neighbours of equal weight joined."""
        return tuple(self.fused(self.leaves(nodes, 1.0)))

    def leaves(self, nodes: Sequence[CompelNode], scale: float) -> Iterator[tuple[_SourceWord, float] | Swap]:
        for node in nodes:
            self.collect([node])
            if node.edited is not None:
                yield self.swap(node, scale)
            elif node.children is not None:
                yield from self.leaves(node.children, scale * node.weight)
            else:
                yield _SourceWord(self.text[node.start : node.end], self.positions[node.start : node.end]), scale

    def swap(self, node: CompelNode, scale: float) -> Swap:
        original, edited = (
            tuple(self.fused(self.leaves(side or (), scale))) or (_EMPTY,) for side in (node.children, node.edited)
        )
        options = {option.name: option.value for option in node.options if isinstance(option.value, float)}
        settings = {"s_start": 0.0, "s_end": 0.0, "t_start": 0.2, "t_end": 1.0}
        if "shape_freedom" in options:
            settings["s_end"] = 1.0 - max(options["shape_freedom"], 0.0) ** (1.0 / 3.0)
        settings |= {str(name): value for name, value in options.items() if name in settings}
        place = encoded_fragments(original)[0].span
        message = (
            ".swap() needs control of the sampler's attention, which an encoder does not have: the original is encoded."
        )
        self.issues.append(Issue("swap", message, place))
        if any(isinstance(part, Swap) for part in (*original, *edited)):
            message = (
                "This .swap() is inside another one, which compel reads but cannot encode: the innermost original "
                "is encoded."
            )
            self.issues.append(Issue("nested-swap", message, place))
        return Swap(original, edited, tuple(settings.items()))

    def fused(self, leaves: Iterator[tuple[_SourceWord, float] | Swap]) -> Iterator[Fragment | Swap]:
        run: list[_SourceWord] = []
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


class _SourceWord(NamedTuple):
    """A word with the positions of its characters in the source."""

    characters: str
    positions: list[int]


_EMPTY = Fragment((Piece("", Span(0, 0)),))


def _single(prompt: tuple[Fragment | Swap, ...], weight: float = 1.0) -> Section[Fragment | Swap]:
    return Section((prompt,), weight=weight)


def _fragment(run: list[_SourceWord], weight: float) -> Iterator[Fragment]:
    """Join words of equal weight into a fragment, separated by spaces.

    An escape loses a backslash each time compel makes a fragment of it: once when it is read, once when the tree is
    flattened, and once for each word joined to it.
    """
    if not run:
        return
    pieces: list[Piece] = []
    for index, word in enumerate(run):
        characters, positions = _unescaped(word, 2 + (len(run) - max(index, 1)))
        if index:
            end = pieces[-1].span.end
            pieces.append(Piece(" ", Span(end, end)))
        pieces += pieces_of(characters, positions) or [
            Piece("", Span(positions[0], positions[0]) if positions else Span(0, 0))
        ]
    yield Fragment(tuple(pieces), weight)


def _unescaped(word: _SourceWord, passes: int) -> _SourceWord:
    """Remove the backslashes of escapes: each pass removes the last one before a character."""
    characters, positions = word
    ends = [(match.end(1), len(match[1])) for match in _ESCAPE.finditer(characters)]
    gone = {index for end, count in ends for index in range(end - min(count, passes), end)}
    if not gone:
        return word
    indices = [index for index in range(len(characters)) if index not in gone]
    return _SourceWord("".join(characters[index] for index in indices), [positions[index] for index in indices])


def _spaced_commas(source: str) -> tuple[str, list[int]]:
    """The text with a space after each comma that has none, and the position of each character in the source."""
    commas = {match.start() for match in re.finditer(r",(\S)", source)}
    positions = [at for index in range(len(source)) for at in ([index, index] if index in commas else [index])]
    return re.sub(r",(\S)", r", \1", source), positions


def write(text: str, weight: float) -> Iterator[str]:
    """Write text with a weight.

    >>> list(write("a cat", 1.2)), list(write("a cat", -1))
    (['(a cat)1.2'], [])
    """
    escaped = re.sub(r'[()"]', r"\\\g<0>", text.strip())
    if weight == 1.0:
        yield escaped
    elif math.isfinite(weight) and weight >= 0:
        yield f"({escaped}){decimal(weight)}"


SYNTAX = Syntax(
    parse,
    "word+ and (word)1.2, .blend() and .and().",
    chunking="compel sentences",
    write=write,
    is_spaced=True,
    foreign=(NUMBER_IN_BRACKETS, *OF_A1111, *OF_EXTENSIONS, OF_SWARM),
    write_lora=lambda lora: f"withLora({lora.name}, {decimal(lora.weight)})",
)
