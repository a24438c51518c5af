"""From the texts of a shard to what is saved of them: prompts are read one by one and encoded many together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .bulk_report import Report

if TYPE_CHECKING:
    import torch

    from ..encoder.text_model import TextEncoder
    from ..weighting.encode import EncodedPrompt, EncodeOptions, ReadPrompt
    from ..weighting.scheme_api import Rows
    from ..weighting.towers import Reader

WINDOW_CHUNKS = 64
"""Prompts are encoded together as soon as they have this many chunks."""


class BulkEncoder:
    """From texts to what is saved of them."""

    def __init__(
        self,
        readers: Mapping[str, Reader],
        encoders: Mapping[str, TextEncoder],
        options: EncodeOptions,
        dtype: torch.dtype,
    ) -> None:
        self.readers = readers
        self.encoders = encoders
        self.options = options
        self.dtype = dtype

    def encode(self, texts: Sequence[str], first: int, report: Report) -> Iterator[Rows]:
        """Encode prompts.

        Args:
            texts: The prompts.
            first: The first one's line.
            report: What is told of their problems.

        Yields:
            For each hidden states ``[rows, dim]`` and pooled vector ``[pooled_dim]``, on the CPU, in the type wanted.

        Raises:
            ValueError: For a prompt that is refused in strict mode.
        """
        from ..weighting.towers import joined

        for line, encoded in enumerate(self._in_windows(self._read(texts, first, report)), first):
            rows = joined(encoded)
            saved = rows._replace(hidden=self._saved(rows.hidden[0]), pooled=self._saved(rows.pooled[0]))
            problems = [issue.line for prompt in encoded.values() for issue in prompt.read.issues]
            if not (saved.hidden.isfinite().all() and saved.pooled.isfinite().all()):
                problems.append(f"Some of its numbers are too large for {self.dtype}, or not finite.")
            report.tell(line, list(dict.fromkeys(problems)))
            yield saved

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy, so that the batch it is a part of can go."""
        return tensor.to("cpu", self.dtype, copy=True).contiguous()

    def _read(self, texts: Sequence[str], first: int, report: Report) -> Iterator[dict[str, ReadPrompt]]:
        from ..weighting.prompt import PromptError
        from ..weighting.towers import read_for_towers

        for number, text in enumerate(texts, first + 1):
            try:
                yield read_for_towers(dict.fromkeys(self.readers, text), self.options, self.readers)
            except PromptError as error:
                raise ValueError(f"{report.lines.where(number)}: {error}") from error

    def _in_windows(self, reads: Iterable[dict[str, ReadPrompt]]) -> Iterator[dict[str, EncodedPrompt]]:
        """Encode prompts together as soon as there are chunks enough."""
        from ..weighting.batching import encode_for_towers

        window: list[dict[str, ReadPrompt]] = []
        num_chunks = 0
        for read in reads:
            window.append(read)
            num_chunks += max(len(one.chunks) for one in read.values())
            if num_chunks >= WINDOW_CHUNKS:
                yield from encode_for_towers(window, self.encoders, self.readers)
                window, num_chunks = [], 0
        yield from encode_for_towers(window, self.encoders, self.readers)
