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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...encoder.config import TOWERS
from ...encoder.encoding import EncodeFn, Encoding
from ...encoder.masks import check_mask
from ...encoder.tokenizer import default_tokenizer
from ...weighting.asking import Check
from ...weighting.chunks import ChunkLayout
from ...weighting.embeddings import TokenId
from ...weighting.encode import EncodedPrompt, EncodeOptions
from ...weighting.encoders import Encoders, Prepared
from ...weighting.towers import Reader
from ..tokenizing import HostTokenize
from .embeddings import HostEmbeddings
from .memory import memory_of, with_recall
from .native import NativeClip, encode_native

logger = logging.getLogger(__name__)

WINDOW = 16
"""Prompts that are encoded together where encodings are remembered."""
MAX_CHUNKS_CPU = 4
"""Chunks that the host's encoder is given at once on a CPU, but for the calls that the host itself makes: no call takes
much longer than a second."""
MAX_CHUNKS_GPU = 32
"""The same elsewhere."""

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

    On the native encoder they are encoded together, and so they are on a host's CLIP that remembers encodings, in
    windows. On any other CLIP each is encoded alone, as the host would.
    """
    if isinstance(clip, NativeClip):
        device = _intermediate_device()
        results: list[Encoded] = []
        for one in encode_native(clip, texts, options):
            entry = [one.hidden.to(device), {"pooled_output": one.pooled.to(device), **(values or {})}]
            results.append(Encoded([entry], one.prompts, ()))
        return results
    towers_of(clip)  # raises where there are none
    is_remembering = memory_of(clip) is not None
    window = WINDOW if is_remembering else 1
    device = getattr(clip.patcher, "load_device", torch.device("cpu"))
    max_chunks = MAX_CHUNKS_CPU if torch.device(device).type == "cpu" else MAX_CHUNKS_GPU
    encoders = Encoders(readers_of(clip), max_chunks=max_chunks, keeps_calls=not is_remembering)
    return [
        encoded
        for start in range(0, len(texts), window)
        for encoded in _encode_host(clip, encoders, texts[start : start + window], options, dict(values or {}))
    ]


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
        name: Reader(HostTokenize(tokenizer, _host_ids), _layout(tokenizer), _embeddings(tokenizer))
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
    clip: Any,
    encoders: Encoders,
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    values: dict[str, Any],
) -> list[Encoded]:
    """Encode prompts by calls of the host, one for each.

    Several are encoded together when the host asks for the first: then nothing changes between its calls. For one
    prompt the encoder is asked as often as the host asks, which under hooks is once for each change of the weights.
    """
    prepared = encoders.prepare(texts, options)
    kept: dict[str, list[EncodedPrompt]] = {}
    results: list[Encoded] = []
    for index, text in enumerate(texts):

        def run(name: str, encode: EncodeFn, index: int = index) -> EncodedPrompt:
            if name not in kept or len(texts) == 1:
                kept[name] = prepared.run_tower(name, encode, _interrupt_check())
            return kept[name][index]

        results.append(_call_host(clip, prepared, index, text, run, values))
    return results


def _call_host(
    clip: Any,
    prepared: Prepared,
    index: int,
    text: str | Mapping[str, str],
    run: Callable[[str, EncodeFn], EncodedPrompt],
    values: dict[str, Any],
) -> Encoded:
    """Have the host encode one prompt, with ``run`` for its CLIP text towers."""
    # a family with other encoders asks for their tokens, loaded or not: the host's own, for the text as it stands
    last = text if isinstance(text, str) else list(text.values())[-1]
    tokens: dict[str, Any] = {} if is_stable_diffusion(clip) else clip.tokenize(last)
    work = clip.clone()
    prompts: dict[str, EncodedPrompt] = {}
    running: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {}
    for name, reads in prepared.reads.items():
        key = name.removeprefix("clip_")  # l, g or h
        tokens[key] = [[(_host_id(token.id), token.weight) for token in chunk.tokens] for chunk in reads[index].chunks]
        tower = work.patcher.get_model_object(name)
        recalling = with_recall(_encode_fn(tower), tower, work.patcher)

        def answer(name: str = name, encode: EncodeFn = recalling):
            encoded = prompts[name] = run(name, encode)
            return encoded.hidden.to(_intermediate_device()), encoded.pooled.to(_intermediate_device())

        path = f"{name}.encode_token_weights"
        if path in work.patcher.object_patches:
            logger.warning("replacing another pack's patch of %s for this prompt; its own nodes keep it", path)
        running[name] = answer
        work.patcher.add_object_patch(path, _planned(running, name, weakref.ref(tower)))

    try:
        conditioning = work.encode_from_tokens_scheduled(tokens, add_dict=values)
    finally:
        running.clear()  # the host leaves the patch on its model until it loads the next
    if set(prompts) != set(prepared.reads):
        missing = ", ".join(sorted(set(prepared.reads) - set(prompts)))
        raise RuntimeError(
            f"The host encoded without asking Weighted CLIP ({missing}), so the weights would be missing. Please "
            "report this with your ComfyUI version and the nodes between the loader and this one."
        )
    return Encoded(conditioning, {name: prompts[name] for name in prepared.reads}, others_in(clip))


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


def _interrupt_check() -> Check:
    """What raises when the host's user has pressed Cancel."""
    import comfy.model_management as model_management

    return model_management.throw_exception_if_processing_interrupted


def _intermediate_device() -> torch.device:
    """Where the host wants conditioning to be."""
    import comfy.model_management as model_management

    return model_management.intermediate_device()


def _encode_fn(tower: Any) -> EncodeFn:
    """A host's text tower (SDClipModel) as an encode function; only to be called while the host encodes."""

    def encode(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        tokens = [[_host_id(token) for token in chunk] for chunk in ids]
        if mask is None and is_causal:
            return Encoding(*tower.encode(tokens)[:2])
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
        return Encoding(hidden.float(), pooled.float())

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


def _host_ids(tokenizer: Any, text: str) -> Sequence[int]:
    """The ids of a host's SDTokenizer."""
    stop = -1 if tokenizer.tokenizer_adds_end_token else None
    return tokenizer.tokenizer(text)["input_ids"][tokenizer.tokens_start : stop]


def _embeddings(tokenizer: Any) -> HostEmbeddings | None:
    """What prompts can name for one text tower; None where the host has no folder for embeddings."""
    if tokenizer.embedding_directory is None:
        return None
    return HostEmbeddings(tokenizer.embedding_directory, tokenizer.embedding_size, tokenizer.embedding_key)
