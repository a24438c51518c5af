"""ComfyUI's CLIP as an encode function: prompts in, CONDITIONING out.

A prompt is encoded by the host itself: a temporary clone of the CLIP encodes, with shallow copies of its CLIP text
towers whose ``encode_token_weights`` is ours. So LoRA, clip skip, hooks, schedules and low-memory loading work as in
the host's own node, and nothing that the host or another pack holds is changed.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/reference/hosts.md, "In ComfyUI".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....encoder.cache import DEFAULT_MEBIBYTES
from ....encoder.encoding import EncodeFn
from ....encoder.models.config import TOWERS
from ....encoder.quoting import quote
from ....encoder.tokenizer import default_tokenizer
from ....weighting.chunking import chunks_of
from ....weighting.encoders import Encoders, Prepared
from ....weighting.options import EncodeOptions
from ....weighting.pipeline import EncodedPrompt
from ....weighting.plan import Variant
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.schemes import SCHEMES
from ....weighting.text.prompt import Issue, Span
from ....weighting.towers import Reader, Reads, as_sdxl, check_same_signs
from ..attention.words import with_words, words_or_blend
from ..contract import CLIP, checked_object, host
from ..families.kinds import class_of
from ..models.cache import memory_of, with_memory, with_recall
from ..models.models import NativeClip, encode_native
from ..models.native_clip import is_native
from ..types import Clip, Conditioning, HostTower
from .host_clip import host_clip
from .host_encoding import HostRead, prompt_by_host, read_for_host, stock_note, words_or_reason
from .host_texts import text_as_typed, tokens_of_text
from .schemes import check_repeat, check_signs, for_patched, is_patched, with_signs
from .towers import answered_by, encode_fn, has_towers, host_id, other_rule, reader_of, t5_readers, tokenizers_of

logger = logging.getLogger(__name__)

WINDOW = 16
"""Prompts encoded together if encodings are cached."""
MAX_CHUNKS_CPU = 4
"""Chunks per call of the host's encoder on a CPU, except in calls that the host itself makes: no call takes much longer
than a second."""
MAX_CHUNKS_GPU = 32
"""The same elsewhere."""

EitherClip = Clip | NativeClip
"""Values of our nodes' clip input."""


class EncodedText(NamedTuple):
    """Result of encoding one text."""

    conditioning: Conditioning
    """For the sampler."""
    prompts: dict[str, EncodedPrompt]
    """Encoded prompt for each text tower that we ran, by name (``clip_l``)."""
    left_to_host: tuple[str, ...]
    """Text encoders of other families in the same CLIP, run by the host on the plain text."""
    note: str = ""
    """Note on how the host's own node treats weights in this CLIP, if its tokens are not CLIP's."""
    tokenizer: str = ""
    """Class of the host's tokenizer that read the prompt, if its tokens are not CLIP's."""
    how_computed: Mapping[str, str] = {}
    """The native encoder's kernel and memory in words, by tower."""


def encode_text(
    clip: EitherClip,
    text: str | Mapping[str, str],
    options: EncodeOptions,
    values: Mapping[str, Any] | None = None,
) -> EncodedText:
    """Encode a prompt by a host's CLIP or our native encoder.

    Args:
        clip: ComfyUI's CLIP object, or a `NativeClip`.
        text: The prompt, or one per text tower of the CLIP by name.
        options: Options for reading and weighting it.
        values: Entries to add to the conditioning's dictionary, such as sizes.

    Returns:
        The conditioning and the encoded prompt. A CLIP without a CLIP text tower is left to the host, as far as it
        supports the options.

    Raises:
        ValueError: If it does not; the message names the option.
        RepeatError: If the scheme ``repeat`` cannot weight the prompt, or not for this model.
        NegPipError: If ``negpip`` or ``negpip_apart`` cannot subtract words from it, or not for this model.
        PromptError: In strict mode, if the reference raises.
    """
    return encode_texts(clip, [text], options, values)[0]


