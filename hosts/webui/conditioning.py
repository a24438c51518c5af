"""Our conditioning in the WebUI: for the texts of one generation, or for one prompt of the lab.

While the host computes conditioning, two methods of its text encoders are replaced on the instance: the one that cuts
texts into chunks, where all texts are read and encoded at once, and the one that encodes a chunk, which then returns
the results. Both are always restored afterwards.

Source: docs/reference/hosts.md, "In the WebUI"; behaviour of stable-diffusion-webui 1.10 and
stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...encoder.quoting import raising
from ...weighting.encoders import Encoders, Prepared
from ...weighting.options import EncodeOptions
from ...weighting.phrases.bind import ABSENT, bound_passes
from ...weighting.phrases.words import Words, words_of
from ...weighting.pipeline import Check, EncodedPrompt
from ...weighting.reading.prompt_reader import ReadPrompt
from ...weighting.reading.view import bound_text, counted
from ...weighting.schemes import SCHEMES
from ...weighting.schemes.negpip import paired
from ...weighting.schemes.repeat import Copies, copies_of
from ...weighting.syntax import parse
from ...weighting.text.embeddings import EmbeddingVector
from ...weighting.text.prompt import Issue, Prompt, shortened
from ...weighting.towers import num_rows, read_together
from .engines import Engine, WebUIError, host_option
from .t5_rows import T5Rows

MAX_CHUNKS = 32
"""Chunks per call of the host's encoder, except for columns of chunks that the host itself would encode."""

PADDING_SETTINGS = {
    "pad_cond_uncond": "Pad prompt/negative prompt",
    "pad_cond_uncond_v0": "Pad prompt/negative prompt (v0)",
}
"""Settings by which the host adds rows to prompts, by name and title on its page."""
INFINITE_PART = "A part between ANDs has the weight {:g}: it must be a finite number."
INFINITE = "infinite-weight"
"""Code of problems about weights that are not finite."""
STACKED = (
    "Texts that this WebUI stacks must have the same number of rows, or it fills the shorter ones with copies of their "
    "last row: the prompts of a batch, the parts between ANDs, and what prompt editing makes of a prompt."
)


class Stack:
    """Texts whose rows the host stacks; `add` refuses those that cannot be."""

    def __init__(self, scheme: str, *, in_pairs: bool | None = None) -> None:
        """Begin with no text; ``in_pairs`` is as in `swapped`."""
        self._scheme, self._in_pairs = SCHEMES[scheme], in_pairs
        self._copies: dict[Copies, int] = {}
        """Scheme ``repeat``: repetitions of rows in the texts so far, with their numbers of rows."""
        self._num_rows: dict[int, bool] = {}
        """Scheme ``negpip_apart``: numbers of rows of the texts so far, and whether any text of that number has
        appended rows."""

    @property
    def is_repeating(self) -> bool:
        """Whether the scheme ``repeat`` repeated or left out any rows."""
        return any(copies.is_repeating for copies in self._copies)

    def add(self, reads: Sequence[ReadPrompt]) -> None:
        """Add texts as read by a tower; raise if their rows cannot be stacked or carried."""
        if self._scheme.is_repeating:
            self._check_rows(reads)
        if self._scheme.is_signed:
            self._check_signs(reads)

    def _check_rows(self, reads: Sequence[ReadPrompt]) -> None:
        """Raise if weights give the texts so far different numbers of rows."""
        for prompt in reads:
            copies = copies_of(prompt)
            self._copies[copies] = copies.count(prompt.kept)
        counts = sorted(set(self._copies.values()))
        if len(counts) > 1 and self.is_repeating:
            raise WebUIError(
                f"By their weights the scheme repeat makes {counts[0]} rows of one text and {counts[-1]} of another. "
                f"{STACKED} Use the same weights on as many tokens in all of them, one prompt a batch, or another "
                "scheme."
            )

    def _check_signs(self, reads: Sequence[ReadPrompt]) -> None:
        """Raise if rows have signs that cannot be carried, or texts so far have different numbers of appended rows."""
        if self._in_pairs is False and any(prompt.has_signs for prompt in reads):
            raise WebUIError(
                "The extension NegPiP is active and has left a weight below 0 in the prompt, which Weighted CLIP "
                "cannot take away beside it: switch one of the two off."
            )
        for prompt in reads:
            count = num_rows(prompt)
            self._num_rows[count] = self._num_rows.get(count, False) or bool(prompt.terms)
        counts = sorted(self._num_rows)
        if len(counts) > 1 and any(self._num_rows.values()):
            raise WebUIError(
                f"By the terms that the scheme negpip_apart appends, one text has {counts[0]} rows and another "
                f"{counts[-1]}. {STACKED} Use terms of as many tokens in all of them, or the scheme negpip."
            )


