"""Our contestants, as functions that encode the next prompt of a sequence from its text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from .timing import times_in_turn

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import EncodeFn
    from ...encoder.text_model import TextEncoder, TextModel
    from ...weighting.encoders import Encoders
    from ..peers.transformers import Transformers

TRANSFORMERS = "transformers"
MEMORY_BYTES = 64 * 2**20
"""Default cache size of our encoders, here whatever the environment says."""


def native(model: TextModel, max_bytes: int = MEMORY_BYTES) -> TextEncoder:
    """The encoder that users get, with an empty cache of at most ``max_bytes``."""
    from ...encoder.families import encoders_for

    return encoders_for({"clip_l": model}, max_bytes=max_bytes)[1]["clip_l"]


def ours(encode: EncodeFn, prompts: Iterator[str], **choices: str) -> Callable[[], Tensor]:
    """Encode the next text by ours, to hidden states ``[1, 77 * chunks, dim]``, with fields of `EncodeOptions`."""
    encoders = _door(encode)
    return lambda: encoders(next(prompts), **choices).hidden


def ours_together(
    encode: EncodeFn, prompts: Iterator[Sequence[str]], *, is_together: bool = True, **choices: str
) -> Callable[[], Tensor]:
    """Encode the next texts, of one chunk each, by ours, to hidden states ``[prompts, 77, dim]``.

    They are encoded together or one by one, with fields of `EncodeOptions`.
    """
    import torch

    from ...weighting.options import EncodeOptions

    encoders, options = _door(encode), EncodeOptions(**choices)  # pyright: ignore[reportArgumentType]

    def run() -> Tensor:
        texts = next(prompts)
        windows = [texts] if is_together else [[text] for text in texts]
        return torch.cat([one.hidden for some in windows for one in encoders.prepare(some, options).run()])

    return run


def _door(encode: EncodeFn) -> Encoders:
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.encoders import Encoders
    from ...weighting.towers import Reader

    return Encoders({"clip_l": Reader(default_tokenizer())}, {"clip_l": encode})


def best_batch(
    theirs: Transformers,
    prompts: Callable[[], Iterator[Sequence[str]]],
    sizes: Sequence[int],
    repetitions: int = 2,
    warm_up: int = 1,
) -> int:
    """Fastest of several batch sizes for the peer, by the median of its times; ``prompts`` is called for each size."""
    runs = {str(size): theirs.batch(prompts(), size) for size in sizes}
    taken = times_in_turn(runs, repetitions=repetitions, warm_up=warm_up)
    return min(sizes, key=lambda size: statistics.median(taken[str(size)]))
