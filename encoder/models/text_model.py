"""CLIP's text tower: token ids and a mask in; hidden states, pooled and projected vectors out.

Shapes: b = chunks, s = 77 positions, d = hidden_dim, p = projection_dim.

Source: docs/lecture.md Definitions 5.1, 5.2, 5.9 and 5.10 (equations 24 to 30 and 53 to 63).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..encoding import Encoding
from ..masks import causal_mask, check_mask
from .config import TextConfig
from .layers import Embedding, Rotation, TransformerEncoder, projection, rotation
from .linear import overflow, widened


class TextOutput(NamedTuple):
    """Output of the text tower for one batch of chunks."""

    hidden: Tensor
    """``[b, s, d]``: the layer selected by clip skip, with or without the final layer norm."""
    pooled: Tensor
    """``[b, d]``: last layer, final layer norm, at the first EOS. Not affected by clip skip."""
    projected: Tensor | None
    """``[b, p]``: pooled times the text projection, or None without one."""
    hidden_states: tuple[Tensor, ...]
    """H_0 (embeddings) to H_N, each ``[b, s, d]``, without the final norm."""


Vectors = Mapping[tuple[int, int], Tensor]
"""Vectors that replace the token embedding, by chunk and position, ``[d]``, float. Textual inversion."""


class TextEmbeddings(nn.Module):
    """Token embedding plus learned position embedding (Definitions 5.1 and 5.9, equations 53 to 55).

    With rotary positions only the token embedding.
    """

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.token_embedding = Embedding(config.vocab_size, config.hidden_dim)
        is_learned = config.positions == "learned"
        self.position_embedding = Embedding(config.context_length, config.hidden_dim) if is_learned else None

    def forward(self, ids: Tensor, vectors: Vectors | None = None, positions: Tensor | None = None) -> Tensor:
        """Embed tokens.

        Args:
            ids: ``[b, s]``, int64.
            vectors: Replacements of the token embedding at some positions.
            positions: ``[b, s]``, int64, from 0 to below ``context_length``; None for 0, 1, 2, ... in each row.

        Returns:
            ``[b, s, d]``.
        """
        tokens: Tensor = self.token_embedding(ids)
        if vectors:
            rows, columns = zip(*vectors, strict=True)
            tokens[rows, columns] = torch.stack([self._fitting(vector, tokens) for vector in vectors.values()])
        if self.position_embedding is None:
            return tokens
        if positions is not None:
            return tokens + self.position_embedding(positions)
        return tokens + self.position_embedding.weight[: ids.shape[1]]

    def _fitting(self, vector: Tensor, tokens: Tensor) -> Tensor:
        """A vector with the type and device of the token embeddings."""
        dim = self.token_embedding.embedding_dim
        if vector.shape != (dim,):
            raise ValueError(
                f"a vector of shape {list(vector.shape)} is for another model: this encoder takes vectors that are "
                f"{dim} wide"
            )
        fitting = vector.to(tokens)
        problem = overflow(vector, fitting)
        if problem:
            raise ValueError(f"a vector of an embedding {problem}")
        return fitting


class TextModel(nn.Module):
    """CLIP text encoder with explicit mask control (Definition 5.10, equations 56 to 63).

    >>> config = TextConfig(hidden_dim=8, num_heads=2, num_layers=2, mlp_dim=16)
    >>> ids = torch.full((1, 77), config.eos_id)
    >>> tuple(TextModel(config)(ids).hidden.shape)
    (1, 77, 8)
    """

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = TextEmbeddings(config)
        self.encoder = TransformerEncoder(config)
        self.final_layer_norm = nn.LayerNorm(config.hidden_dim, eps=config.layer_norm_eps)
        self.text_projection = projection(config)

    def forward(
        self,
        ids: Tensor,
        mask: Tensor | None = None,
        *,
        vectors: Vectors | None = None,
        is_causal: bool = True,
        clip_skip: int = 1,
        final_norm: bool = True,
    ) -> TextOutput:
        """Encode chunks.

        Args:
            ids: ``[b, s]``, int64 token ids, s up to ``config.context_length``. At the position of a vector, the id
                matters only in the search for the first EOS.
            mask: Bool, ``[b, s]`` (keys) or ``[b or 1, s or 1, s]`` (query by key), True = may be attended. It is
                combined with causality unless ``is_causal`` is False. None: causality only.
            vectors: Replacements of the token embedding at some positions.
            is_causal: Whether positions see only earlier ones, as in CLIP's training.
            clip_skip: Layer of ``hidden``: 1 = last, 2 = penultimate, ... ``num_layers + 1`` = the embeddings.
            final_norm: Whether ``hidden`` passes the final layer norm.

        Raises:
            MaskError: If the mask does not fit or hides BOS.
            ValueError: If ``clip_skip`` or the number of positions is out of range, or a vector has another width
                or values beyond the model's type.
        """
        check_ids(ids, self.config)
        check_clip_skip(clip_skip, self.config.num_layers)
        mask, is_causal = self._attention_mask(ids, mask, is_causal)

        rotate = self.rotation(torch.arange(ids.shape[1]))
        states = self.encoder(self.embeddings(ids, vectors), mask, is_causal=is_causal, rotate=rotate)
        last = self.final_layer_norm(states[-1])
        if clip_skip == 1 and final_norm:
            hidden = last
        else:
            hidden = states[-clip_skip]
            hidden = self.final_layer_norm(hidden) if final_norm else hidden

        rows = torch.arange(ids.shape[0], device=ids.device)
        pooled = last[rows, first_eos(ids, self.config.eos_id)]  # [b, s, d] -> [b, d]
        projected = None if self.text_projection is None else self.text_projection(pooled)
        return TextOutput(hidden, pooled, projected, tuple(states))

    def rotation(self, positions: Tensor) -> Rotation | None:
        """Rotation for queries and keys at these positions, ``[s]`` or ``[b, s]``; None if positions are learned."""
        return rotation(positions, self.config.head_dim) if self.config.positions == "rotary" else None

    def _attention_mask(self, ids: Tensor, mask: Tensor | None, is_causal: bool) -> tuple[Tensor | None, bool]:
        """Product of the caller's mask and causality as ``[b or 1, 1, s, s]``, or None with the causal flag.

        A mask that hides nothing is dropped, so that it uses the same kernel as no mask on every device.
        """
        if mask is None:
            return None, is_causal
        batch, length = ids.shape
        mask = check_mask(mask, batch, length)
        if bool(mask.all()):
            return None, is_causal
        if is_causal:
            mask = mask & causal_mask(length).to(mask.device)
        return mask.expand(-1, length, -1).unsqueeze(1).to(ids.device), False


def check_ids(ids: Tensor, config: TextConfig) -> None:
    """Raise ValueError unless ``ids`` are ``[chunks, s]`` with at most the encoder's number of positions."""
    if ids.ndim != 2 or ids.shape[1] > config.context_length:
        raise ValueError(f"ids must be [chunks, up to {config.context_length}], got {list(ids.shape)}")