class EncodingRun:
    """Encodings made while the encoders were ours."""

    def __init__(
        self,
        engines: Mapping[str, Engine | T5Rows],
        options: EncodeOptions,
        texts: Sequence[Sequence[str]],
        check: Check | None,
        *,
        in_pairs: bool | None = None,
    ) -> None:
        readers = {tower: engine.reader() for tower, engine in engines.items()}
        self._encoders = Encoders(readers, engines, max_chunks=MAX_CHUNKS, keeps_calls=True)
        self._options = options
        self._check = check
        self._prepared: dict[tuple[str, ...], Prepared] = {}
        self.encoded: dict[tuple[str, tuple[str, ...]], list[EncodedPrompt]] = {}
        """Encoded prompts by tower and texts."""
        self.stack = Stack(options.scheme, in_pairs=in_pairs)
        """The texts, whose rows the host stacks."""
        self.in_pairs = in_pairs
        """As in `swapped`."""
        self._kept: tuple[int, ...] = ()
        if options.drops_padding and (distinct_texts := list(dict.fromkeys(chain.from_iterable(texts)))):
            with raising(WebUIError):
                self._kept = next(iter(read_together(distinct_texts, options, readers).values()))[0].kept or ()
        for group in texts:
            self.prepare(group)

    def prepare(self, texts: Sequence[str]) -> Prepared:
        """Read and plan texts for all towers, with equal numbers of chunks and kept rows."""
        key = tuple(texts)
        if key not in self._prepared:
            for text in texts:
                refuse_infinite(text, self._options.syntax)
            with raising(WebUIError):
                prepared = self._encoders.prepare_together(texts, self._options, self._kept)
            self.stack.add(next(iter(prepared.reads.values())))
            self._prepared[key] = prepared
        return self._prepared[key]

    def encode(self, tower: str, texts: Sequence[str]) -> list[EncodedPrompt]:
        """Encode texts for one tower."""
        key = (tower, tuple(texts))
        if key not in self.encoded:
            self.encoded[key] = self.prepare(texts).run_tower(tower, check=self._check)
        return self.encoded[key]

    def encoded_by_tower(self, texts: Sequence[str]) -> list[dict[str, EncodedPrompt]]:
        """Each of some texts that were encoded, by tower."""
        by_tower = {
            tower: prompts for (tower, encoded_texts), prompts in self.encoded.items() if encoded_texts == tuple(texts)
        }
        return [dict(zip(by_tower, text_prompts, strict=True)) for text_prompts in zip(*by_tower.values(), strict=True)]

    def words(self) -> list[Words]:
        """Words of each text that was read, as read by the first tower."""
        reads = (prompt for prepared in self._prepared.values() for prompt in next(iter(prepared.reads.values())))
        return [words_of(prompt.prompt.parts) for prompt in reads]

    def absent(self) -> set[str]:
        """Messages about bound phrases that occur in none of the texts."""
        return absent_in_all(
            prompt.issues
            for prepared in self._prepared.values()
            for tower_reads in prepared.reads.values()
            for prompt in tower_reads
        )

    def passes(self) -> list[str]:
        """Numbers of passes for bound phrases, one line per text with any."""
        prompts = [prompt for prompts in self.encoded.values() for prompt in prompts]
        return [
            f"{bound_text(prompt.read)}, {counted(prompt.num_encodings, 'encoding')}"
            for prompt in prompts
            if bound_passes(prompt.read.chunks, self._options.bind_rest)
        ]

    def problems(self) -> list[tuple[str, Issue]]:
        """All problems of all texts, each with its text, without those covered by `absent`."""
        return [
            (text, issue)
            for (_, texts), prompts in self.encoded.items()
            for text, prompt in zip(texts, prompts, strict=True)
            for issue in prompt.read.issues
            if issue.code != ABSENT
        ]


def infinite_weights(prompt: Prompt, issues: Iterable[Issue]) -> Iterator[Issue]:
    """A problem for each weight that is not finite, as written in a prompt with these problems."""
    for fragment in prompt.fragments:
        if not math.isfinite(fragment.weight):
            clause = f"“{shortened(fragment.text.strip())}” has the weight {fragment.weight:g}"
            yield Issue(INFINITE, f"{clause}: it must be a finite number.", fragment.span)
    yield from (issue for issue in issues if issue.code == INFINITE)


def refuse_infinite(text: str, syntax: str) -> None:
    """Raise if a text has a weight that is not finite."""
    prompt = parse(text, syntax)
    for issue in infinite_weights(prompt, prompt.issues):
        raise WebUIError(issue.line)


def refuse_infinite_parts(conditioning: Any) -> None:
    """Raise if a part between ANDs, as the host has read it, has a weight that is not finite."""
    weights = [getattr(part, "weight", 1.0) for parts in getattr(conditioning, "batch", ()) for part in parts]
    for weight in weights:
        if not math.isfinite(weight):
            raise WebUIError(INFINITE_PART.format(weight))


