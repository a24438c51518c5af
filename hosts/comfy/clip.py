"""ComfyUI's CLIP as an encode function: prompts in, CONDITIONING out.

A prompt is encoded by the host itself: on a throw-away clone of the CLIP, each CLIP text tower's
``encode_token_weights`` is replaced for that clone, and the clone is asked to encode. So LoRA, clip skip, hooks,
schedules and low-memory loading work as they do for the host's own node, and the CLIP that came in is never touched.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/reference/hosts.md, "In ComfyUI".
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...encoder.config import TOWERS
from ...encoder.encoding import EncodeFn
from ...encoder.tokenizer import default_tokenizer
from ...weighting.encode import EncodedPrompt, EncodeOptions
from ...weighting.encoders import Encoders, Prepared
from ...weighting.schemes.negpip import SIGNED
from ...weighting.towers import Reader
from .by_host import encode_by_host, stock_note
from .contract import CLIP, PATCHER, checked_object, host
from .memory import memory_of, with_recall
from .native import NativeClip, encode_native
from .negpip import check_signs, for_patched, is_patched, with_signs
from .repeat import check_repeat
from .text_rows import class_of
from .towers import encode_fn, has_towers, host_id, reader_of, tokenizers_of
from .types import Clip, Conditioning, Tower

logger = logging.getLogger(__name__)

WINDOW = 16
"""Prompts that are encoded together where encodings are remembered."""
MAX_CHUNKS_CPU = 4
"""Chunks that the host's encoder is given at once on a CPU, but for the calls that the host itself makes: no call takes
much longer than a second."""
MAX_CHUNKS_GPU = 32
"""The same elsewhere."""

EitherClip = Clip | NativeClip
"""What the clip input of our nodes takes."""


class Encoded(NamedTuple):
    """Result of encoding one text."""

    conditioning: Conditioning
    """For the sampler."""
    prompts: dict[str, EncodedPrompt]
    """For each text tower that was ours to run, by name (``clip_l``), what became of the prompt."""
    left_to_host: tuple[str, ...]
    """Text encoders of other families in the same CLIP, which the host ran on the plain text."""
    note: str = ""
    """What the host's own node does with weights in this CLIP, where its tokens are not those of CLIP."""
    tokenizer: str = ""
    """The class of the host's tokenizer that read the prompt, where its tokens are not those of CLIP."""


