"""ComfyUI's CLIP as an encode function, and our native encoder as something ComfyUI can manage.

A prompt is encoded by the host itself: on a throw-away clone of the CLIP, each CLIP text tower's
``encode_token_weights`` is replaced for that clone, and the clone is asked to encode. So LoRA, clip skip, hooks,
schedules and low-memory loading work as they do for the host's own node, and the CLIP that came in is never touched.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/weighting.md, "In ComfyUI".
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..encoder.checkpoint import LoadReport, load_text_model
from ..encoder.masks import check_mask
from ..encoder.text_model import TextEncoder
from ..encoder.tokenizer import TokenSpan, default_tokenizer, without_surrogates
from ..weighting.chunks import CLIP_L_LAYOUT, ChunkLayout, Tokenize
from ..weighting.embeddings import Embeddings, TokenId
from ..weighting.encode import EncodedPrompt, EncodeOptions, ReadPrompt, encode_prompt, read_prompt
from ..weighting.scheme_api import EncodeFn, Rows

logger = logging.getLogger(__name__)

Conditioning = list[list[Any]]
"""ComfyUI's CONDITIONING: a list of ``[hidden [1, tokens, dim], dict]``."""


@dataclass(frozen=True)
class NativeClip:
    """What a WEIGHTED_CLIP link carries: our own encoder, kept in memory by the host."""

    encoder: TextEncoder
    """The tower with its layer choice."""
    patcher: Any
    """The host's ModelPatcher round the tower."""
    report: LoadReport
    """Where the weights come from."""


class Encoded(NamedTuple):
    """Result of encoding one text."""

    conditioning: Conditioning
    """For the sampler."""
    prompts: dict[str, EncodedPrompt]
    """For each text tower that was ours to run, by name (``clip_l``), what became of the prompt."""
    left_to_host: tuple[str, ...]
    """Text encoders of other families in the same CLIP, which the host ran on the plain text."""


def encode_text(clip: Any, text: str, options: EncodeOptions) -> Encoded:
    """Encode a prompt on a host's CLIP or on our native encoder.

    Args:
        clip: ComfyUI's CLIP object, or a `NativeClip`.
        text: The prompt.
        options: How to read and weight it.

    Returns:
        The conditioning and what became of the prompt.

    Raises:
        ValueError: If there is no CLIP text tower in ``clip``; the message names what was found.
        PromptError: In strict mode, where the reference raises.
    """
    if clip is None:
        raise ValueError(
            "The clip input is None. If it comes from a checkpoint loader, that checkpoint holds no text encoder: load "
            "one with Load CLIP."
        )
    return _encode_native(clip, text, options) if isinstance(clip, NativeClip) else _encode_host(clip, text, options)


def tokenizer_of(clip: Any) -> tuple[Tokenize, ChunkLayout, Embeddings | None]:
    """What reads prompts for a CLIP: the first CLIP text tower's own tokenizer, layout and embeddings.

    Args:
        clip: ComfyUI's CLIP object, a `NativeClip`, or None for CLIP-L.

    Returns:
        Tokenizer, chunk layout, and the look-up of textual-inversion embeddings if the host has one.
    """
    if clip is None or isinstance(clip, NativeClip):
        return default_tokenizer(), CLIP_L_LAYOUT, None
    tokenizer = next(iter(_towers(clip).values())).tokenizer
    return _tokenize_fn(tokenizer), _layout(tokenizer), _embeddings(tokenizer)


class _Tower(NamedTuple):
    """One CLIP text tower inside a host's CLIP."""

    key: str
    """Its key in the host's token dictionary: ``l``, ``g`` or ``h``."""
    tokenizer: Any
    """The host's SDTokenizer."""


def _towers(clip: Any) -> dict[str, _Tower]:
    """The CLIP text towers in a host's CLIP, by the name of their module.

    Raises:
        ValueError: If there is none.
    """
    children = dict(clip.cond_stage_model.named_children())
    towers = {
        name: _Tower(name.removeprefix("clip_"), getattr(clip.tokenizer, name))
        for name, module in children.items()
        if hasattr(getattr(module, "transformer", None), "text_model") and hasattr(clip.tokenizer, name)
    }
    if not towers:
        found = ", ".join(children) or "nothing"
        raise ValueError(
            f"This CLIP ({type(clip.cond_stage_model).__name__}) holds no CLIP text encoder, only: {found}. Weighted "
            "CLIP works on CLIP-L, CLIP-G and CLIP-H; use the host's own encode node for this model."
        )
    return towers


