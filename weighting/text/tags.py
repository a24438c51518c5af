"""Comments and A1111's tags for extra networks, ``<lora:name:0.8>``: their meaning, and the prompt without them.

Both are taken out of a prompt before anything else is read. A1111 and Forge read everything from ``#`` to the end of
its line as a comment, unless a setting of theirs is off. They replace a comment by a line break; here the one that
ended the line remains, which a tokenizer reads the same.

Source: docs/reference/syntaxes.md, "Comments" and "LoRA tags"; behaviour of stable-diffusion-webui-forge
dfdcbab6 (2025-06), of sd-webui-loractl b48cf60 (2023-09) and of sd-webui-lora-block-weight b403cb7 (2025-06).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from .lora_blocks import BlockStrengths, read_blocks
from .prompt import Fragment, Issue, Piece, Span, quoted, shortened

LORA_KINDS = ("lora", "lyco")
"""Kinds of LoRA tags; the second is from an older extension."""

_START = re.compile(r"<(\w+):(?!>)")


class Tag(NamedTuple):
    """A tag in a prompt."""

    kind: str
    """Kind in front: ``lora``, ``hypernet``, ..."""
    items: tuple[str, ...]
    """Items between the colons after it."""
    span: Span
    """The whole tag, including brackets."""


Points = tuple[tuple[float, float], ...]
"""Strengths, each with the step at which it is reached, ascending: a share of the steps if none is above 1."""


class LoraTag(NamedTuple):
    """A LoRA named in a prompt."""

    name: str
    """Name of the file without suffix, or the alias in its metadata."""
    clip_strength: float
    """Strength for the text encoder."""
    model_strength: float
    """Strength for the diffusion model; the same unless given."""
    span: Span
    """The tag."""
    clip_points: Points = ()
    """Strengths for the text encoder if they change with the steps; `clip_strength` is then 1."""
    model_points: Points = ()
    """The same for the diffusion model."""
    start: int = 0
    """Step from which it acts, as in sd-webui-lora-block-weight."""
    stop: int | None = None
    """Step from which it acts no longer; None if it acts to the end."""
    blocks: BlockStrengths | None = None
    """Factors of its strengths by block; None if they are 1."""

    @property
    def written(self) -> str:
        """Strength for the text encoder, and blocks, in words."""
        strength = ",".join(f"{strength:g}@{step:g}" for strength, step in self.clip_points)
        return f"{strength or f'{self.clip_strength:g}'}{self.of_blocks}"

    @property
    def of_blocks(self) -> str:
        """Its blocks, to follow its strength; empty if all count 1."""
        return f" (blocks {shortened(self.blocks.name, 40)})" if self.blocks else ""


def take_tags(source: str) -> tuple[Fragment, tuple[Tag, ...]]:
    """Remove the tags from a prompt.

    Args:
        source: Any string.

    Returns:
        The prompt without them, in pieces that know their positions, and the tags.

    >>> text, tags = take_tags("a <lora:ink:0.8> cat")
    >>> text.text, tags[0].items
    ('a  cat', ('ink', '0.8'))
    """
    tags: list[Tag] = []
    pieces: list[Piece] = []
    position = search = 0
    while (start := _START.search(source, search)) and (end := source.find(">", start.end())) >= 0:
        span = Span(start.start(), end + 1)
        tags.append(Tag(start[1], tuple(source[start.end() : end].split(":")), span))
        pieces.append(Piece(source[position : span.start], Span(position, span.start)))
        position = search = span.end
    pieces.append(Piece(source[position:], Span(position, len(source))))
    return Fragment(tuple(piece for piece in pieces if piece.text)), tuple(tags)


def read_loras(tags: tuple[Tag, ...], *, second_pass: bool = False) -> tuple[list[LoraTag], list[Issue]]:
    """LoRAs among some tags.

    As in Forge, items with one equals sign are options, and the others a name and strengths. A strength that cannot be
    read leaves the one before it. In a second pass, such as hires. fix, ``hr=``, ``hrte=`` and ``hrunet=`` count
    instead, as in sd-webui-loractl.

    >>> [lora[:3] for lora in read_loras(take_tags("<lora:ink:0.8:te=0.5>")[1])[0]]
    [('ink', 0.5, 0.5)]
    >>> read_loras(take_tags("<lora:ink:0.2@0.2,1@0.5>")[1])[0][0].model_points
    ((0.2, 0.2), (1.0, 0.5))
    """
    loras: list[LoraTag] = []
    issues: list[Issue] = []
    seen: set[LoraTag] = set()
    for tag in tags:
        written = f"<{tag.kind}:{':'.join(tag.items)}>"
        if (inner := written.find("<", 1)) > 0:
            head = written[:inner].rstrip(" \t\r\n,")
            message = f"The tag “{shortened(head)}” is never closed: did you mean “{shortened(f'{head}>')}”?"
            issues.append(Issue("unclosed-tag", message, tag.span, fix=f"{head}>{written[len(head) :]}"))
        if tag.kind in LORA_KINDS:
            loras.append(_read_lora(tag, issues, second_pass=second_pass))
            if (lora := loras[-1]._replace(span=Span(0, 0))) in seen:
                message = (
                    f"The LoRA “{shortened(lora.name)}” is named again at the same strength: it acts once, as in Forge."
                )
                issues.append(Issue(REPEATED_LORA, message, tag.span))
            seen.add(lora)
        else:
            kind = tag.kind.lower()
            fix = f"<{kind}{written[len(kind) + 1 :]}" if kind in LORA_KINDS else ""
            message = f"“{shortened(written)}” is an A1111 tag, not text. Only LoRAs can be loaded here."
            issues.append(Issue("unknown-tag", message, tag.span, fix=fix))
    return loras, issues


def _read_lora(tag: Tag, issues: list[Issue], *, second_pass: bool = False) -> LoraTag:
    """Read the tag of a LoRA; adds issues about what does nothing, or less than it says."""
    name, *positional = [item for item in tag.items if item.count("=") != 1] or [""]
    options = {key: value for key, _, value in (item.partition("=") for item in tag.items if item.count("=") == 1)}

    def read(written: str | None, otherwise: tuple[float, Points]) -> tuple[float, Points]:
        strength = otherwise if written is None else _strength(written)
        if strength is not None:
            return strength
        points_text = ",".join(f"{number:g}@{step:g}" for number, step in otherwise[1])
        message = (
            f"“{shortened(str(written), 40)}” in the tag of the LoRA “{shortened(name)}” is no number such as 0.8, "
            f"and no strengths at steps such as 0.2@0.2,1@0.5: {points_text or f'{otherwise[0]:g}'} is taken."
        )
        issues.append(Issue("unreadable-strength", message, tag.span))
        return otherwise

    first, second = [*positional[:2], None, None][:2]
    clip = read(options.pop("te", first), (1.0, ()))
    model = read(options.pop("unet", second), clip)
    both = options.pop("hr", None)
    second_clip = read(options.pop("hrte", both), clip)
    second_model = read(options.pop("hrunet", both), model)
    start, stop = _steps(name, options, tag.span, issues)
    blocks = _blocks(name, options, tag.span, issues)
    (clip_strength, clip_points), (model_strength, model_points) = (
        (second_clip, second_model) if second_pass else (clip, model)
    )
    lora = LoraTag(
        *(name, clip_strength, model_strength, tag.span, clip_points, model_points),
        *(start, stop, blocks),
    )
    without_effect = [*positional[2:], *(f"{key}={value}" for key, value in options.items())]
    if without_effect:
        listed = shortened(", ".join(f"“{shortened(part, 40)}”" for part in without_effect[:5]), 160)
        message = f"In the tag of the LoRA “{shortened(name)}”, {listed} does nothing here."
        issues.append(Issue("lora-option", message, tag.span))
    if clip_points or model_points or start or stop is not None:
        message = (
            f"The LoRA “{shortened(name)}” changes with the steps only where loras is “in time”: in all steps "
            f"{model_strength:g} is taken."
        )
        issues.append(Issue(TIMED_LORA, message, tag.span))
    return lora


TIMED_LORA = "timed-strength"
"""Code of issues about LoRAs that change with the steps, where they do not."""
REPEATED_LORA = "repeated-lora"
"""Code of issues about LoRAs that are named again at the same strength."""
LORA_ISSUES = (TIMED_LORA, "lora-option", "unreadable-steps", "backward-steps", "unreadable-blocks")
"""Codes of issues about what extensions of the WebUI may do with a LoRA's tag."""
_STEPS = re.compile(r"\s*[0-9]{1,9}\s*")