def encode_texts(
    clip: EitherClip,
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    values: Mapping[str, Any] | None = None,
    *,
    rows_to_keep: Sequence[int] | None = None,
    shares_work: bool = False,
    check: Callable[[Reads], object] | None = None,
) -> list[EncodedText]:
    """Encode several prompts, each as in `encode_text`.

    The native encoder encodes them together, and so does a host's CLIP with a cache, in windows. Any other CLIP encodes
    each separately, as the host would.

    Args:
        clip: As in `encode_text`, like the texts, options and values.
        texts: The prompts.
        options: Options for all of them.
        values: Entries to add to each conditioning's dictionary.
        rows_to_keep: Numbers of rows to keep, as in `read_together`, for texts that alternate in a picture of the
            WebUI: with equal numbers of rows, and in some schemes evened out together.
        shares_work: Whether a host's CLIP without a cache gets one for these prompts, so that it encodes once what they
            share.
        check: Called with the prompts as CLIP text towers read them, before anything is encoded; the conditioning then
            does not carry the signs of rows, which `with_signs` adds.
    """
    clip = host_clip(clip)
    if shares_work and not isinstance(clip, NativeClip) and towers_of(clip) and memory_of(clip) is None:
        clip = with_memory(clip, DEFAULT_MEBIBYTES)

    def prepared(encoders: Encoders, window: Sequence[str | Mapping[str, str]]) -> Prepared:
        if rows_to_keep is None:
            plan = encoders.prepare(window, options)
        else:
            plan = encoders.prepare_together(list(map(_whole, window)), options, rows_to_keep)
        if check is not None:
            check(plan.reads)
        elif isinstance(clip, NativeClip) or not is_patched(clip):  # CLIP NegPip's MODEL finds signs in the rows
            check_same_signs(plan.reads)
        return plan

    if isinstance(clip, NativeClip):
        plan = prepared(Encoders(clip.readers(), clip.encoders), texts)
        encoded = _encode_natively(clip, plan, values or {})
    else:
        encoded = _encode_in_host(clip, texts, options, dict(values or {}), prepared, is_one=rows_to_keep is not None)
    if check is not None:
        return encoded
    return [each._replace(conditioning=with_signs(each.conditioning, each.prompts)) for each in encoded]


def _encode_natively(clip: NativeClip, plan: Prepared, values: Mapping[str, Any]) -> list[EncodedText]:
    device = host("comfy.model_management").intermediate_device()
    results = encode_native(clip, plan)
    how = {name: encoder.how_computed() for name, encoder in clip.encoders.items()}
    encoded: list[EncodedText] = []
    for result in results:
        entry = [result.hidden.to(device), {"pooled_output": result.pooled.to(device), **values}]
        conditioning = with_words([entry], words_or_blend(result.prompts))
        encoded.append(EncodedText(conditioning, result.prompts, (), how_computed=how))
    return encoded


def _encode_in_host(
    clip: Clip,
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    values: dict[str, Any],
    prepared: Callable[[Encoders, Sequence[str | Mapping[str, str]]], Prepared],
    *,
    is_one: bool,
) -> list[EncodedText]:
    """Encode prompts by a host's CLIP, which reads them in windows; ``is_one``: all of them in one."""
    if clip is not None:
        checked_object(clip, CLIP, "cond_stage_model", "encode_from_tokens_scheduled", "tokenize", "tokenizer")
    if clip is not None and not has_towers(clip):
        requests = [read_for_host(clip, text, options) for text in map(_whole, texts)]
        return [_encoded_by_host(clip, request, values) for request in requests]
    name, *_ = towers_of(clip)  # reports a missing CLIP
    is_remembering = memory_of(clip) is not None
    window_size = max(1, len(texts)) if is_one else WINDOW if is_remembering else 1
    device = torch.device(getattr(clip.patcher, "load_device", "cpu"))
    calls = calls_of(getattr(clip.cond_stage_model, name), device, is_remembering=is_remembering)
    encoders = Encoders({**readers_of(clip), **t5_readers(clip, options.scheme)}, **calls)
    windows = [texts[start : start + window_size] for start in range(0, len(texts), window_size)]
    plans = [prepared(encoders, window) for window in windows]
    for plan in plans:
        if SCHEMES[options.scheme].is_repeating:
            check_repeat(clip, plan.reads, is_stable_diffusion=is_stable_diffusion(clip))
        check_signs(clip, plan.reads, is_stable_diffusion=is_stable_diffusion(clip))
    return [
        encoded
        for window, plan in zip(windows, plans, strict=True)
        for encoded in _encode_host(clip, plan, window, values)
    ]


def calls_of(tower: Any, device: torch.device, *, is_remembering: bool) -> dict[str, Any]:
    """Options of `Encoders` for the calls of a host's tower; a tower of our native encoder has our own calls."""
    if is_native(tower):
        return {}
    max_chunks = MAX_CHUNKS_CPU if device.type == "cpu" else MAX_CHUNKS_GPU
    return {"max_chunks": max_chunks, "keeps_calls": not is_remembering}


