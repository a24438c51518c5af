"""A prompt as plain data that every front end draws: chips of tokens, chunks, issues.

The view is JSON-able and counts UTF-16 units, as a browser does; see `view` for its keys. `token_table` is the same for
a terminal.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ...encoder.tokenizer import bytes_of, default_tokenizer
from ..phrases.bind import bound_passes
from ..syntax import syntax_of
from ..text.chunks import Token
from ..text.embeddings import TokenId
from ..text.prompt import Break, Span, unmarked
from ..text.tags import COMMENT, bare
from .prompt_reader import ReadPrompt

VERSION = 2
"""Incremented when a key of the view changes its meaning."""
MAX_CHIP_TEXT = 300
"""Maximum length of a chip's text; longer ones are cut with an ellipsis."""

TAG_ISSUES = ("lora", "lora-without-step", "unknown-tag")
"""Codes of issues about a part of a prompt that is removed as a whole."""
_CONTRACTION = re.compile(r"['’]\w")


def view(parsed: ReadPrompt, tags: Iterable[Span] = ()) -> dict[str, Any]:
    """The JSON view of a prompt.

    A chip is drawn as one box: the tokens of one stretch of text, such as the bytes of an emoji or the vectors of an
    embedding. Special tokens are left out.

    Args:
        parsed: The prompt.
        tags: Tags in it that no issue is about.

    Returns:
        ``version``; ``text``; the options ``syntax``, ``scheme``, ``normalization``, ``chunking``, ``padding``;
        ``num_tokens``; ``encodings``, such as ``12 encodings``, which is empty here and set by `encodings_text` where
        they are counted; ``bound``, such as ``2 phrases kept apart in 3 passes``, or empty; ``issues``, each with
        ``code``, ``message``, ``start``, ``end`` and, about a form of another syntax, that syntax as ``written_in``,
        or, about one that is probably meant otherwise, the text to put there as ``fix``; and ``chunks``, each with
        ``num_tokens``, ``capacity`` (None: any number), ``has_break`` (a BREAK ends it) and ``chips``. A chip has

        - ``text``: its label, on one line: as typed, else an embedding's name or ``#`` and the id;
        - ``note``: small text after it, such as ``×3 1.4``: number of tokens and weight, if not 1. Neighbours in one
          word with the same weight show it only once, on the last;
        - ``weight``: final weight;
        - ``ids``: ids of its tokens; a vector of an embedding is named as in ``name[0]``. A LoRA's tag, a separate
          hidden chip, has none, and a comment's neither;
        - ``start``, ``end``: its source, in UTF-16 units of ``text``; both 0 if there is none;
        - ``joins``: whether it continues the word of the previous chip;
        - ``hidden``: whether it is hidden from all others;
        - ``comment``: true for a comment, if it is one;
        - ``phrase``: number of the bound phrase it is in, counted from 1, if any;
        - ``problems``: indices of the issues about it.

    >>> from ...encoder.tokenizer import default_tokenizer
    >>> from ..options import EncodeOptions
    >>> from .prompt_reader import read_prompt
    >>> v = view(read_prompt("a (cat:1.2)", EncodeOptions(), default_tokenizer()))
    >>> [(chip["text"], chip["note"]) for chip in v["chunks"][0]["chips"]]
    [('a', ''), ('cat', '1.2')]
    """
    text, options = parsed.prompt.source, parsed.options
    offset = utf16_offsets(text)
    hides = options.hidden_from == "everything"
    chunks: list[dict[str, Any]] = [
        {
            "num_tokens": chunk.num_content,
            "capacity": None if parsed.layout.is_open else parsed.layout.capacity,
            "has_break": False,
            "chips": _chips(chunk.content, text, offset, hides=hides),
        }
        for chunk in parsed.chunks
    ]
    issues = [
        {
            **{"code": issue.code, "message": issue.line},
            **{"start": offset(issue.span.start), "end": offset(issue.span.end)},
            **({"written_in": issue.written_in} if issue.written_in else {}),
            **({"fix": issue.fix} if issue.fix else {}),
        }
        for issue in parsed.issues
    ]
    breaks = [offset(part.span.start) for part in parsed.prompt.parts if isinstance(part, Break)]
    _mark_breaks(chunks, breaks)
    comments = {issue.span for issue in parsed.issues if issue.code == COMMENT}
    spans = sorted({*tags, *comments, *(issue.span for issue in parsed.issues if issue.code in TAG_ISSUES)})
    left_out = (
        chip_of(
            " ".join(text[slice(*span)].split()), (offset(span.start), offset(span.end)), is_hidden=span not in comments
        )
        | ({"comment": True} if span in comments else {})
        for span in spans
    )
    _add_tags(chunks, breaks, list(left_out))
    chips = [chip for chunk in chunks for chip in chunk["chips"]]
    if parsed.terms:  # they follow the rest, wherever they were typed
        chips.sort(key=lambda chip: chip["start"])
    _mark_problems(chips, issues)
    return {
        "version": VERSION,
        "text": text,
        "syntax": options.syntax,
        "scheme": options.scheme,
        "normalization": options.normalization,
        "chunking": options.chunking,
        "padding": options.padding,
        "num_tokens": sum(chunk.num_content for chunk in parsed.chunks),
        "encodings": "",
        "bound": bound_text(parsed),
        "chunks": chunks,
        "issues": issues,
    }