def encode_text(
    clip: EitherClip,
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
        The conditioning and what became of the prompt. A CLIP without a CLIP text tower is left to the host, as far as
        it can do what is asked for.

    Raises:
        ValueError: If that is not so; the message names the option.
        RepeatError: If the scheme ``repeat`` cannot weight the prompt, or not for this model.
        NegPipError: If ``negpip`` or ``negpip_apart`` cannot take words away from it, or not for this model.
        PromptError: In strict mode, where the reference raises.
    """
    return encode_texts(clip, [text], options, values)[0]


def encode_texts(
    clip: EitherClip,
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    values: Mapping[str, Any] | None = None,
) -> list[Encoded]:
    """Encode several prompts, as `encode_text` does each.

    On the native encoder they are encoded together, and so they are on a host's CLIP that remembers encodings, in
    windows. On any other CLIP each is encoded alone, as the host would.
    """
    return [
        one._replace(conditioning=with_signs(one.conditioning, one.prompts))
        for one in encode_unsigned(clip, texts, options, values)
    ]


def encode_unsigned(
    clip: EitherClip,
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    values: Mapping[str, Any] | None = None,
) -> list[Encoded]:
    """As `encode_texts`, with conditioning that does not carry the signs of rows: `with_signs` adds them."""
    model_management = host("comfy.model_management")

    values = dict(values or {})
    if isinstance(clip, NativeClip):
        device = model_management.intermediate_device()
        return [
            Encoded([[one.hidden.to(device), {"pooled_output": one.pooled.to(device), **values}]], one.prompts, ())
            for one in encode_native(clip, texts, options)
        ]
    if clip is not None:
        checked_object(clip, CLIP, "cond_stage_model", "encode_from_tokens_scheduled", "tokenize", "tokenizer")
    if clip is not None and not has_towers(clip):
        return [_encoded_by_host(clip, text, options, values) for text in texts]
    towers_of(clip)  # says what None is
    is_remembering = memory_of(clip) is not None
    window = WINDOW if is_remembering else 1
    device = torch.device(getattr(clip.patcher, "load_device", "cpu"))
    max_chunks = MAX_CHUNKS_CPU if device.type == "cpu" else MAX_CHUNKS_GPU
    encoders = Encoders(readers_of(clip), max_chunks=max_chunks, keeps_calls=not is_remembering)
    return [
        encoded
        for start in range(0, len(texts), window)
        for encoded in _encode_host(clip, encoders, texts[start : start + window], options, values)
    ]


def readers_of(clip: EitherClip | None) -> dict[str, Reader]:
    """What reads prompts for a CLIP's text towers, by tower; for CLIP-L if there is no CLIP.

    Raises:
        ValueError: If there is no CLIP text tower in it.
    """
    if clip is None:
        return {"clip_l": Reader(default_tokenizer())}
    if isinstance(clip, NativeClip):
        return clip.readers()
    return {name: reader_of(tokenizer) for name, tokenizer in tokenizers_of(clip).items()}


def towers_of(clip: EitherClip | None) -> tuple[str, ...]:
    """Names of the CLIP text towers in a CLIP: ``clip_l``, ``clip_g``, ``clip_h``.

    Raises:
        ValueError: If there is none.
    """
    if clip is None:
        raise ValueError(
            "The clip input is None. If it comes from a checkpoint loader, that checkpoint holds no text encoder: load "
            "one with Load CLIP."
        )
    return tuple(clip.encoders if isinstance(clip, NativeClip) else tokenizers_of(clip))


def is_stable_diffusion(clip: EitherClip) -> bool:
    """Whether a CLIP is one of Stable Diffusion 1, 2 or XL: of a family that has CLIP text towers alone.

    The host's tokenizer tells of the others also where they are not loaded: Stable Diffusion 3 may do without its T5.
    """
    if isinstance(clip, NativeClip):
        return True
    known = {name for name, value in vars(clip.tokenizer).items() if hasattr(value, "tokenize_with_weights")}
    return has_towers(clip) and not others_in(clip) and known <= set(TOWERS)


def others_in(clip: Clip) -> tuple[str, ...]:
    """Names of the text encoders of other families beside the CLIP towers: ``t5xxl``, ..."""
    children = dict(clip.cond_stage_model.named_children())
    return tuple(sorted(set(children) - set(tokenizers_of(clip))))


def _encoded_by_host(
    clip: Clip, text: str | Mapping[str, str], options: EncodeOptions, values: Mapping[str, Any]
) -> Encoded:
    """A prompt on a CLIP without a CLIP text tower."""
    assert isinstance(text, str)  # texts for towers are for towers that are there
    found = encode_by_host(clip, text, options, values)
    others = {name for name, _ in clip.cond_stage_model.named_children()} - {found.encoder, f"clip_{found.encoder}"}
    prompts = {found.encoder: found.prompt}
    return Encoded(found.conditioning, prompts, tuple(sorted(others)), stock_note(clip), class_of(clip.tokenizer))


def _encode_host(
    clip: Clip,
    encoders: Encoders,
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    values: dict[str, Any],
) -> list[Encoded]:
    """Encode prompts by calls of the host, one for each.

    Several are encoded together when the host asks for the first: then nothing changes between its calls. For one
    prompt the encoder is asked as often as the host asks, which under hooks is once for each change of the weights.
    """
    model_management = host("comfy.model_management")

    prepared = encoders.prepare(texts, options)
    if options.scheme == "repeat":
        check_repeat(clip, prepared.reads, is_stable_diffusion=is_stable_diffusion(clip))
    if options.scheme in SIGNED:
        check_signs(clip, prepared.reads, is_stable_diffusion=is_stable_diffusion(clip))
    kept: dict[str, list[EncodedPrompt]] = {}

    def run(index: int, name: str, encode: EncodeFn) -> EncodedPrompt:
        if name not in kept or len(texts) == 1:
            check = model_management.throw_exception_if_processing_interrupted
            kept[name] = prepared.run_tower(name, encode, check)
        return kept[name][index]

    return [_call_host(clip, prepared, index, text, partial(run, index), values) for index, text in enumerate(texts)]


def _call_host(
    clip: Clip,
    prepared: Prepared,
    index: int,
    text: str | Mapping[str, str],
    run: Callable[[str, EncodeFn], EncodedPrompt],
    values: dict[str, Any],
) -> Encoded:
    """Have the host encode one prompt, with ``run`` for its CLIP text towers."""
    model_management = host("comfy.model_management")

    device = model_management.intermediate_device()
    # a family with other encoders asks for their tokens, loaded or not: the host's own, for the text as it stands
    last = text if isinstance(text, str) else list(text.values())[-1]
    tokens: dict[str, Any] = {} if is_stable_diffusion(clip) else clip.tokenize(last)
    work = checked_object(clip, CLIP, "clone", "patcher").clone()
    checked_object(work.patcher, PATCHER, "add_object_patch", "get_model_object", "object_patches")
    finish = for_patched if is_patched(clip) else lambda encoded: encoded
    prompts: dict[str, EncodedPrompt] = {}
    running: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {}
    for name, reads in prepared.reads.items():
        key = name.removeprefix("clip_")  # l, g or h
        tokens[key] = [[(host_id(token.id), token.weight) for token in chunk.tokens] for chunk in reads[index].chunks]
        tower: Tower = work.patcher.get_model_object(name)
        recalling = with_recall(encode_fn(tower), tower, work.patcher)

        def answer(name: str = name, encode: EncodeFn = recalling):
            encoded = prompts[name] = finish(run(name, encode))
            return encoded.hidden.to(device), encoded.pooled.to(device)

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
    running: Mapping[str, Callable[[], tuple[Tensor, Tensor]]], name: str, tower: weakref.ref[Tower]
) -> Callable[[Any], Any]:
    """What takes the place of a tower's ``encode_token_weights``: ours while it is running, else the host's own.

    The patch outlives our node on the host's model, so it keeps neither results nor the model alive.
    """

    def encode_token_weights(token_weight_pairs: Any) -> Any:
        if name in running:
            return running[name]()  # the host passes the tokens it was given, which our plan knows already
        owner = tower()
        assert owner is not None  # the host asks it
        return type(owner).encode_token_weights(owner, token_weight_pairs)

    return encode_token_weights