def _encode_host(clip: Any, text: str, options: EncodeOptions) -> Encoded:
    import comfy.model_management as model_management

    towers = _towers(clip)
    children = dict(clip.cond_stage_model.named_children())
    # a CLIP that carries encoders of other families too: their tokens are the host's, for the text as it stands
    tokens: dict[str, Any] = clip.tokenize(text) if set(children) != set(towers) else {}
    left_to_host = tuple(sorted(set(children) - set(towers)))

    work = clip.clone()
    prompts: dict[str, EncodedPrompt] = {}
    for name, tower in towers.items():
        tokenize, layout = _tokenize_fn(tower.tokenizer), _layout(tower.tokenizer)
        read = read_prompt(text, options, tokenize, layout, embeddings=_embeddings(tower.tokenizer))
        tokens[tower.key] = [[(_host_id(token.id), token.weight) for token in chunk.tokens] for chunk in read.chunks]
        encode = _encode_fn(work.patcher.get_model_object(name))

        def run(name: str = name, read: ReadPrompt = read, encode: EncodeFn = encode, tokenize: Tokenize = tokenize):
            encoded = prompts[name] = encode_prompt(read, encode, tokenize)
            device = model_management.intermediate_device()
            return encoded.hidden.to(device), encoded.pooled.to(device)

        path = f"{name}.encode_token_weights"
        if path in work.patcher.object_patches:
            logger.warning("replacing another pack's patch of %s for this prompt; its own nodes keep it", path)
        # the host passes the tokens it was given, which our plan knows already
        work.patcher.add_object_patch(path, lambda token_weight_pairs, run=run: run())

    conditioning = work.encode_from_tokens_scheduled(tokens)
    if set(prompts) != set(towers):
        missing = ", ".join(sorted(set(towers) - set(prompts)))
        raise RuntimeError(
            f"The host encoded without asking Weighted CLIP ({missing}), so the weights would be missing. Please "
            "report this with your ComfyUI version and the nodes between the loader and this one."
        )
    return Encoded(conditioning, prompts, left_to_host)


def _encode_fn(tower: Any) -> EncodeFn:
    """A host's text tower (SDClipModel) as an encode function; only to be called while the host encodes."""

    def encode(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None) -> Rows:
        tokens = [[_host_id(token) for token in chunk] for chunk in ids]
        if mask is None:
            return Rows(*tower.encode(tokens)[:2])
        # the same call as the host's own, with the mask: it takes 1 = may be attended and adds causality
        check_mask(mask, len(tokens), len(tokens[0]))
        # ComfyUI 0.3.64 has no execution device of its own
        device = getattr(tower, "execution_device", None) or tower.transformer.get_input_embeddings().weight.device
        embeds, _, num_tokens, embeds_info = tower.process_tokens(tokens, device)
        last, intermediate, projected, unprojected = tower.transformer(
            None,
            mask.long().to(device),
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


def _tokenize_fn(tokenizer: Any) -> Tokenize:
    """The host's SDTokenizer as a tokenize function.

    Ids are the host's. Places in the text are those of our own tokenizer; should the ids ever differ, every token gets
    the whole text as its place.
    """
    stop = -1 if tokenizer.tokenizer_adds_end_token else None

    def tokenize(text: str) -> list[TokenSpan]:
        text = without_surrogates(text)
        ids: list[int] = tokenizer.tokenizer(text)["input_ids"][tokenizer.tokens_start : stop]
        ours = default_tokenizer()(text)
        if ids == [token.id for token in ours]:
            return ours
        return [TokenSpan(token_id, 0, len(text)) for token_id in ids]

    return tokenize


@dataclass(frozen=True)
class _HostEmbeddings:
    """The host's textual-inversion embeddings for one text tower, by the host's own loader."""

    tokenizer: Any
    """The host's SDTokenizer."""

    def names(self) -> list[str]:
        import folder_paths

        # the name alone is enough, also for a file in a sub-folder, as in the WebUI
        return sorted({PurePath(name).stem for name in folder_paths.get_filename_list("embeddings")})

    def find(self, name: str) -> list[Tensor] | None:
        import comfy.sd1_clip as sd1_clip

        tokenizer = self.tokenizer
        found = sd1_clip.load_embed(
            name, tokenizer.embedding_directory, tokenizer.embedding_size, tokenizer.embedding_key
        )
        return None if found is None else list(torch.atleast_2d(found))


def _embeddings(tokenizer: Any) -> Embeddings | None:
    """What prompts can name for one text tower; None where the host has no folder for embeddings."""
    return None if tokenizer.embedding_directory is None else _HostEmbeddings(tokenizer)


def load_native(path: str, *, clip_skip: int, dtype: torch.dtype, device: str) -> NativeClip:
    """Read a text tower from a file and hand its memory to the host.

    Args:
        path: A safetensors file.
        clip_skip: 1 = last layer, 2 = penultimate, ...
        dtype: Type of the weights and of the arithmetic.
        device: ``auto`` for the host's choice of device for text encoders, or ``cpu``.

    Returns:
        The encoder.

    Raises:
        CheckpointError: If the file cannot be used.
        ValueError: If ``clip_skip`` is out of range.
    """
    import comfy.model_management as model_management
    from comfy.model_patcher import ModelPatcher

    model, report = load_text_model(path, dtype=dtype)
    encoder = TextEncoder(model, clip_skip=clip_skip)
    cpu = torch.device("cpu")
    load_device = model_management.text_encoder_device() if device == "auto" else cpu
    offload_device = model_management.text_encoder_offload_device() if device == "auto" else cpu
    return NativeClip(encoder, ModelPatcher(model, load_device=load_device, offload_device=offload_device), report)


def _encode_native(clip: NativeClip, text: str, options: EncodeOptions) -> Encoded:
    import comfy.model_management as model_management

    model_management.load_models_gpu([clip.patcher])
    config, tokenize = clip.encoder.config, default_tokenizer()
    layout = ChunkLayout(config.context_length, config.bos_id, config.eos_id, config.pad_id)
    encoded = encode_prompt(read_prompt(text, options, tokenize, layout), clip.encoder, tokenize)
    device = model_management.intermediate_device()
    conditioning = [[encoded.hidden.to(device), {"pooled_output": encoded.pooled.to(device)}]]
    return Encoded(conditioning, {"native": encoded}, ())
