"""Contestants: ours and transformers, as functions that encode the next prompt of a sequence from its text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from ..peers.transformers import transformers_text_model, transformers_tokenizer
from .timing import times_in_turn

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import EncodeFn
    from ...encoder.text_model import TextEncoder, TextModel
    from ...weighting.encoders import Encoders

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


class Transformers(NamedTuple):
    """transformers' tokenizer and text model, which shares our tensors."""

    tokenizer: Any
    model: Any

    def batch(self, prompts: Iterator[Sequence[str]], size: int) -> Callable[[], Tensor]:
        """Encode the next texts, each cut to its first chunk, ``size`` at once, to ``[prompts, 77, dim]``."""
        import torch

        def run() -> Tensor:
            tokens = self.tokenizer(next(prompts), padding="max_length", truncation=True, return_tensors="pt")
            batches = tokens["input_ids"].to(self.model.device).split(size)
            return torch.cat([self.model(ids).last_hidden_state for ids in batches])

        return run

    def one(self, prompts: Iterator[str]) -> Callable[[], Tensor]:
        """Encode the next text, cut to its first chunk, to ``[1, 77, dim]``."""
        return self.batch(([text] for text in prompts), 1)

    def long(self, prompts: Iterator[str]) -> Callable[[], Tensor]:
        """Encode the next text as one batch of chunks of 75 tokens, the last not full, to ``[1, 77 * chunks, dim]``."""
        import torch

        tokenizer = self.tokenizer

        def run() -> Tensor:
            ids = tokenizer(next(prompts), add_special_tokens=False, verbose=False)["input_ids"]
            bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
            parts = (ids[start : start + 75] for start in range(0, len(ids), 75))
            chunks = torch.tensor([[bos, *part, *[eos] * (76 - len(part))] for part in parts])
            return self.model(chunks).last_hidden_state.flatten(0, 1).unsqueeze(0)

        return run


def transformers_of(model: TextModel, attention: str = "sdpa") -> Transformers | None:
    """The peer with our weights on the same device, see `transformers_text_model`; None if it is not installed."""
    if find_spec("transformers") is None:
        return None
    theirs = transformers_text_model(model, attention)
    return Transformers(transformers_tokenizer(), theirs.to(model.final_layer_norm.weight.device))


def best_batch(
    theirs: Transformers,
    prompts: Callable[[], Iterator[Sequence[str]]],
    sizes: Sequence[int],
    repetitions: int = 2,
    warm_up: int = 1,
) -> int:
    """Fastest of several batch sizes, by the median of its times.

    Args:
        theirs: The peer.
        prompts: Makes the texts of each round, as `Transformers.batch` takes them; called for each size.
        sizes: The sizes.
        repetitions: Rounds that count.
        warm_up: Rounds before them.
    """
    runs = {str(size): theirs.batch(prompts(), size) for size in sizes}
    taken = times_in_turn(runs, repetitions=repetitions, warm_up=warm_up)
    return min(sizes, key=lambda size: statistics.median(taken[str(size)]))