def min_size(parsed: ReadPrompt) -> int:
    """Lower bound of the size of a prompt's `view` as JSON, in bytes, found without making it."""
    spans = [token.span for chunk in parsed.chunks for token in chunk.content]
    num_chips = bool(spans) + sum(span is None or span != following for span, following in pairwise(spans))
    return num_chips * _LEAST_CHIP


def token_table(parsed: ReadPrompt) -> str:
    """Table of every chunk's tokens with position, id, text, weight and bytes, then the issues, for a terminal.

    Bytes are shown for tokens that are parts of characters.
    """
    lines: list[str] = []
    chunks = parsed.chunks  # computed at each access
    tokens = [token for chunk in chunks for token in chunk.content]
    is_clip = not parsed.layout.is_open
    parts = iter(token_bytes(tokens, default_tokenizer().symbol) if is_clip else [None] * len(tokens))
    for number, chunk in enumerate(chunks, 1):
        if parsed.layout.is_open:
            lines.append(counted(chunk.num_content, "token"))
        else:
            lines.append(f"chunk {number} of {len(chunks)}: {chunk.num_content}/{parsed.layout.capacity} tokens")
        for position, token in enumerate(chunk.content, 1):
            weight = "" if token.weight == 1.0 else f"{token.weight:.4g}"
            text = text_of(token, parsed.prompt.source)
            part = next(parts)
            line = f"{position:>5} {id_of(token.id):>7}  {text!r:<24}{weight:>8}"
            lines.append(f"{line}  {'' if part is None else part}".rstrip())
    lines += [f"{counted(len(parsed.issues), 'problem')}:"] if parsed.issues else []
    lines += [f"  {issue.line}" for issue in parsed.issues]
    return "\n".join(lines)


def encoded_text(parsed: ReadPrompt, *, is_timed: bool = False) -> str:
    """A prompt as it was encoded: as typed, weights included, without its comments and the LoRAs that it names.

    Args:
        parsed: The prompt.
        is_timed: Whether it is a text of a timed prompt, of which the whole is wanted.

    >>> from ...encoder.tokenizer import default_tokenizer
    >>> from ..options import EncodeOptions
    >>> from .prompt_reader import read_prompt
    >>> text = "a (cat:1.2)<lora:ink:0.8> # in a bowl"
    >>> encoded_text(read_prompt(text, EncodeOptions(syntax="a1111"), default_tokenizer()))
    'a (cat:1.2) '
    """
    source, options = parsed.prompt.source, parsed.options
    has_tags = is_timed or syntax_of(options.syntax).has_tags
    removed = {*bare(source, has_comments=options.comment_marks, has_tags=has_tags).spans}
    removed |= {issue.span for issue in parsed.issues if issue.code in TAG_ISSUES}  # compel's withLora()
    return "".join(source[slice(*span)] for span in unmarked(len(source), sorted(removed)))


