"""ComfyUI's CLIP as an encode function: prompts in, CONDITIONING out.

A prompt is encoded by the host itself: on a throw-away clone of the CLIP, each CLIP text tower's
``encode_token_weights`` is replaced for that clone, and the clone is asked to encode. So LoRA, clip skip, hooks,
schedules and low-memory loading work as they do for the host's own node, and the CLIP that came in is never touched.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/weighting.md, "In ComfyUI".
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encoder.config import TOWERS
from ..encoder.masks import check_mask
from ..encoder.tokenizer import TokenSpan, default_tokenizer, with_places, without_surrogates
from ..weighting.batching import encode_prompts
from ..weighting.chunks import ChunkLayout, Tokenize
from ..weighting.embeddings import TokenId
from ..weighting.encode import EncodedPrompt, EncodeOptions
from ..weighting.scheme_api import EncodeFn, Rows
from ..weighting.towers import Reader, joined, read_for_towers
from .comfy_embeddings import HostEmbeddings
from .comfy_memory import memory_of, with_recall
from .comfy_native import NativeClip, encode_native

logger = logging.getLogger(__name__)

WINDOW = 16
"""Prompts that are encoded together where encodings are remembered."""
MAX_CHUNKS = 32
"""What the host's encoder is then given at once, unless one prompt needs more."""

Conditioning = list[list[Any]]
"""ComfyUI's CONDITIONING: a list of ``[hidden [1, tokens, dim], dict]``."""


class Encoded(NamedTuple):
    """Result of encoding one text."""

    conditioning: Conditioning
    """For the sampler."""
    prompts: dict[str, EncodedPrompt]
    """For each text tower that was ours to run, by name (``clip_l``), what became of the prompt."""
    left_to_host: tuple[str, ...]
    """Text encoders of other families in the same CLIP, which the host ran on the plain text."""


def encode_text(
    clip: Any,
    text: str | Mapping[str, str],
    options: EncodeOptions,
    values: Mapping[str, Any] | None = None,
) -> Encoded:
    """Encode a prompt on a host's CLIP or on our native encoder.

    Args:
        clip: ComfyUI's CLIP object, or a `NativeClip`.
        text: The prompt; or one for each of the CLIP's text towers, by name.
        options: How to read and weight it.
        values: What to add to the conditioning's dictionary, such as sizes.

    Returns:
        The conditioning and what became of the prompt.

    Raises:
        ValueError: If there is no CLIP text tower in ``clip``; the message names what was found.
        PromptError: In strict mode, where the reference raises.
    """
    return encode_texts(clip, [text], options, values)[0]


def encode_texts(
    clip: Any,
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    values: Mapping[str, Any] | None = None,
) -> list[Encoded]:
    """Encode several prompts, as `encode_text` does each.

    On the native encoder they are encoded together, and so they are on a host's CLIP that remembers encodings: the
    first prompt of a window asks for all of it. On any other CLIP each is encoded alone, as the host would.
    """
    by_tower = [text if isinstance(text, Mapping) else dict.fromkeys(towers_of(clip), text) for text in texts]
    if not isinstance(clip, NativeClip):
        window = WINDOW if memory_of(clip) is not None else 1
        return [
            _encode_host(clip, by_tower[index:][: 1 if index % window else window], options, dict(values or {}))
            for index in range(len(by_tower))
        ]
    device = _intermediate_device()
    results: list[Encoded] = []
    for prompts in encode_native(clip, by_tower, options):
        rows = joined(prompts)
        entry = [rows.hidden.to(device), {"pooled_output": rows.pooled.to(device), **(values or {})}]
        results.append(Encoded([entry], prompts, ()))
    return results


def readers_of(clip: Any) -> dict[str, Reader]:
    """What reads prompts for a CLIP's text towers.

    Args:
        clip: ComfyUI's CLIP object, a `NativeClip`, or None for CLIP-L.

    Returns:
        By tower, at least one.

    Raises:
        ValueError: If there is no CLIP text tower in it.
    """
    if clip is None:
        return {"clip_l": Reader(default_tokenizer())}
    if isinstance(clip, NativeClip):
        return clip.readers()
    return {
        name: Reader(_HostTokenize(tokenizer), _layout(tokenizer), _embeddings(tokenizer))
        for name, tokenizer in _tokenizers(clip).items()
    }