def _steps(name: str, options: dict[str, str], span: Span, issues: list[Issue]) -> tuple[int, int | None]:
    """Take the steps ``start=``, ``stop=`` and ``step=from-to`` out of the options of a LoRA's tag."""
    written = {key: options.pop(key) for key in ("start", "stop", "step") if key in options}
    ends = written.pop("step", "").split("-")
    if len(ends) == 2:
        written = dict(zip(("start", "stop"), ends, strict=True))
    elif ends != [""]:
        message = f"The steps “{shortened('-'.join(ends), 40)}” are not like 5-10: they do nothing."
        issues.append(Issue("unreadable-steps", message, span))
    steps: dict[str, int] = {}
    for key, value in written.items():
        if _STEPS.fullmatch(value):
            steps[key] = int(value)
        else:
            message = f"The step “{shortened(value, 40)}” is no whole number: it does nothing."
            issues.append(Issue("unreadable-steps", message, span))
    start, stop = steps.get("start", 0), steps.get("stop")
    if stop is not None and stop < start:
        message = f"The LoRA “{shortened(name)}” stops at step {stop}, before it starts at {start}: it does not stop."
        issues.append(Issue("backward-steps", message, span))
    return start, stop


def _blocks(name: str, options: dict[str, str], span: Span, issues: list[Issue]) -> BlockStrengths | None:
    """Take ``lbw=``, or ``w=``, out of the options of a LoRA's tag; adds an issue if it cannot be read."""
    shorter = options.pop("w", None)
    written = options.pop("lbw", shorter)
    if written is None:
        return None
    blocks = read_blocks(written)
    if isinstance(blocks, BlockStrengths):
        return blocks
    message = f"In the tag of the LoRA “{shortened(name)}”: {blocks} All its blocks count 1."
    issues.append(Issue("unreadable-blocks", message, span))
    return None


