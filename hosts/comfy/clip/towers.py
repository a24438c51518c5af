"""One text tower of a host's CLIP: its prompt reader, and the encode function that makes the host's own call.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from inspect import isfunction
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from ....encoder.encoding import EncodeFn, Encoding
from ....encoder.masks import check_mask
from ....encoder.tokenizer import without_surrogates
from ....weighting.schemes import SCHEMES
from ....weighting.text.chunks import ChunkLayout
from ....weighting.text.embeddings import TokenId
from ....weighting.towers import Reader, T5Reader
from ...host_tokenizer import HostTokenize
from ..contract import TOKENIZER, TOWER, checked_object, host
from ..families.families import text_family
from ..models.native_clip import encoder_of
from ..models.token_offsets import HostEmbeddings, offsets
from ..titles import WEIGHTED_PROMPT
from ..types import Clip, Tokenizer, Tower

T5 = "t5xxl"
"""Name of the T5 encoder beside CLIP text towers."""
ENCODE = "encode_token_weights"
"""Name of the host's method that makes rows of tokens with weights."""


def tokenizers_of(clip: Clip) -> dict[str, Tokenizer]:
    """The host's SDTokenizer for each CLIP text tower in a host's CLIP, by module name; ValueError if none."""
    tokenizers = _tokenizers_in(clip)
    if not tokenizers:
        found = ", ".join(dict(clip.cond_stage_model.named_children())) or "nothing"
        family = text_family(clip)
        way = "" if family is None else f", or for weights in {family.title} the node Attention Weights"
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


@dataclass(frozen=True)
class _T5Tokenize:
    """A host's tokenizer of T5 as a tokenize function; it leaves out the end token."""

    tokenizer: Tokenizer

    def __call__(self, text: str) -> Sequence[tuple[int, int, int]]:
        return offsets(self.tokenizer, without_surrogates(text))


def t5_readers(clip: Clip, scheme: str) -> dict[str, Reader]:
    """Prompt reader for the T5 encoder beside a CLIP's text towers, by module name, if a scheme weighs its rows."""
    rule, family = SCHEMES[scheme].t5, text_family(clip)
    if rule is None or family is None or family.title not in rule.models:
        return {}
    if getattr(clip.cond_stage_model, T5, None) is None:  # not loaded
        return {}
    return {T5: T5Reader(_T5Tokenize(getattr(clip.tokenizer, T5)), rule.layout, rule=rule)}


def encode_fn(tower: Tower) -> EncodeFn:
    """Encode function of a host's text tower (SDClipModel); only to be called while the host encodes.

    That of T5 gives position 0, which T5 does not have, a row of zeros.
    """
    checked_object(tower, TOWER)
    native = encoder_of(tower)
    if native is not None:
        return native
    if not hasattr(tower.transformer, "text_model"):
        return _t5_encode_fn(tower)

    def encode(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        tokens = [[host_id(token) for token in chunk] for chunk in ids]
        if mask is None and is_causal:
            return Encoding(*tower.encode(tokens)[:2])
        if mask is not None:
            mask = check_mask(mask, len(tokens), len(tokens[0]))
        device = _device_of(tower)
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


def _t5_encode_fn(tower: Tower) -> EncodeFn:
    def encode(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        del is_causal  # T5 reads in both directions
        tokens = [[host_id(token) for token in chunk[1:]] for chunk in ids]
        if mask is None:
            hidden = tower.encode(tokens)[0]
        else:
            device = _device_of(tower)
            embeds, _, num_tokens, embeds_info = tower.process_tokens(tokens, device)
            seen = mask[:, mask.shape[1] > 1 :, 1:].to(device).long()
            given = {"num_tokens": num_tokens, "embeds_info": embeds_info, "dtype": torch.float32}
            hidden = tower.transformer(None, seen, embeds=embeds, **given)[0].float()
        begin = hidden.new_zeros(len(hidden), 1, hidden.shape[2])
        return Encoding(torch.cat([begin, hidden], 1), begin[:, 0])

    return encode


def _device_of(tower: Tower) -> torch.device:
    """Device on which the host lets a tower encode; ComfyUI 0.3.64 has no execution device."""
    return getattr(tower, "execution_device", None) or tower.transformer.get_input_embeddings().weight.device


@contextmanager
def answered_by(clip: Clip, answers: Mapping[str, Callable[[Tower], Any]]) -> Iterator[None]:
    """Let functions answer the host when it asks towers of a CLIP to encode tokens.

    Meanwhile the CLIP holds shallow copies of its model and of these towers, with the host's own modules and weights:
    nothing is written on what it shares with other CLIPs.

    Args:
        clip: A clone of the host's CLIP whose model is loaded, so that its own patches are on it and no other clone's.
        answers: By name of the tower, a function from the copy, which has the host's choice of layer, to what
            ``encode_token_weights`` returns.
    """
    model = clip.cond_stage_model
    towers = {name: getattr(model, name) for name in answers}
    copies = {name: copied(tower) for name, tower in towers.items()}
    for name, tower in towers.items():
        vars(copies[name])[ENCODE] = _answering(answers[name], tower, copies[name])
    clip.cond_stage_model = copied(model)
    vars(clip.cond_stage_model)["_modules"] = {**vars(model)["_modules"], **copies}
    try:
        yield
    finally:
        clip.cond_stage_model = model
        for tower in copies.values():
            del vars(tower)[ENCODE]  # it refers to the copy, which is thus freed at once


def other_rule(clip: Clip, names: Iterable[str]) -> Callable[..., Any] | None:
    """Function by which another pack has replaced how a loaded CLIP or one of its towers encodes tokens, or None."""
    owners = (clip.cond_stage_model, *(getattr(clip.cond_stage_model, name) for name in names))
    return next(filter(None, map(replaced_rule, owners)), None)


def replaced_rule(module: Any) -> Callable[..., Any] | None:
    """Function by which another pack has replaced how a module of the host encodes tokens, or None."""
    function = vars(module).get(ENCODE)
    return None if function is None or _is_left_behind(module, ENCODE) else function


def copied(module: Any) -> Any:
    """A shallow copy of a module, without methods that are bound to the module itself."""
    copied = copy(module)
    for name in [name for name in vars(copied) if _is_left_behind(module, name)]:
        del vars(copied)[name]
    return copied


def _is_left_behind(module: Any, name: str) -> bool:
    """Whether an attribute is a module's own method: the host leaves those where it takes a patch back."""
    function = getattr(type(module), name, None)
    return isfunction(function) and vars(module)[name] == MethodType(function, module)


@contextmanager
def choices_of(copied: Any, tower: Any) -> Iterator[None]:
    """Give a tower the choices that the host made for its copy, such as the layer.

    Methods that other packs have replaced there are bound to the tower.
    """
    state = vars(tower)
    chosen = {
        name: value
        for name, value in vars(copied).items()
        if name in state and name != ENCODE and state[name] is not value
    }
    before = {name: state[name] for name in chosen}
    state.update(chosen)
    try:
        yield
    finally:
        state.update(before)


def _answering(answer: Callable[[Tower], Any], tower: Any, copied: Any) -> Callable[[Any], Any]:
    """The ``encode_token_weights`` of a tower's copy. It takes no notice of the tokens, which are those of the plan."""

    def encode_token_weights(_tokens: Any) -> Any:
        with choices_of(copied, tower):
            return answer(copied)

    return encode_token_weights


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