def _whole(text: str | Mapping[str, str]) -> str:
    assert isinstance(text, str)  # texts by tower exist only for existing towers
    return text


def readers_of(clip: EitherClip | None) -> dict[str, Reader]:
    """Prompt readers for a CLIP's text towers, by tower; for CLIP-L if there is no CLIP.

    Raises:
        ValueError: If it has no CLIP text tower.
    """
    if clip is None:
        return {"clip_l": Reader(default_tokenizer())}
    if isinstance(clip, NativeClip):
        return clip.readers()
    readers = {name: reader_of(tokenizer) for name, tokenizer in tokenizers_of(clip).items()}
    return as_sdxl(readers) if is_stable_diffusion(clip) else readers


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
    """Whether a CLIP belongs to Stable Diffusion 1, 2 or XL: to a family that has only CLIP text towers.

    The host's tokenizer shows the others even if they are not loaded: Stable Diffusion 3 may run without its T5.
    """
    if isinstance(clip, NativeClip):
        return True
    encoder_names = {name for name, value in vars(clip.tokenizer).items() if hasattr(value, "tokenize_with_weights")}
    return has_towers(clip) and not other_encoders(clip) and encoder_names <= set(TOWERS)


def is_sdxl(clip: EitherClip) -> bool:
    """Whether a CLIP belongs to SDXL or its refiner."""
    has_clip_towers = isinstance(clip, NativeClip) or has_towers(clip)
    return has_clip_towers and is_stable_diffusion(clip) and "clip_g" in towers_of(clip)


def zeroed(conditioning: Conditioning) -> Conditioning:
    """A conditioning with zeros in place of all that is encoded."""
    return [
        [
            torch.zeros_like(rows),
            {name: torch.zeros_like(value) if name == "pooled_output" else value for name, value in values.items()},
        ]
        for rows, values in conditioning
    ]


def other_encoders(clip: Clip) -> tuple[str, ...]:
    """Names of the text encoders of other families besides the CLIP towers: ``t5xxl``, ..."""
    children = dict(clip.cond_stage_model.named_children())
    return tuple(sorted(set(children) - set(tokenizers_of(clip))))


def _encoders_left(clip: Clip, prompts: Container[str]) -> tuple[str, ...]:
    """Names of text encoders besides those that read prompts by our rules."""
    return tuple(name for name in other_encoders(clip) if name not in prompts)


def _encoded_by_host(clip: Clip, request: HostRead, values: Mapping[str, Any]) -> EncodedText:
    """Let the host encode a prompt, unless it is to interrupt the work; for a CLIP without a CLIP text tower."""
    name, host_tokens, prompt = request
    host("comfy.model_management").throw_exception_if_processing_interrupted()
    conditioning = clip.encode_from_tokens_scheduled(host_tokens, add_dict=dict(values))
    left_to_host = {encoder for encoder, _ in clip.cond_stage_model.named_children()} - {name, f"clip_{name}"}
    return EncodedText(
        with_words(conditioning, words_or_reason(clip, host_tokens, conditioning)),
        {name: prompt_by_host(conditioning, prompt)},
        tuple(sorted(left_to_host)),
        stock_note(clip),
        class_of(clip.tokenizer),
    )


def _encode_host(
    clip: Clip, prepared: Prepared, texts: Sequence[str | Mapping[str, str]], values: dict[str, Any]
) -> list[EncodedText]:
    """Encode prompts by calls of the host, one per prompt.

    Several are encoded together when the host requests the first: then nothing changes between its calls. For a single
    prompt the encoder is called as often as the host requests, which under hooks is once for each change of the
    weights.
    """
    model_management = host("comfy.model_management")

    encoded_by_tower: dict[str, list[EncodedPrompt]] = {}

    def run(index: int, name: str, encode: EncodeFn) -> EncodedPrompt:
        if name not in encoded_by_tower or len(texts) == 1:
            check = model_management.throw_exception_if_processing_interrupted
            encoded_by_tower[name] = prepared.run_tower(name, encode, check)
        return encoded_by_tower[name][index]

    return [_call_host(clip, prepared, index, text, partial(run, index), values) for index, text in enumerate(texts)]


