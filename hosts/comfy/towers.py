"""One text tower of a host's CLIP: its prompt reader, and the encode function that makes the host's own call.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...encoder.encoding import EncodeFn, Encoding
from ...encoder.masks import check_mask
from ...weighting.chunks import ChunkLayout
from ...weighting.embeddings import TokenId
from ...weighting.towers import Reader
from ..tokenizing import HostTokenize
from .contract import TOKENIZER, TOWER, checked_object, host
from .families import text_family
from .titles import WEIGHTED_PROMPT
from .token_offsets import HostEmbeddings
from .types import Clip, Tokenizer, Tower


def tokenizers_of(clip: Clip) -> dict[str, Tokenizer]:
    """The host's SDTokenizer for each CLIP text tower in a host's CLIP, by module name; ValueError if none."""
    tokenizers = _tokenizers_in(clip)
    if not tokenizers:
        found = ", ".join(dict(clip.cond_stage_model.named_children())) or "nothing"
        family = text_family(clip)
        way = "" if family is None else f", or for weights in {family.title} the node Weigh Attention"
        raise ValueError(
            f"This CLIP ({type(clip.cond_stage_model).__name__}) holds no CLIP text encoder, only: {found}. This node "
            f"works on CLIP-L, CLIP-G and CLIP-H; take {WEIGHTED_PROMPT} for this model{way}."
        )
    return tokenizers


def has_towers(clip: Clip) -> bool:
    """Whether a host's CLIP has a CLIP text tower."""
    return bool(_tokenizers_in(clip))


def _tokenizers_in(clip: Clip) -> dict[str, Tokenizer]:
    return {
        name: getattr(clip.tokenizer, name)
        for name, module in clip.cond_stage_model.named_children()
        if hasattr(getattr(module, "transformer", None), "text_model") and hasattr(clip.tokenizer, name)
    }


def reader_of(tokenizer: Tokenizer) -> Reader:
    """Prompt reader for a tower; without embeddings if the host has no folder for them."""
    checked_object(tokenizer, TOKENIZER)
    layout = ChunkLayout(tokenizer.max_length, tokenizer.start_token, tokenizer.end_token, tokenizer.pad_token)
    folders = tokenizer.embedding_directory
    embeddings = None
    if folders is not None:
        embeddings = HostEmbeddings(folders, tokenizer.embedding_size, tokenizer.embedding_key)
    return Reader(HostTokenize(tokenizer, _host_ids), layout, embeddings)


def encode_fn(tower: Tower) -> EncodeFn:
    """Encode function of a host's text tower (SDClipModel); only to be called while the host encodes."""
    checked_object(tower, TOWER)

    def encode(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        tokens = [[host_id(token) for token in chunk] for chunk in ids]
        if mask is None and is_causal:
            return Encoding(*tower.encode(tokens)[:2])
        if mask is not None:
            mask = check_mask(mask, len(tokens), len(tokens[0]))
        # ComfyUI 0.3.64 has no execution device
        device = getattr(tower, "execution_device", None) or tower.transformer.get_input_embeddings().weight.device
        embeds, _, num_tokens, embeds_info = tower.process_tokens(tokens, device)
        mask = None if mask is None else mask.to(device)
        if not is_causal:
            last, intermediate, projected, unprojected = _bidirectional(tower, embeds, num_tokens, mask)
        else:
            # the same call as the host's own, with the mask: it takes 1 = may be attended and adds causality
            last, intermediate, projected, unprojected = tower.transformer(
                None,
                None if mask is None else mask.long(),
                embeds=embeds,
                num_tokens=num_tokens,
                intermediate_output=tower.layer_idx,
                final_layer_norm_intermediate=tower.layer_norm_hidden_state,
                dtype=torch.float32,
                embeds_info=embeds_info,
            )
        hidden = last if tower.layer == "last" else intermediate
        pooled = projected if tower.return_projected_pooled else unprojected
        return Encoding(hidden.float(), pooled.float())

    return encode


def _bidirectional(tower: Tower, embeds: Tensor, num_tokens: list[int], mask: Tensor | None) -> tuple[Any, ...]:
    """The host's text model without causality, which its own forward always adds: the same modules, called in turn."""
    model = tower.transformer.text_model
    positions = host("comfy.ops").cast_to(
        model.embeddings.position_embedding.weight, dtype=embeds.dtype, device=embeds.device
    )
    bias = None
    if mask is not None:
        length = embeds.shape[1]
        hidden = ~mask.expand(len(embeds), length, length).unsqueeze(1)
        bias = torch.zeros(hidden.shape, dtype=embeds.dtype, device=embeds.device)
        bias = bias.masked_fill(hidden, -torch.finfo(embeds.dtype).max)
    last, intermediate = model.encoder(embeds + positions, mask=bias, intermediate_output=tower.layer_idx)
    last = model.final_layer_norm(last)
    if intermediate is not None and tower.layer_norm_hidden_state:
        intermediate = model.final_layer_norm(intermediate)
    pooled = last[range(len(embeds)), [count - 1 for count in num_tokens]]
    return last, intermediate, tower.transformer.text_projection(pooled), pooled


def host_id(token: TokenId) -> Any:
    """A token in the form of the host's encoder: an id, or the vector of an embedding."""
    return token if isinstance(token, int) else token.vector


def _host_ids(tokenizer: Tokenizer, text: str) -> Sequence[int]:
    """Ids from a host's SDTokenizer."""
    stop = -1 if tokenizer.tokenizer_adds_end_token else None
    return tokenizer.tokenizer(text)["input_ids"][tokenizer.tokens_start : stop]