LORA_LOADER = ": the node LoRA Tag Loader does that."
"""End of the message about a LoRA; a place that has no such node replaces it."""


def tag_issues(tags: tuple[Tag, ...]) -> list[Issue]:
    """Issues about tags for the author of an encoded prompt: they are not encoded, and loaded elsewhere."""
    loras, issues = read_loras(tags)
    for lora in loras:
        name, strength = shortened(lora.name), shortened(lora.written, 40)
        message = f"The LoRA “{name}” at {strength} is no text, and is not loaded here{LORA_LOADER}"
        issues.append(Issue("lora", message, lora.span))
    return issues


def _strength(text: str) -> tuple[float, Points] | None:
    """A strength, and its points if it changes; None if it cannot be read.

    As in sd-webui-loractl, points are between commas or semicolons, and one after the first may lack its step, which
    is 1.
    """
    if "@" not in text:
        number = _number(text)
        return None if number is None else (number, ())
    pairs = [[_number(part) for part in item.split("@")] for item in re.split("[,;]", text)]
    points = [(pair[0], pair[1] if pair[1:] else 1.0) for pair in pairs]
    if len(pairs[0]) != 2 or any(len(pair) > 2 or None in pair for pair in pairs):
        return None
    known = ((strength, step) for strength, step in points if strength is not None and step is not None)
    return 1.0, tuple(sorted(known, key=lambda point: point[1]))


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


