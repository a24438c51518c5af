"""Forge's T5 as an encode function, for rows by the rule of another program than the host.

Every pass is the host's own ``encode_with_transformers``, a text at a time as there. Attention masks, of which the host
has none, are given to its T5 by a hook, for that one pass.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from ...encoder.encoding import Encoding
from ...weighting.chunking.t5 import T5Rule
from ...weighting.options import EncodeOptions
from ...weighting.reading.prompt_reader import ReadPrompt
from ...weighting.text.embeddings import TokenId, plain_id
from ...weighting.towers import T5Reader
from .engines import UnknownEncodersError, WebUIError, refuse_replaced
from .t5 import T5Engine, ruled_reader

METHODS = ("tokenize_line", "process_tokens")
"""Methods replaced on T5's engine for one generation."""


class T5RowsEngine(T5Engine, Protocol):
    """Forge's ``T5TextProcessingEngine``, with what makes rows."""

    text_encoder: nn.Module
    """Called with ``input_ids`` and perhaps ``attention_mask``."""
    encode_with_transformers: Callable[[Tensor], Tensor]
    tokenize_line: Callable[[str], Any]
    process_tokens: Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class T5Rows:
    """T5 of a loaded model, whose rows a program's rule weighs."""

    owner: T5RowsEngine
    """The host's object."""
    rule: T5Rule
    """The rule."""
    methods: ClassVar[Sequence[str]] = METHODS

    @classmethod
    def of(cls, owner: Any, rule: T5Rule) -> T5Rows:
        """The host's T5 by a rule; raises `WebUIError` if it is of an unknown kind, or another extension's."""
        if missing := [name for name in T5RowsEngine.__annotations__ if not hasattr(owner, name)]:
            raise UnknownEncodersError(
                f"This WebUI's T5 ({type(owner).__name__}) has no {missing[0]}: Weighted CLIP does not know it."
            )
        refuse_replaced(owner, METHODS)
        return cls(owner, rule)

    def reader(self) -> T5Reader:
        """Prompt reader by the rule."""
        return ruled_reader(self.owner, self.rule)

    def __call__(
        self, ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True
    ) -> Encoding:
        """Encode chunks: an `EncodeFn`. Position 0, which T5 does not have, gets a row of zeros."""
        del is_causal  # T5 reads in both directions
        rows: list[Tensor] = []
        for number, chunk in enumerate(ids):
            tokens = torch.tensor([[plain_id(token) for token in chunk[1:]]])
            visible = None if mask is None else mask[min(number, len(mask) - 1)][None]
            with self._seeing(visible):
                rows.append(self.owner.encode_with_transformers(tokens))
        hidden = torch.cat(rows)
        begin = hidden.new_zeros(len(hidden), 1, hidden.shape[2])
        return Encoding(torch.cat([begin, hidden], 1), begin[:, 0])

    @contextmanager
    def _seeing(self, visible: Tensor | None) -> Iterator[None]:
        """Let T5 see only some positions; ``visible`` is ``[1, 1 or length, length]`` with position 0."""
        if visible is None or bool(visible.all()):
            yield
            return
        seen = visible[:, visible.shape[1] > 1 :, 1:]
        is_asked = False

        def give_mask(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]]:
            nonlocal is_asked
            if "input_ids" not in kwargs:
                raise WebUIError("Weighted CLIP does not know how this WebUI's T5 takes tokens: please report it.")
            is_asked = True
            return args, {**kwargs, "attention_mask": seen.to(kwargs["input_ids"].device).long()}

        with self.owner.text_encoder.register_forward_pre_hook(give_mask, with_kwargs=True):
            yield
        if not is_asked:
            raise WebUIError("This WebUI's T5 was run without asking for Weighted CLIP's masks: please report it.")


def as_ruled(options: EncodeOptions) -> EncodeOptions:
    """Options of a text whose T5 rows are made by a rule: of CLIP beside it the pooled vector alone is read."""
    kept = ("syntax", "normalization", "comma_backtrack", "quirks", "cleaning", "has_tags", "comments")
    return EncodeOptions(scheme="unweighted", **{name: getattr(options, name) for name in kept})


def hosts_own(reason: object, *, is_negative: bool) -> str:
    """Line about a prompt whose T5 rows the host makes although a rule was asked for."""
    return f"{reason} T5's rows of {'the negative' if is_negative else 'this'} prompt are the WebUI's own."


def num_t5_rows(prompt: ReadPrompt) -> int:
    """Number of rows that T5 makes of a text."""
    return sum(
        max(sum(len(chunk.tokens) - 1 for chunk in chunks) for chunks in section.prompts) for section in prompt.sections
    )


def check_equal_rows(prompts: Iterable[ReadPrompt]) -> None:
    """Raise if texts that the host stacks have different numbers of rows."""
    counts = sorted({num_t5_rows(prompt) for prompt in prompts})
    if len(counts) > 1:
        raise WebUIError(
            f"T5 makes {counts[0]} rows of one text and {counts[-1]} of another. This WebUI stacks the prompts of a "
            "batch, the parts between ANDs, and what prompt editing makes of a prompt: use as many tokens in all of "
            "them, or one prompt a batch."
        )
