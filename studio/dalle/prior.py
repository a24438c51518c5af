"""DALL·E's prior: a decoder-only transformer over the pieces of a caption, followed by the tokens of an image.

Shapes: b = pairs, T = positions of text, n = image tokens, s = T + n, d = hidden_dim, K = values of an image token.

A caption always takes T positions. After its last piece, each position has its own learned padding token, which image
tokens attend to like any other. The output at a position predicts the next one, and that of the last text position the
first image token.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.2, appendix B.1 and Figure 10. Layout of
ru-DALL-E: rudalle 1.1.3, by what its model computes; the norms of residual branches are from M. Ding et al., "CogView",
2021, section 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ...encoder.models.layers import PLAIN, Arithmetic, Embedding, EncoderBlock, Mix, Past, Rotation
from ...encoder.models.linear import without_autocast
from ...encoder.sparse_masks import LayerMask, column_mask, convolutional_mask, layer_schedule, row_mask
from .config import START_PIECE, PriorConfig


class PriorLogits(NamedTuple):
    """Logits of a prior for each position but the first of the text."""

    text: Tensor
    """``[b, T - 1, text_vocab_size + T]``, from the second text position to the last; the padding tokens of all
    positions come last."""
    image: Tensor
    """``[b, n, K]``."""


class SandwichBlock(EncoderBlock):
    """A block that also normalises the outputs of attention and MLP before adding them."""

    def __init__(self, config: PriorConfig) -> None:
        super().__init__(config)
        self.attention_norm = nn.LayerNorm(config.hidden_dim, eps=config.layer_norm_eps)
        self.mlp_norm = nn.LayerNorm(config.hidden_dim, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool,
        past: Past | None = None,
        rotate: Rotation | None = None,
        mix: Mix | None = None,
        arithmetic: Arithmetic = PLAIN,
    ) -> Tensor:
        """Transform ``[b, s, d]`` to ``[b, s, d]``; other arguments as in `Attention.forward`."""
        normed = arithmetic.norm(self.layer_norm1, hidden)
        more = {"is_causal": is_causal, "past": past, "rotate": rotate, "mix": mix, "arithmetic": arithmetic}
        mixed = self.self_attn(normed, mask, **more)
        hidden = arithmetic.added(hidden, arithmetic.norm(self.attention_norm, mixed))
        inner = self.mlp(arithmetic.norm(self.layer_norm2, hidden), arithmetic)
        return arithmetic.added(hidden, arithmetic.norm(self.mlp_norm, inner))


class Prior(nn.Module):
    """The transformer, its embeddings and its two heads.

    >>> config = PriorConfig(
    ...     text_vocab_size=20, text_length=4, rows=3, columns=2, image_vocab_size=9,
    ...     hidden_dim=8, num_heads=2, num_layers=4, mlp_dim=16,
    ... )
    >>> logits = Prior(config)(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 6, dtype=torch.long))
    >>> tuple(logits.text.shape), tuple(logits.image.shape)
    ((1, 3, 24), (1, 6, 9))
    """

    def __init__(self, config: PriorConfig) -> None:
        super().__init__()
        self.config = config
        d, num_texts = config.hidden_dim, config.text_vocab_size + config.text_length
        self.text_embedding = Embedding(num_texts, d)
        self.text_position_embedding = Embedding(config.first_image_position, d)
        self.image_embedding = Embedding(config.image_vocab_size, d)
        self.row_embedding = Embedding(config.rows, d)
        self.column_embedding = Embedding(config.columns, d)
        block = SandwichBlock if config.is_rudalle else EncoderBlock
        self.layers = nn.ModuleList(block(config) for _ in range(config.num_layers))
        self.final_layer_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.head_layer_norm = nn.LayerNorm(d, eps=config.layer_norm_eps) if config.is_rudalle else nn.Identity()
        self.text_head = nn.Linear(d, num_texts)
        self.image_head = nn.Linear(d, config.image_vocab_size)
        self.kinds = layer_schedule(config.num_layers, config.variant)
        """Kind of mask of each layer."""
        self.is_checkpointed = False
        """Whether layers are checkpointed, as in `encoder.layers.Encoder`."""
        # no buffers: DistributedDataParallel broadcasts those while they are in use. Made when needed: a model whose
        # sizes are those of an untrusted file takes no memory before its weights are found to have them
        self._masks: dict[LayerMask, Tensor] = {}

    def _mask(self, kind: LayerMask) -> Tensor:
        """Mask of a kind of layer, ``[1, 1, s, s]``, bool."""
        config = self.config
        if kind == "convolutional":
            mask = convolutional_mask(
                config.text_length, config.grid, kernel_size=config.kernel_size, variant=config.variant
            )
        else:
            mask = (row_mask if kind == "row" else column_mask)(config.text_length, config.grid)
        return mask.unsqueeze(1)

    def mask(self, layer: int) -> Tensor:
        """Positions each position may attend to in a layer, ``[1, 1, s, s]``, bool, on the model's device."""
        kind, device = self.kinds[layer], self.final_layer_norm.weight.device
        mask = self._masks.get(kind)
        if mask is None or mask.device != device:
            with torch.inference_mode(False):  # a model that has drawn can be trained
                mask = self._masks[kind] = (self._mask(kind) if mask is None else mask).to(device)
        return mask

    def padded(self, captions: Sequence[Sequence[int]]) -> Tensor:
        """Pad captions to ``[b, T]``, int64: pieces, then the padding token of each position."""
        config = self.config
        size, length = config.text_vocab_size, config.text_length
        text = (size + torch.arange(length)).repeat(len(captions), 1)
        for row, pieces in zip(text, captions, strict=True):
            if len(pieces) > length:
                raise ValueError(f"a caption of {len(pieces)} pieces: this model reads at most {length}")
            if wrong := [piece for piece in pieces if not 0 <= piece < size]:
                raise ValueError(f"piece {wrong[0]} is unknown: this model has pieces 0 to {size - 1}")
            row[: len(pieces)] = torch.tensor(pieces, dtype=torch.long)
        return text

    def embedded_text(self, text: Tensor) -> Tensor:
        """Embed pieces ``[b, T]`` as ``[b, T, d]``, or ``[b, 1 + T, d]`` if the layout has a start piece."""
        if self.config.has_start:
            text = functional.pad(text, (1, 0), value=START_PIECE)
        return self.text_embedding(text) + self.text_position_embedding.weight

    def embedded_image(self, tokens: Tensor, start: int = 0) -> Tensor:
        """Embed image tokens ``[b, k]``, beginning with number ``start`` in raster order, as ``[b, k, d]``."""
        place = torch.arange(start, start + tokens.shape[1], device=tokens.device)
        rows = self.row_embedding(place.div(self.config.columns, rounding_mode="floor"))
        return self.image_embedding(tokens) + rows + self.column_embedding(place % self.config.columns)

    def run(self, hidden: Tensor, start: int = 0, pasts: Sequence[Past] | None = None) -> Tensor:
        """Run all layers and the final norms, ``[b, k, d]``; ``start`` above 0 needs ``pasts`` and k = 1."""
        length = hidden.shape[1]
        for index, layer in enumerate(self.layers):
            mask = None if start else self.mask(index)[..., :length, :length]
            if self.is_checkpointed and torch.is_grad_enabled():
                hidden = cast("Tensor", checkpoint(layer, hidden, mask, is_causal=False, use_reentrant=False))
            else:
                hidden = layer(hidden, mask, is_causal=False, past=None if pasts is None else pasts[index])
        return self.head_layer_norm(self.final_layer_norm(hidden))

    def forward(self, text: Tensor, image: Tensor) -> PriorLogits:
        """Compute logits for each position, given those before it.

        ``text`` is ``[b, T]``, from `padded`; ``image`` is ``[b, n]``, tokens in raster order.
        """
        config = self.config
        if text.shape[1:] != (config.text_length,) or image.shape != (len(text), config.num_image_tokens):
            raise ValueError(
                f"text must be [pairs, {config.text_length}] and image [pairs, {config.num_image_tokens}], got "
                f"{list(text.shape)} and {list(image.shape)}"
            )
        hidden = self.run(torch.cat([self.embedded_text(text), self.embedded_image(image[:, :-1])], 1))
        last = config.first_image_position - 1
        with without_autocast(hidden.device):  # logits in float32, as in the paper
            return PriorLogits(self.text_head(hidden[:, config.has_start : last]), self.image_head(hidden[:, last:]))


@torch.no_grad()
def initialise(prior: Prior) -> None:
    """Initialise weights with torch's global generator: normal, narrower for residual branches; heads are 0."""
    config = prior.config
    std = config.hidden_dim**-0.5
    for name, module in prior.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Linear):
            is_added = name.endswith(("out_proj", "fc2"))
            nn.init.normal_(module.weight, std=std * (2 * config.num_layers) ** -0.5 if is_added else std)
            nn.init.zeros_(module.bias)
    for head in (prior.text_head, prior.image_head):
        nn.init.zeros_(head.weight)