def absent_in_all(texts: Iterable[Iterable[Issue]]) -> set[str]:
    """Messages about bound phrases that occur in none of some texts, given by their problems."""
    absent_lines = [{issue.line for issue in issues if issue.code == ABSENT} for issues in texts]
    return set.intersection(*absent_lines) if absent_lines else set()


def cannot_be_bound(absent: Iterable[str]) -> str:
    """Message about bound phrases that occur in no text."""
    return f"These phrases cannot be bound: {' '.join(sorted(absent))}"


def refuse_padded_prompts(scheme: str) -> None:
    """Raise if the host adds rows to the shorter one of prompt and negative prompt."""
    for name, title in PADDING_SETTINGS.items():
        if host_option(name, default=False):
            raise WebUIError(
                f"The setting “{title}” adds rows to a prompt, which would change what the rows of the scheme {scheme} "
                "weigh: switch that setting off, or take another scheme."
            )


@contextlib.contextmanager
def swapped(
    engines: Mapping[str, Engine],
    options: EncodeOptions,
    texts: Sequence[Sequence[str]] = (),
    *,
    check: Check | None = None,
    in_pairs: bool | None = None,
) -> Iterator[EncodingRun]:
    """Replace the text encoders of a model by ours for the duration of the context, for this thread.

    Args:
        engines: The encoders.
        options: Options for reading and encoding.
        texts: Texts that are to be encoded, in groups that are encoded together. They are read and planned at once, so
            that none is encoded if one is refused. If padding is dropped, all keep the rows needed by any of them.
        check: Called before each call of an encoder. An exception it raises ends the work.
        in_pairs: Whether to return rows in pairs of key and value, as read by `reading_pairs`; None if nothing is
            sampled with them.

    Yields:
        Encodings made within the context.
    """
    run = EncodingRun(engines, options, texts, check, in_pairs=in_pairs)
    with answered_by(run, engines):
        yield run


@contextlib.contextmanager
def answered_by(run: EncodingRun, engines: Mapping[str, Engine | T5Rows]) -> Iterator[None]:
    """Let a run answer for the text encoders of a model for the duration of the context, in this thread."""
    try:
        for tower, engine in engines.items():
            answers = _t5_answers(tower, run) if isinstance(engine, T5Rows) else _answers(engine, tower, run)
            for name, answer in zip(engine.methods, answers, strict=True):
                setattr(engine.owner, name, _in_this_thread(answer, getattr(engine.owner, name)))
        yield
    finally:
        for engine in engines.values():
            for name in engine.methods:
                vars(engine.owner).pop(name, None)
            if isinstance(engine, Engine):
                engine.fixes_owner.fixes = None


def _in_this_thread(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is ours in this thread, and the host's in others: the page's token counters ask at any time."""
    thread = threading.get_ident()

    def method(*args: Any) -> Any:
        return (ours if threading.get_ident() == thread else theirs)(*args)

    return method


def _answers(engine: Engine, tower: str, run: EncodingRun) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Our two methods for one engine."""
    asked: list[str] = []

    def our_texts(texts: Sequence[str]) -> Any:
        asked[:] = texts
        reads = run.prepare(texts).reads[tower]
        count = max(sum(chunk.num_content for chunk in prompt.chunks) for prompt in reads)
        # one chunk per text, as each text is encoded at once
        return [[_stand_in(prompt, engine)] for prompt in reads], count

    def our_tokens(tokens: Any, multipliers: Any) -> Tensor:
        prompts = run.encode(tower, asked)
        rows = [paired(prompt.hidden, prompt.signs) if run.in_pairs else prompt.hidden for prompt in prompts]
        hidden = torch.cat(rows)
        hidden.pooled = torch.cat([prompt.pooled for prompt in prompts])  # pyright: ignore[reportAttributeAccessIssue]
        return hidden

    return our_texts, our_tokens


def _t5_answers(tower: str, run: EncodingRun) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Our two methods for T5's engine, which the host asks for a text at a time."""
    asked = ""

    def our_line(text: str) -> Any:
        nonlocal asked
        asked = text
        chunk = run.prepare([text]).reads[tower][0].chunks[0]
        # one chunk, as the text is encoded at once
        stand_in = SimpleNamespace(tokens=list(chunk.plain_ids[1:]), multipliers=list(chunk.weights[1:]))
        return [stand_in], len(stand_in.tokens)

    def our_tokens(tokens: Any, multipliers: Any) -> Tensor:
        return run.encode(tower, [asked])[0].hidden

    return our_line, our_tokens


def _stand_in(prompt: ReadPrompt, engine: Engine) -> Any:
    """Replacement for the host's chunk, from which it reads the names of embeddings for the image's parameters."""
    chunk = prompt.chunks[0]
    names = dict.fromkeys(t.id.name for c in prompt.chunks for t in c.tokens if isinstance(t.id, EmbeddingVector))
    fixes = [(0, engine.database.word_embeddings[name]) for name in names]
    return SimpleNamespace(tokens=list(chunk.plain_ids), multipliers=list(chunk.weights), fixes=fixes)
