"""Characters of a prompt without its syntax, for text encoders that know none: each with its weight and its place.

Source: docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..options import EncodeOptions
from ..syntax import parse, syntax_of
from ..text.prompt import Break, Prompt
from ..text.tags import bare


class Character(NamedTuple):
    """A character of the host's text."""

    text: str
    weight: float
    fragment: int
    place: int
    """Position in the prompt as typed."""
    is_break: bool = False
    """Whether it replaces a BREAK."""


def stripped(text: str, options: EncodeOptions) -> tuple[Prompt, list[Character]]:
    """A prompt, and its characters without syntax, comments and tags of extra networks; BREAK is a space."""
    bare_text = bare(
        text, has_comments=options.comment_marks, has_tags=options.has_tags and syntax_of(options.syntax).has_tags
    )
    prompt = parse(bare_text.fragment.text, options.syntax)
    plain = all(len(section.prompts) == 1 and section.weight == 1.0 for section in prompt.sections)
    if len(prompt.sections) > 1 or not plain:
        raise ValueError(
            "This text encoder does not take .and and .blend, whose rows are several prompts: encode each prompt on "
            "its own and join them with Conditioning (Combine)."
        )
    is_spaced = syntax_of(options.syntax).is_spaced  # a space that its parser takes for the end of a fragment
    characters: list[Character] = []
    places = [*bare_text.fragment.positions, len(text)]
    for index, part in enumerate(prompt.parts):
        if isinstance(part, Break):
            characters.append(Character(" ", 1.0, index, places[part.span.start], is_break=True))
            continue
        if is_spaced and characters and part.text:
            place = places[part.positions[0]]
            gap = text[characters[-1].place + 1 : place]
            if part.text[0].isalnum() or any(character.isspace() for character in gap):
                characters.append(Character(" ", part.weight, index, place))
        for character, position in zip(part.text, part.positions, strict=True):
            characters.append(Character(character, part.weight, index, places[position]))
    moved = [replace(issue, span=bare_text.fragment.span_of(issue.span)) for issue in prompt.issues]
    issues = (*moved, *bare_text.issues(text))
    return replace(prompt, source=text, parts=(), marks=(), sections=(), issues=issues), characters
