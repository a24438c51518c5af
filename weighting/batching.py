"""Several prompts encoded together: what all of them need goes through the encoder in as few calls as can be.

A scheme asks the encoder and works on with the answer, so that a prompt cannot say beforehand what it needs. Prompts
are therefore run up to their first question; the questions of all are asked in one call, and the prompts are run again
with the answers, up to the next question. Schemes are pure functions, so running one again gives the same.

Source: docs/performance.md, "Batches".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from .chunks import Tokenize
from .embeddings import TokenId
from .encode import EncodedPrompt, encode_prompt
from .reading import ReadPrompt
from .scheme_api import EncodeFn, Rows, stacked_masks
from .towers import Reader


class _Question(NamedTuple):
    """A call of an encode function."""

    ids: Sequence[Sequence[TokenId]]
    mask: Tensor | None
    is_causal: bool


class _Unanswered(Exception):
    """Ends the run of a prompt at a question that has no answer yet."""

    def __init__(self, question: _Question) -> None:
        super().__init__()
        self.question = question


def encode_prompts(
    reads: Sequence[ReadPrompt], encode: EncodeFn, tokenize: Tokenize, *, max_chunks: int | None = None
) -> list[EncodedPrompt]:
    """Encode prompts by the schemes their options name, together.

    Args:
        reads: The prompts, for one encoder.
        encode: The encoder.
        tokenize: Its tokenizer.
        max_chunks: How many chunks the encoder is given at once, unless one prompt asks for more. None: all; our own
            encoder divides them as its memory demands.

    Returns:
        One result for each prompt: that of `encode_prompt`, to within the rounding of larger batches.

    Raises:
        ValueError: If a filler is not exactly one token.
    """
    if len(reads) == 1:
        return [encode_prompt(reads[0], encode, tokenize)]
    answers: list[list[Rows]] = [[] for _ in reads]
    results: list[EncodedPrompt | None] = [None] * len(reads)
    while True:
        questions: dict[int, _Question] = {}
        for index, read in enumerate(reads):
            if results[index] is None:
                try:
                    results[index] = encode_prompt(read, _from_answers(answers[index]), tokenize)
                except _Unanswered as unanswered:
                    questions[index] = unanswered.question
        if not questions:
            return [result for result in results if result is not None]
        for group in _groups(questions, max_chunks):
            for index, rows in zip(group, _ask([questions[index] for index in group], encode), strict=True):
                answers[index].append(rows)


def encode_for_towers(
    reads: Sequence[Mapping[str, ReadPrompt]], encoders: Mapping[str, EncodeFn], readers: Mapping[str, Reader]
) -> list[dict[str, EncodedPrompt]]:
    """Encode prompts with every tower, each tower's all together.

    Args:
        reads: For each prompt, by tower.
        encoders: By tower.
        readers: What has read the prompts, by tower.

    Returns:
        For each prompt, by tower in the order of ``encoders``.

    Raises:
        ValueError: If a filler is not exactly one token.
    """
    by_tower = [
        encode_prompts([read[name] for read in reads], encode, readers[name].tokenize)
        for name, encode in encoders.items()
    ]
    return [dict(zip(encoders, prompts, strict=True)) for prompts in zip(*by_tower, strict=True)]


def _groups(questions: Mapping[int, _Question], max_chunks: int | None) -> Iterator[list[int]]:
    """Indices of questions that are asked together."""
    for is_causal in (True, False):
        group: list[int] = []
        size = 0
        for index, question in questions.items():
            if question.is_causal != is_causal:
                continue
            if group and max_chunks is not None and size + len(question.ids) > max_chunks:
                yield group
                group, size = [], 0
            group.append(index)
            size += len(question.ids)
        if group:
            yield group


def _from_answers(answers: Sequence[Rows]) -> EncodeFn:
    """An encode function that gives one answer after the other, and stops at the first question behind them."""
    left = iter(answers)

    def encode(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True) -> Any:
        answer = next(left, None)
        if answer is None:
            raise _Unanswered(_Question(ids, mask, is_causal))
        return answer

    return encode


def _ask(questions: Sequence[_Question], encode: EncodeFn) -> Iterator[Rows]:
    """Ask all in one call, and take the answer apart."""
    ids = [chunk for question in questions for chunk in question.ids]
    masks, counts = [question.mask for question in questions], [len(question.ids) for question in questions]
    encoding = encode(ids, stacked_masks(masks, counts, len(ids[0])), is_causal=questions[0].is_causal)
    yield from map(Rows, encoding.hidden.split(counts), encoding.pooled.split(counts))