def _call_host(
    clip: Clip,
    prepared: Prepared,
    index: int,
    text: str | Mapping[str, str],
    run: Callable[[str, EncodeFn], EncodedPrompt],
    values: dict[str, Any],
) -> EncodedText:
    """Let the host encode one prompt, with ``run`` for its CLIP text towers."""
    model_management = host("comfy.model_management")

    device = model_management.intermediate_device()
    # a family with other encoders needs their tokens, loaded or not: the host's own, for the unchanged text
    last = text if isinstance(text, str) else list(text.values())[-1]
    is_clip = is_stable_diffusion(clip)
    tokens = {} if is_clip else tokens_of_text(clip, text_as_typed(last, EncodeOptions()))
    work = checked_object(clip, CLIP, "clone", "patcher").clone()
    for name, reads in prepared.reads.items():
        tokens[name.removeprefix("clip_")] = _host_tokens(reads[index])  # l, g or h
    model_management.load_models_gpu([work.patcher])
    rule = None if is_patched(clip) else other_rule(work, prepared.reads)
    if rule is not None:
        return _encode_by_other_rule(
            work, rule, {name: tower_reads[index] for name, tower_reads in prepared.reads.items()}, tokens, values
        )
    finish = for_patched if is_patched(clip) else lambda encoded: encoded
    prompts: dict[str, EncodedPrompt] = {}

    def answer(name: str, tower: HostTower) -> tuple[Tensor, Tensor]:
        encoded = prompts[name] = finish(run(name, with_recall(encode_fn(tower), tower, work.patcher)))
        return encoded.hidden.to(device), encoded.pooled.to(device)

    with answered_by(work, {name: partial(answer, name) for name in prepared.reads}):
        conditioning = work.encode_from_tokens_scheduled(tokens, add_dict=values)
    if set(prompts) != set(prepared.reads):
        missing = ", ".join(sorted(set(prepared.reads) - set(prompts)))
        raise RuntimeError(
            f"The host encoded without asking Weighted CLIP ({missing}), so the weights would be missing. Please "
            "report this with your ComfyUI version and the nodes between the loader and this one."
        )
    prompts = {name: prompts[name] for name in prepared.reads}
    words = words_or_blend(prompts)
    if not isinstance(words, str) and not is_clip:
        words = words_or_reason(clip, tokens, conditioning, words[0])
    return EncodedText(with_words(conditioning, words), prompts, _encoders_left(clip, prompts))


def _host_tokens(prompt: ReadPrompt) -> list[list[tuple[Any, float]]]:
    """Tokens and weights of a prompt in the host's form."""
    is_weighing = SCHEMES[prompt.options.scheme].is_weighing
    return [
        [(host_id(token.id), token.weight if is_weighing else 1.0) for token in tokens] for tokens in prompt.encoded
    ]


def _encode_by_other_rule(
    clip: Clip,
    rule: Callable[..., Any],
    reads: Mapping[str, ReadPrompt],
    tokens: dict[str, Any],
    values: dict[str, Any],
) -> EncodedText:
    """Encode a prompt by another pack's function that has replaced the host's, as the host's own node would."""
    function = getattr(rule, "func", rule)
    cause = f"Another node, of {quote(getattr(function, '__module__', None))}, has replaced how this CLIP encodes"
    options = next(iter(reads.values())).options
    if any(section.shares or section.weight != 1.0 for prompt in reads.values() for section in prompt.sections):
        raise ValueError(f"{cause}: .and and .blend do not act. Take them out, or the CLIP from before that node.")
    if options.hide or options.binds or not options.is_causal:
        raise ValueError(f"{cause}: nothing hides words there. Take the CLIP from before that node.")
    logger.warning("%s: its rule acts, and not the scheme of ours", cause)
    message = f"{cause}: its rule acts, not this node’s scheme and settings. For those take the CLIP from before it."
    issue = Issue("other-rule", message, Span(0, 0))
    conditioning = clip.encode_from_tokens_scheduled(tokens, add_dict=values)
    hidden, entry_values = conditioning[0]
    prompts: dict[str, EncodedPrompt] = {}
    for name, prompt in reads.items():
        chunks = chunks_of(prompt.sections)
        plain = Variant(chunks, (None,) * len(chunks), "the prompt")
        prompt = prompt._replace(issues=(issue, *prompt.issues))
        prompts[name] = EncodedPrompt(
            hidden, entry_values["pooled_output"], prompt, 1, variants=partial(tuple, [plain])
        )
    return EncodedText(
        with_words(conditioning, "another pack’s node has made its rows"), prompts, _encoders_left(clip, prompts)
    )
