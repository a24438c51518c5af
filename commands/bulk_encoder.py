"""From the texts of a shard to the tensors saved: prompts with the same beginning are encoded together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .bulk_report import Report

if TYPE_CHECKING:
    import torch

    from ..encoder.encoding import Encoding
    from ..weighting.encoders import EncodedTowers, Encoders
    from ..weighting.options import EncodeOptions
    from ..weighting.reading import ReadPrompt

WINDOW_CHUNKS = 64
"""Number of chunks at which prompts are encoded together."""


class BulkEncoder:
    """Encoder of texts for saving."""

    def __init__(self, encoders: Encoders, options: EncodeOptions, dtype: torch.dtype) -> None:
        self.encoders = encoders
        self.options = options
        self.dtype = dtype

    def encode(self, texts: Sequence[str], first: int, report: Report) -> Iterator[Encoding]:
        """Encode prompts.

        Yields hidden states ``[rows, dim]`` and pooled vectors ``[pooled_dim]``, on the CPU.
        """
        reads = list(self._read(texts, first, report))
        order = sorted(range(len(reads)), key=lambda index: _tokens(reads[index]))
        done = dict(zip(order, self._in_order(reads, order), strict=True))
        for index in range(len(reads)):
            saved, problems = done.pop(index)
            report.tell(first + index, problems)
            yield saved

    def _in_order(
        self, reads: Sequence[dict[str, ReadPrompt]], order: Sequence[int]
    ) -> Iterator[tuple[Encoding, list[str]]]:
        """Yield the saved encoding and the problems of each prompt, in the given order."""
        from ..encoder.encoding import Encoding

        for encoded in self._in_windows(reads[index] for index in order):
            saved = Encoding(self._saved(encoded.hidden[0]), self._saved(encoded.pooled[0]))
            problems = [issue.line for prompt in encoded.prompts.values() for issue in prompt.read.issues]
            if not (saved.hidden.isfinite().all() and saved.pooled.isfinite().all()):
                problems.append(f"Some of its numbers are too large for {self.dtype}, or not finite.")
            yield saved, list(dict.fromkeys(problems))

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor, so that the batch it is part of can be freed."""
        return tensor.to("cpu", self.dtype, copy=True).contiguous()

    def _read(self, texts: Sequence[str], first: int, report: Report) -> Iterator[dict[str, ReadPrompt]]:
        from ..weighting.bind import BindError
        from ..weighting.encoders import Prepared, TooManyEncodings
        from ..weighting.prompt import PromptError
        from ..weighting.schemes.negpip import NegPipError, check_without_signs
        from ..weighting.schemes.repeat import RepeatError

        for number, text in enumerate(texts, first + 1):
            try:
                read = self.encoders.read(text, self.options)
                check_without_signs(read.values(), "a file")
                Prepared(self.encoders, {name: [one] for name, one in read.items()})  # refuses it before any is encoded
            except (PromptError, RepeatError, NegPipError, BindError, TooManyEncodings) as error:
                raise ValueError(f"{report.lines.where(number)}: {error}") from error
            yield read

    def _in_windows(self, reads: Iterable[dict[str, ReadPrompt]]) -> Iterator[EncodedTowers]:
        """Encode prompts together as soon as there are enough chunks."""
        window: list[dict[str, ReadPrompt]] = []
        num_chunks = 0
        for read in reads:
            window.append(read)
            num_chunks += max(len(one.chunks) for one in read.values())
            if num_chunks >= WINDOW_CHUNKS:
                yield from self.encoders.plan(window).run()
                window, num_chunks = [], 0
        yield from self.encoders.plan(window).run()


def _tokens(read: dict[str, ReadPrompt]) -> list[tuple[int, ...]]:
    """Sort key of a prompt, by which prompts with the same beginning become neighbours."""
    return [chunk.plain_ids for one in read.values() for chunk in one.chunks]