COMMENT = "comment"
"""Code of issues about comments."""
_COMMENT_MESSAGES = {
    "#": "“{}” is a comment, as in A1111 and Forge: it is not encoded.",
    "/": "“{}” is a comment, as on ComfyUI's page: it is not encoded.",
}
COMMENT_MARKS = ("#", "//")
"""Marks of comments: ``#`` as in A1111, and ``//`` with ``/* */`` as on ComfyUI's page."""
_BEGIN: dict[tuple[str, ...], re.Pattern[str]] = {
    ("#",): re.compile("#"),
    ("//",): re.compile(r"//|/\*"),
    COMMENT_MARKS: re.compile(r"#|//|/\*"),
}
_END = {"#": re.compile(r"\n|\Z"), "//": re.compile("[\n\r\u2028\u2029]|\\Z")}


class Bare(NamedTuple):
    """A prompt without its comments and tags. All spans are positions in the whole prompt."""

    fragment: Fragment
    """The remaining text, in pieces that know their positions."""
    tags: tuple[Tag, ...]
    """The tags, in order."""
    comments: tuple[Span, ...]
    """The comments, in order."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of everything taken out."""
        return tuple(sorted([*self.comments, *(tag.span for tag in self.tags)]))

    def issues(self, source: str) -> list[Issue]:
        """Issues about the parts taken out, for the author of the prompt ``source``."""
        return [*comment_issues(source, self.comments), *tag_issues(self.tags)]


def comment_spans(source: str, marks: tuple[str, ...]) -> tuple[Span, ...]:
    r"""Comments of a prompt, in order.

    Args:
        source: Any string.
        marks: Some of `COMMENT_MARKS`, in their order. A ``/*`` that is never closed is text.

    >>> [(span.start, span.end) for span in comment_spans("a // b\nc /* d */ e # f", ("//",))]
    [(2, 6), (9, 16)]
    """
    spans: list[Span] = []
    position, is_closed = 0, True
    while marks and (begin := _BEGIN[marks].search(source, position)):
        start, position = begin.span()
        if begin[0] != "/*":
            end = _END[begin[0]].search(source, position)
            position = end.start() if end else len(source)
        elif is_closed and (close := source.find("*/", position)) >= 0:
            position = close + 2
        else:
            is_closed = False
            continue
        spans.append(Span(start, position))
    return tuple(spans)


def bare(source: str, *, has_comments: bool | tuple[str, ...], has_tags: bool) -> Bare:
    r"""Take comments, and then tags, out of a prompt.

    Args:
        source: Any string.
        has_comments: Marks of its comments, as of `comment_spans`; True for ``#``.
        has_tags: Whether it has tags.

    >>> bare_text = bare("a cat # (ugly:1.3)\nin <lora:ink:0.8>a bowl", has_comments=True, has_tags=True)
    >>> bare_text.fragment.text, bare_text.comments
    ('a cat \nin a bowl', (Span(start=6, end=18),))
    """
    marks = COMMENT_MARKS[:1] if has_comments is True else has_comments or ()
    comments = comment_spans(source, marks)
    left = _without(source, comments)
    if not has_tags:
        return Bare(left, (), comments)
    fragment, tags = take_tags(left.text)
    if not comments:
        return Bare(fragment, tags, ())
    moved = tuple(tag._replace(span=left.span_of(tag.span)) for tag in tags)
    return Bare(left.part(fragment), moved, comments)


def comment_issues(source: str, comments: Sequence[Span]) -> list[Issue]:
    """Issues saying that comments are not encoded."""
    return [
        Issue(COMMENT, _COMMENT_MESSAGES[source[span.start]].format(quoted(source, span)), span) for span in comments
    ]


def _without(source: str, spans: Sequence[Span]) -> Fragment:
    """A text without some of its spans."""
    starts = [0, *(span.end for span in spans)]
    ends = [*(span.start for span in spans), len(source)]
    pieces = (Piece(source[start:end], Span(start, end)) for start, end in zip(starts, ends, strict=True))
    return Fragment(tuple(piece for piece in pieces if piece.text))