def towers_of(clip: Any) -> tuple[str, ...]:
    """Names of the CLIP text towers in a CLIP: ``clip_l``, ``clip_g``, ``clip_h``.

    Raises:
        ValueError: If there is none.
    """
    if clip is None:
        raise ValueError(
            "The clip input is None. If it comes from a checkpoint loader, that checkpoint holds no text encoder: load "
            "one with Load CLIP."
        )
    return tuple(clip.encoders if isinstance(clip, NativeClip) else _tokenizers(clip))


def others_in(clip: Any) -> tuple[str, ...]:
    """Names of the text encoders of other families beside the CLIP towers: ``t5xxl``, ..."""
    if isinstance(clip, NativeClip):
        return ()
    children = dict(clip.cond_stage_model.named_children())
    return tuple(sorted(set(children) - set(_tokenizers(clip))))


def is_stable_diffusion(clip: Any) -> bool:
    """Whether a CLIP is one of Stable Diffusion 1, 2 or XL: of a family that has CLIP text towers alone.

    The host's tokenizer tells of the others also where they are not loaded: Stable Diffusion 3 may do without its T5.
    """
    if isinstance(clip, NativeClip):
        return True
    known = {name for name, value in vars(clip.tokenizer).items() if hasattr(value, "tokenize_with_weights")}
    return not others_in(clip) and known <= set(TOWERS)


def _tokenizers(clip: Any) -> dict[str, Any]:
    """The host's SDTokenizer for each CLIP text tower in a host's CLIP, by the name of its module.

    Raises:
        ValueError: If there is none.
    """
    children = dict(clip.cond_stage_model.named_children())
    tokenizers = {
        name: getattr(clip.tokenizer, name)
        for name, module in children.items()
        if hasattr(getattr(module, "transformer", None), "text_model") and hasattr(clip.tokenizer, name)
    }
    if not tokenizers:
        found = ", ".join(children) or "nothing"
        raise ValueError(
            f"This CLIP ({type(clip.cond_stage_model).__name__}) holds no CLIP text encoder, only: {found}. Weighted "
            "CLIP works on CLIP-L, CLIP-G and CLIP-H; use the host's own encode node for this model."
        )
    return tokenizers


def _encode_host(
    clip: Any, texts: Sequence[Mapping[str, str]], options: EncodeOptions, values: dict[str, Any]
) -> Encoded:
    """Encode the first of some prompts; what the others need is encoded with it, to be remembered."""
    readers, left_to_host = readers_of(clip), others_in(clip)
    # a family with other encoders asks for their tokens, loaded or not: the host's own, for the text as it stands
    tokens: dict[str, Any] = {} if is_stable_diffusion(clip) else clip.tokenize(list(texts[0].values())[-1])
    work = clip.clone()
    prompts: dict[str, EncodedPrompt] = {}
    running: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {}
    all_reads = [read_for_towers(prompt, options, readers) for prompt in texts]
    for name in readers:
        reads = [read[name] for read in all_reads]
        key = name.removeprefix("clip_")  # l, g or h
        tokens[key] = [[(_host_id(token.id), token.weight) for token in chunk.tokens] for chunk in reads[0].chunks]
        tower = work.patcher.get_model_object(name)
        encode, tokenize = with_recall(_encode_fn(tower), tower, work.patcher), readers[name].tokenize

        def run(name: str = name, reads: Any = reads, encode: EncodeFn = encode, tokenize: Tokenize = tokenize):
            encoded = prompts[name] = encode_prompts(reads, encode, tokenize, max_chunks=MAX_CHUNKS)[0]
            return encoded.hidden.to(_intermediate_device()), encoded.pooled.to(_intermediate_device())

        path = f"{name}.encode_token_weights"
        if path in work.patcher.object_patches:
            logger.warning("replacing another pack's patch of %s for this prompt; its own nodes keep it", path)
        running[name] = run
        work.patcher.add_object_patch(path, _planned(running, name, weakref.ref(tower)))

    try:
        conditioning = work.encode_from_tokens_scheduled(tokens, add_dict=values)
    finally:
        running.clear()  # the host leaves the patch on its model until it loads the next
    if set(prompts) != set(readers):
        missing = ", ".join(sorted(set(readers) - set(prompts)))
        raise RuntimeError(
            f"The host encoded without asking Weighted CLIP ({missing}), so the weights would be missing. Please "
            "report this with your ComfyUI version and the nodes between the loader and this one."
        )
    return Encoded(conditioning, {name: prompts[name] for name in readers}, left_to_host)


