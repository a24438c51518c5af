"""Forge's T5, in its Flux, Chroma and Stable Diffusion 3.5: the tokens that it makes of a text, and their rows.

Prompts are parsed as for CLIP, and each stretch of one weight is tokenized alone. There are no chunks of 75: a text has
a row for each token and one for EOS, then padding. What follows a BREAK is encoded as a text of its own, and the host
then takes the first of all these encodings for the first text, the second for the second, and so on.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...encoder.tokenizer import TokenSpan, without_surrogates
from ...weighting.chunking.t5 import T5Rule
from ...weighting.options import EncodeOptions
from ...weighting.reading.prompt_reader import ReadPrompt
from ...weighting.reading.view import counted
from ...weighting.text.chunks import ChunkLayout
from ...weighting.text.prompt import Break, Issue, Span, shortened
from ...weighting.towers import Reader, T5Reader
from .engines import UnknownEncodersError

NAME = "text_processing_engine_t5"
"""Attribute of the host's model."""
IN_T5 = "t5xxl"
"""Name of T5 among the text encoders of a model."""
LOST = (
    "After BREAK, T5 starts another text in this WebUI, which the picture does not read. Where a prompt changes with "
    "the steps, texts are mixed up."
)
STOPS = "BREAK stops the generation with this model: in this WebUI T5 begins another text there, and CLIP does not."
UNKNOWN = "“{}” is unknown to T5, which reads the same token for everything that it does not know."
MAX_TOLD = 5
"""Maximum number of different unknown letters that are told."""


class T5Engine(Protocol):
    """Forge's ``T5TextProcessingEngine``."""

    tokenizer: Callable[..., Mapping[str, Any]]
    """transformers' tokenizer."""
    tokenize: Callable[[list[str]], list[list[int]]]
    min_length: int
    """Minimum number of rows."""
    id_end: int
    id_pad: int


@dataclass(frozen=True)
class T5Tokenize:
    """T5's tokens of a text with their places; equal for equal engines, so that results are cached."""

    owner: weakref.ref[T5Engine]

    def __call__(self, text: str) -> Sequence[tuple[int, int, int]]:
        """Tokens of a text. If the tokenizer does not tell where they stand, each has the whole text as its place."""
        engine = self.owner()
        assert engine is not None
        text = without_surrogates(text)
        ids = engine.tokenize([text])[0]
        try:
            encoding = engine.tokenizer(
                text, truncation=False, add_special_tokens=False, return_offsets_mapping=True, verbose=False
            )
        except NotImplementedError:  # transformers' tokenizers in Python
            encoding: Mapping[str, Any] = {}
        if encoding.get("input_ids") != ids:
            return [TokenSpan(token_id, 0, len(text)) for token_id in ids]
        return list(_on_letters(ids, encoding["offset_mapping"], text))


def _on_letters(ids: Sequence[int], places: Sequence[tuple[int, int]], text: str) -> Iterator[TokenSpan]:
    """Tokens with places without the space before a word; a token that is only that space has the place of the next."""
    first = last = len(text)
    spans: list[TokenSpan] = []
    for token_id, (start, end) in zip(reversed(ids), reversed(places), strict=True):
        written = text[start:end]
        start, end = end - len(written.lstrip()), start + len(written.rstrip())
        is_within = start >= end or first <= start < end <= last
        first, last = (first, last) if is_within else (start, end)
        spans.append(TokenSpan(token_id, first, last))
    return reversed(spans)


@dataclass(frozen=True, eq=False)
class T5:
    """T5 of a loaded model."""

    owner: T5Engine
    """The host's object."""
    is_joined: bool
    """Whether its rows follow CLIP's rows."""

    def read(self, text: str, options: EncodeOptions) -> ReadPrompt:
        """Read a text, with problems for its first BREAK and for letters that no token has."""
        prompt = self.reader().read(text, options)
        breaks = [part.span for part in prompt.prompt.parts if isinstance(part, Break)]
        issues = [Issue("break-in-t5", STOPS if self.is_joined else LOST, span) for span in breaks[:1]]
        return self._with_issues(text, prompt, issues)

    def read_by(self, rule: T5Rule, text: str, options: EncodeOptions) -> ReadPrompt:
        """Read a text by a program's rule; raises as `chunk_t5` does."""
        return self._with_issues(text, ruled_reader(self.owner, rule).read(text, options), [])

    def _with_issues(self, text: str, prompt: ReadPrompt, issues: list[Issue]) -> ReadPrompt:
        """A text as read, with more problems, and with those of letters that no token has."""
        unknown_id = getattr(self.owner.tokenizer, "unk_token_id", None)
        unknown: dict[str, Span] = {}
        for token in (token for chunk in prompt.chunks for token in chunk.content if token.id == unknown_id):
            unknown.setdefault(text[slice(*token.at)], token.at)
        issues += [
            Issue("unknown-to-t5", UNKNOWN.format(shortened(letters)), unknown[letters])
            for letters in [*unknown][:MAX_TOLD]
        ]
        return prompt._replace(issues=tuple(sorted([*prompt.issues, *issues], key=lambda issue: issue.span)))

    def reader(self) -> Reader:
        """Prompt reader. The first token of a chunk stands for BOS and has no row."""
        owner = self.owner
        layout = ChunkLayout(bos_id=owner.id_pad, eos_id=owner.id_end, pad_id=owner.id_pad, is_open=True)
        return Reader(T5Tokenize(weakref.ref(owner)), layout)

    def total(self, prompt: ReadPrompt, rule: T5Rule | None = None) -> str:
        """Number of tokens that are read of a text, and of those that fit into the rows that each text has at least."""
        count = prompt.chunks[0].num_content
        min_tokens = (self.owner.min_length if rule is None else rule.length) - 1
        return f"{count}/{max(count, min_tokens)}" if min_tokens > 0 else counted(count, "token")


def t5_of(model: object) -> T5 | None:
    """T5 of a loaded model; None if it has none. Raises `UnknownEncodersError` for one of an unknown kind."""
    owner = getattr(model, NAME, None)
    if owner is None:
        return None
    if missing := [name for name in T5Engine.__annotations__ if not hasattr(owner, name)]:
        raise UnknownEncodersError(
            f"This WebUI's T5 ({type(owner).__name__}) has no {missing[0]}: Weighted CLIP does not know it."
        )
    return T5(owner, is_joined=bool(getattr(model, "is_sd3", False)))


def ruled_reader(owner: T5Engine, rule: T5Rule) -> T5Reader:
    """Prompt reader of the host's T5 by a program's rule."""
    return T5Reader(T5Tokenize(weakref.ref(owner)), rule.layout, rule=rule)


def as_host_reads(options: EncodeOptions) -> EncodeOptions:
    """Options of a text of a model with T5, where nothing but the syntax is ours."""
    option_names = ("syntax", "comma_backtrack", "quirks", "cleaning", "has_tags")
    return EncodeOptions(scheme="a1111", **{name: getattr(options, name) for name in option_names})