def counted(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> counted(1, "chunk"), counted(2, "chunk")
    ('1 chunk', '2 chunks')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def encodings_text(num_encodings: int, num_chunks: int) -> str:
    """Number of encodings of a prompt, if more than a host's own call takes: each chunk once, and the empty prompt.

    >>> encodings_text(12, 1), encodings_text(2, 1)
    ('12 encodings', '')
    """
    return counted(num_encodings, "encoding") if num_encodings > num_chunks + 1 else ""


def bound_text(parsed: ReadPrompt) -> str:
    r"""Number of bound phrases of a prompt, and of passes; empty if there are none.

    >>> from ...encoder.tokenizer import default_tokenizer
    >>> from ..options import EncodeOptions
    >>> from .prompt_reader import read_prompt
    >>> bound_text(read_prompt("a red cat, a blue dog", EncodeOptions(bind="red cat\nblue dog"), default_tokenizer()))
    '2 phrases kept apart in 3 passes'
    """
    if not parsed.options.binds:
        return ""
    numbers = bound_passes(parsed.chunks, parsed.options.bind_rest)
    count, passes = len(numbers) - numbers.count(0), 1 + len(numbers)
    return f"{counted(count, 'phrase')} kept apart in {passes} pass{'' if passes == 1 else 'es'}"


def weight_text(weight: float) -> str:
    """Format a weight with as few digits as needed.

    >>> [weight_text(weight) for weight in (1.4, 1 / 1.1, 1.0004, -0.5, 0.0, 1e30)]
    ['1.4', '0.91', '1.0004', '-0.5', '0', '1e30']
    """
    if abs(weight) >= 1000 or 0 < abs(weight) < 0.01:
        return f"{weight:.2g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    short = f"{weight:.2f}".rstrip("0").rstrip(".")
    return f"{weight:.6g}" if short == "1" else short


def id_of(token_id: TokenId) -> int | str:
    """A token's id, or the name of an embedding's vector, as in ``name[0]``."""
    return token_id if isinstance(token_id, int) else f"{token_id.name}[{token_id.index}]"


def text_of(token: Token, source: str) -> str:
    """Source text of a token; empty if there is none."""
    return source[slice(*token.span)] if token.span else ""


def _chips(tokens: Sequence[Token], source: str, offset: Callable[[int], int], *, hides: bool) -> list[dict[str, Any]]:
    """Chips of one chunk, still without problems."""
    groups: list[tuple[Token, list[int | str]]] = []
    for token in tokens:
        previous = groups[-1][0] if groups else None
        if previous is None or not _is_one_chip(previous, token, hides=hides):
            groups.append((token, []))
        groups[-1][1].append(id_of(token.id))
    joins = [
        False,
        *(_is_one_word(previous.at, following.at, source) for (previous, _), (following, _) in pairwise(groups)),
        False,
    ]
    chips: list[dict[str, Any]] = []
    for index, (token, ids) in enumerate(groups):
        (start, end), weight, note = token.at, token.weight, ""
        if weight != 1.0 and not (joins[index + 1] and groups[index + 1][0].weight == weight):
            note = weight_text(weight)
        if len(ids) > 1:
            note = f"×{len(ids)} {note}".rstrip()
        text = " ".join(source[start:end].split()) or (ids[0] if isinstance(ids[0], str) else f"#{ids[0]}")
        place = offset(start), offset(end)
        chips.append(chip_of(text, place, ids, note, weight, joins=joins[index], is_hidden=token.is_hidden and hides))
        if token.phrase:
            chips[-1]["phrase"] = token.phrase
    return chips


def chip_of(
    text: str,
    place: tuple[int, int],
    ids: Sequence[int | str] = (),
    note: str = "",
    weight: float = 1.0,
    *,
    joins: bool = False,
    is_hidden: bool = True,
) -> dict[str, Any]:
    """A chip, still without problems; by default a tag's, which has no tokens."""
    return {
        "text": text if len(text) <= MAX_CHIP_TEXT else f"{text[:MAX_CHIP_TEXT]}…",
        "note": note,
        "weight": weight,
        "ids": list(ids),
        "start": place[0],
        "end": place[1],
        "joins": joins,
        "hidden": is_hidden,
        "problems": [],
    }


_LEAST_CHIP = len(json.dumps(chip_of("a", (0, 0), [0], joins=True), separators=(",", ":")))
"""Size of the smallest chip as JSON, in bytes."""


def _add_tags(chunks: Sequence[dict[str, Any]], breaks: Sequence[int], tags: Sequence[dict[str, Any]]) -> None:
    """Insert the chips of tags and comments, which have no tokens and are given in order."""
    # a chip without a position, which says 0, is treated as if at the previous one
    starts = [list(accumulate((chip["start"] for chip in chunk["chips"]), max)) for chunk in chunks]
    waiting = deque(sorted((each[0], number) for number, each in enumerate(starts) if each))
    added: list[list[tuple[int, dict[str, Any]]]] = [[] for _ in chunks]  # with the number of chips before each
    number = 0
    for tag in tags:
        start = tag["start"]
        while waiting and waiting[0][0] <= start:
            number = max(number, waiting.popleft()[1])
        index = bisect_right(starts[number], start)
        before = [*starts[number][index - 1 : index], *(chip["start"] for _, chip in added[number][-1:])]
        following = bisect_right(breaks, max(before, default=start))
        if number + 1 < len(chunks) and following < len(breaks) and breaks[following] < start:
            number, index = number + 1, 0
        added[number].append((index, tag))
    for chunk, new in zip(chunks, added, strict=True):
        if new:
            chips = [((index, 1), chip) for index, chip in enumerate(chunk["chips"])]
            chips += [((index, 0), chip) for index, chip in new]
            chunk["chips"] = [chip for _, chip in sorted(chips, key=lambda entry: entry[0])]


def _is_one_chip(token: Token, following: Token, *, hides: bool) -> bool:
    """Whether two tokens come from one stretch of text and are treated alike. Tokens without text never are."""
    span = token.span
    if span is None or span != following.span or span.start == span.end:
        return False
    return token.weight == following.weight and not (hides and token.is_hidden != following.is_hidden)


def _is_one_word(span: Span, following: Span, source: str) -> bool:
    """Whether nothing is between two tokens, and both are letters, digits or other characters; so is ``don't``."""
    if not span.start < span.end == following.start < following.end:
        return False
    following_text = source[slice(*following)]
    kind = _kind(source[span.end - 1])
    return kind == _kind(following_text[0]) or (kind == "letter" and _CONTRACTION.match(following_text) is not None)


def _kind(character: str) -> str:
    return {"L": "letter", "M": "letter", "N": "digit"}.get(unicodedata.category(character)[0], "other")


def _mark_breaks(chunks: Sequence[dict[str, Any]], starts: Sequence[int]) -> None:
    """Set whether a BREAK ends each chunk: one before the next chip. Each BREAK ends one chunk."""
    breaks = deque(starts)
    places = [*(chip["start"] for chunk in chunks for chip in chunk["chips"]), math.inf]
    for chunk, end in zip(chunks, accumulate(len(chunk["chips"]) for chunk in chunks), strict=True):
        if breaks and breaks[0] < places[end]:
            chunk["has_break"] = True
            breaks.popleft()


def _mark_problems(chips: Sequence[dict[str, Any]], issues: Sequence[dict[str, Any]]) -> None:
    """Assign each issue to the chips it overlaps; one about syntax, without tokens, to the next chip or the last."""
    # spans never go backwards; a chip without a position, which says 0, is treated as if at the previous one
    starts = list(accumulate((chip["start"] for chip in chips), max))
    ends = list(accumulate((chip["end"] for chip in chips), max))
    for number, issue in enumerate(issues if chips else ()):
        first = min(bisect_right(ends, issue["start"]), len(chips) - 1)
        for chip in chips[first : max(first + 1, bisect_left(starts, issue["end"]))]:
            chip["problems"].append(number)


def utf16_offsets(text: str) -> Callable[[int], int]:
    """Function from code point offsets to UTF-16 offsets."""
    if text.isascii():
        return lambda offset: offset
    offsets: Sequence[int] = [0, *accumulate(2 if ord(character) > 0xFFFF else 1 for character in text)]
    return offsets.__getitem__


MAX_GROUP = 64
"""Maximum number of tokens examined for the end of a character."""


class TokenBytes(NamedTuple):
    """Part of a text that a token represents, if characters are split."""

    content: bytes
    """Its bytes."""
    first: int
    """Number of its first byte in the text, counted from 1."""
    text: str
    """The shortest surrounding text that no token splits, as the tokenizer reads it."""

    def __str__(self) -> str:
        """Description, such as ``f0 9f a6: bytes 1 to 3 of 4 of 🦊``."""
        last, total = self.first + len(self.content) - 1, len(self.text.encode())
        places = f"bytes {self.first} to {last}" if last > self.first else f"byte {last}"
        return f"{self.content.hex(' ')}: {places} of {total} of {self.text}"


def token_bytes(tokens: Iterable[Token], symbol: Callable[[int], str]) -> list[TokenBytes | None]:
    r"""Find the tokens that are not whole characters.

    >>> from ...encoder.tokenizer import default_tokenizer
    >>> tokens = [Token(one.id) for one in default_tokenizer()("fox 🦊")]
    >>> [str(one) for one in token_bytes(tokens, default_tokenizer().symbol)]
    ['None', 'f0 9f a6: bytes 1 to 3 of 4 of 🦊', '8a: byte 4 of 4 of 🦊']
    """
    parts: list[TokenBytes | None] = []
    group: list[bytes] = []

    def close(text: str) -> None:
        first = 1
        for content in group:
            parts.append(TokenBytes(content, first, text) if len(group) > 1 else None)
            first += len(content)
        group.clear()

    for token in tokens:
        if isinstance(token.id, int):
            group.append(bytes_of(symbol(token.id)))
            if not _is_whole(group) and len(group) < MAX_GROUP:
                continue
        close(b"".join(group).decode(errors="replace"))
        if not isinstance(token.id, int):
            parts.append(None)
    close(b"".join(group).decode(errors="replace"))
    return parts


def _is_whole(group: Iterable[bytes]) -> bool:
    """Whether a character ends with the last of some bytes."""
    try:
        b"".join(group).decode()
    except UnicodeDecodeError:
        return False
    return True