def _planned(
    running: Mapping[str, Callable[[], tuple[Tensor, Tensor]]], name: str, tower: Callable[[], Any]
) -> Callable[[Any], Any]:
    """What takes the place of a tower's ``encode_token_weights``: ours while it is running, else the host's own.

    The patch outlives our node on the host's model, so it keeps neither results nor the model alive.
    """

    def encode_token_weights(token_weight_pairs: Any) -> Any:
        if name in running:
            return running[name]()  # the host passes the tokens it was given, which our plan knows already
        owner = tower()
        return type(owner).encode_token_weights(owner, token_weight_pairs)

    return encode_token_weights


def _intermediate_device() -> torch.device:
    """Where the host wants conditioning to be."""
    import comfy.model_management as model_management

    return model_management.intermediate_device()


def _encode_fn(tower: Any) -> EncodeFn:
    """A host's text tower (SDClipModel) as an encode function; only to be called while the host encodes."""

    def encode(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True) -> Rows:
        import comfy.model_management as model_management

        # ComfyUI 0.3.64 does not look for an interrupt while it encodes
        model_management.throw_exception_if_processing_interrupted()
        tokens = [[_host_id(token) for token in chunk] for chunk in ids]
        if mask is None and is_causal:
            return Rows(*tower.encode(tokens)[:2])
        if mask is not None:
            mask = check_mask(mask, len(tokens), len(tokens[0]))
        # ComfyUI 0.3.64 has no execution device of its own
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
        return Rows(hidden.float(), pooled.float())

    return encode


def _bidirectional(tower: Any, embeds: Tensor, num_tokens: list[int], mask: Tensor | None) -> tuple[Any, ...]:
    """The host's text model without causality, which its own forward always adds: the same modules, called in turn."""
    import comfy.ops

    model = tower.transformer.text_model
    positions = comfy.ops.cast_to(model.embeddings.position_embedding.weight, dtype=embeds.dtype, device=embeds.device)
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


def _host_id(token: TokenId) -> Any:
    """A token as the host's encoder takes it: an id, or the vector of an embedding."""
    return token if isinstance(token, int) else token.vector


def _layout(tokenizer: Any) -> ChunkLayout:
    return ChunkLayout(
        length=tokenizer.max_length,
        bos_id=tokenizer.start_token,
        eos_id=tokenizer.end_token,
        pad_id=tokenizer.pad_token,
    )


@dataclass(frozen=True)
class _HostTokenize:
    """The host's SDTokenizer as a tokenize function; equal for equal tokenizers, so that what is made of it is kept.

    Ids are the host's. Places in the text are those of our own tokenizer; should the ids ever differ, every token gets
    the whole text as its place.
    """

    tokenizer: Any

    def __call__(self, text: str) -> list[TokenSpan]:
        host = self.tokenizer
        text = without_surrogates(text)
        stop = -1 if host.tokenizer_adds_end_token else None
        ids: list[int] = host.tokenizer(text)["input_ids"][host.tokens_start : stop]
        return with_places(ids, text)


def _embeddings(tokenizer: Any) -> HostEmbeddings | None:
    """What prompts can name for one text tower; None where the host has no folder for embeddings."""
    if tokenizer.embedding_directory is None:
        return None
    return HostEmbeddings(tokenizer.embedding_directory, tokenizer.embedding_size, tokenizer.embedding_key)
