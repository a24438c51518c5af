"""The lab's tab for two prompts: the tokens they share, and the similarity of their pooled vectors.

Values of the page's components in, new values out, as in ``handlers.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from difflib import SequenceMatcher
from html import escape
from typing import Any, NamedTuple

from ....encoder.similarity import similarity
from ....weighting.encoders import Encoders
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.view import counted, id_of, text_of, weight_text
from ....weighting.text.chunks import Token
from .. import markup
from ..components import Inputs, button, element_id, html, textbox
from ..handlers import Given, choices_of, inputs_of
from ..markup import NOT_YET
from ..model import EXPLAINED, LabModel, explained
from .prompt_tabs import PromptTab

OTHER_ID = element_id("other")
MAX_TOKENS = 2000
"""Maximum number of tokens of a prompt that are compared."""
NOTE = "Coloured: tokens that the other prompt does not have there. Dashed: the same token with another weight."
POOLED_NOTE = (
    "Cosine of the pooled vectors, from -1 to 1: the state of the end token, which SDXL and others read beside the "
    "words. Weights do not count in it."
)


class Shared(NamedTuple):
    """A token of a prompt compared with another prompt."""

    text: str
    weight: float
    kind: str
    """``same``, ``weight`` if only its weight differs, or ``own``."""


class BesideTab(PromptTab):
    """Tokens and pooled vectors of the prompt and another one."""

    title, name = "Two prompts", "tab_two"

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        example = "Such as the prompt with a word changed"
        other = textbox("other", "Another prompt, read with the same options", placeholder=example)
        self.asked, self.kept = [other], {"other": other}
        self.shown = [html("panes", "Tokens of both prompts", NOT_YET)]
        self._start = button("compare_pooled", "Compare pooled vectors")
        self._pooled = html("pooled", "Similarity of the pooled vectors")

    def connect(self, page: Inputs) -> None:
        """As in `Tab`."""
        asked = [*self.asked, *page.all]
        self._start.click(self.pooled, inputs=asked, outputs=[self._pooled], show_progress="minimal")

    def show(self, other: str, text: str, *values: Any) -> tuple[Any, ...]:
        """Tokens of both prompts."""
        inputs = {**inputs_of(text, values), OTHER_ID: other}
        try:
            one, two = (self.handlers.given(each, values) for each in (text, other))
            content = _notes(one, two) + _panes(*compared(one.read, two.read), bool(other.strip()))
        except EXPLAINED as error:
            content = markup.message(str(error))
        return (markup.current(content, inputs),)

    def pooled(self, other: str, text: str, *values: Any) -> str:
        """Similarity of the pooled vectors, for each text encoder."""
        try:
            model = self.handlers.source()
            one, two = (self.handlers.given(each, values, model) for each in (text, other))
            found = self.handlers.run(pooled_cosines, model, one, two)
        except Exception as error:  # the page is the only place where the user can see it
            return markup.refused(explained(error))
        rows = [(name, f"{cosine:.4f}", f"{angle:.1f}°") for name, (cosine, angle) in found.items()]
        table = markup.table(("Text encoder", "Cosine", "Angle"), rows, POOLED_NOTE)
        return markup.kept(_notes(one, two) + table, {**choices_of(text, values), OTHER_ID: other})


def compared(one: ReadPrompt, other: ReadPrompt) -> tuple[list[Shared], list[Shared]]:
    """First tokens of two prompts, each compared with the other prompt."""
    first, second = _tokens(one), _tokens(other)
    ids = [[id_of(token.id) for token in tokens] for tokens in (first, second)]
    kinds = [["own"] * len(first), ["own"] * len(second)]
    for start, place, size in SequenceMatcher(None, *ids, autojunk=False).get_matching_blocks():
        for i, j in zip(range(start, start + size), range(place, place + size), strict=True):
            kinds[0][i] = kinds[1][j] = "same" if first[i].weight == second[j].weight else "weight"
    return tuple(  # pyright: ignore[reportReturnType] - there are two
        [
            Shared(text_of(token, read.prompt.source) or f"#{id_of(token.id)}", token.weight, kind)
            for token, kind in zip(tokens, some, strict=True)
        ]
        for read, tokens, some in zip((one, other), (first, second), kinds, strict=True)
    )


def pooled_cosines(model: LabModel, first: Given, second: Given) -> dict[str, tuple[float, float]]:
    """Cosine of two prompts' pooled vectors and the angle between them in degrees, by text encoder."""
    encoders = Encoders(model.readers())
    for given in (first, second):  # refuses either before one is encoded
        encoders.prepare([given.text], given.options)
    one, two = (model.encode(given.text, given.options) for given in (first, second))
    cosines = {name: similarity(one[name].pooled.double(), two[name].pooled.double()).item() for name in one}
    return {name: (value, math.degrees(math.acos(max(-1.0, min(1.0, value))))) for name, value in cosines.items()}


def _tokens(read: ReadPrompt) -> list[Token]:
    return [token for chunk in read.chunks for token in chunk.content][:MAX_TOKENS]


def _notes(*several: Given) -> str:
    """Lines about the text that is taken of each prompt, if it has several."""
    return "".join(markup.note(given.note) for given in several)


def _panes(one: Sequence[Shared], other: Sequence[Shared], is_given: bool) -> str:
    if not is_given:
        return markup.note("Type another prompt to see which tokens differ.")
    kinds = [token.kind for token in one]
    only, theirs = kinds.count("own"), sum(token.kind == "own" for token in other)
    told = f"{counted(len(kinds) - only, 'token')} in both, {only} only in the prompt, {theirs} only in the other"
    told += f", {kinds.count('weight')} with another weight" if "weight" in kinds else ""
    cut = f" Of each, the first {MAX_TOKENS:,} are compared." if max(len(one), len(other)) == MAX_TOKENS else ""
    panes = _pane("The prompt", one) + _pane("The other", other)
    return f"{markup.note(f'{told}.{cut}')}<div class='weighted-clip-panes'>{panes}</div>" + (markup.note(NOTE))


def _pane(name: str, tokens: Sequence[Shared]) -> str:
    chips = "".join(
        f"<li class='weighted-clip-{kind}'>{escape(' '.join(text.split()) or text)}"
        f"{f' <i>{weight_text(weight)}</i>' if weight != 1 else ''}</li>"
        for text, weight, kind in tokens
    )
    title = f"{name}: {counted(len(tokens), 'token')}"
    return f"<section><h2>{title}</h2><ol aria-label='{title}'>{chips}</ol></section>"