def check_clip_skip(clip_skip: int, num_layers: int) -> None:
    """Raise ValueError unless ``clip_skip`` is 1 (last layer) to ``num_layers + 1`` (the embeddings)."""
    if not 1 <= clip_skip <= num_layers + 1:
        raise ValueError(
            f"clip_skip {clip_skip} is out of range: 1 is the last layer, {num_layers + 1} the embeddings of this "
            "encoder"
        )


def first_eos(ids: Tensor, eos_id: int) -> Tensor:
    """Position of the first EOS in each row, or the last position if there is none.

    Args:
        ids: ``[b, s]``, token ids.
        eos_id: Id of EOS. Found by value: the arg-max rule of the original release fails for ids above it.

    Returns:
        ``[b]``, int64.

    >>> first_eos(torch.tensor([[1, 9, 9], [1, 5, 6]]), 9).tolist()
    [1, 2]
    """
    is_eos = ids == eos_id
    return torch.where(is_eos.any(-1), is_eos.int().argmax(-1), ids.shape[1] - 1)


class TextEncoder:
    """A text tower with a chosen layer, as a function from token ids to an `Encoding`.

    This is our native encode function for prompt weighting.
    """

    def __init__(
        self, model: TextModel, *, clip_skip: int = 1, final_norm: bool = True, projected: bool = False
    ) -> None:
        """Choose the layer.

        Args:
            model: The tower.
            clip_skip: 1 = last layer, 2 = penultimate, ...
            final_norm: Whether the chosen layer passes the final layer norm.
            projected: Whether to apply the text projection to pooled vectors. Stable Diffusion 1.x uses them without.

        Raises:
            ValueError: If ``clip_skip`` is out of range, or ``projected`` is True for a model without projection.
        """
        check_clip_skip(clip_skip, model.config.num_layers)
        if projected and model.text_projection is None:
            raise ValueError("this encoder has no text projection: its checkpoint carries none")
        self.model = model
        self.clip_skip = clip_skip
        self.final_norm = final_norm
        self.projected = projected

    @property
    def config(self) -> TextConfig:
        """Sizes of the tower."""
        return self.model.config

    @torch.no_grad()
    def __call__(self, ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        """Encode chunks of token ids.

        Args:
            ids: One list of 77 ids per chunk. An id may also be an object with ``vector``, ``[d]``, which replaces the
                token embedding, and ``placeholder``, the id beneath it.
            mask: As in `TextModel.forward`.
            is_causal: As in `TextModel.forward`.

        Returns:
            float32 (float64 for a float64 model) `Encoding` on the model's device.

        Raises:
            ValueError: If a vector has another width or values beyond the model's type.
        """
        device = self.model.final_layer_norm.weight.device
        plain, vectors = self.split(ids)
        output = self.model(
            torch.tensor(plain, dtype=torch.long, device=device),
            mask,
            vectors=vectors,
            is_causal=is_causal,
            clip_skip=self.clip_skip,
            final_norm=self.final_norm,
        )
        pooled = output.projected if self.projected and output.projected is not None else output.pooled
        return Encoding(widened(output.hidden), widened(pooled))

    def how_computed(self) -> str:
        """Note on how prompts are computed, for a report; none here."""
        return ""

    @staticmethod
    def split(ids: Sequence[Sequence[Any]]) -> tuple[list[list[int]], dict[tuple[int, int], Tensor]]:
        """Token ids, and by chunk and position the vectors above them."""
        vectors: dict[tuple[int, int], Tensor] = {}
        plain = [list(chunk) for chunk in ids]
        for row, chunk in enumerate(plain):
            for column, token in enumerate(chunk):
                if hasattr(token, "vector"):
                    vectors[row, column] = token.vector
                    chunk[column] = token.placeholder
        return plain, vectors
