"""Prompts whose words are weighted in the attention: rows of a CONDITIONING by word.

The text is encoded without weights. Our parser and the host's own tokenizer make its chunks, and so its rows.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from ....encoder.quoting import quote
from ....weighting.attention import PLAIN, effect_of, way_of
from ....weighting.options import EncodeOptions
from ....weighting.pipeline import EncodedPrompt
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.view import counted
from ....weighting.schemes import SCHEMES
from ....weighting.text.chunks import Token
from ....weighting.towers import Reads
from ..attention.attention import NOT_ACTING, with_effects
from ..attention.text_rows import as_read, num_rows_read
from ..attention.words import with_words
from ..contract import host
from ..families.families import FAMILIES, ModelFamily, text_family
from ..families.kinds import class_of
from ..models.models import NativeClip
from ..types import Clip, ModelPatcher
from .clip import EitherClip, EncodedText, encode_text, encode_texts, is_stable_diffusion, other_encoders, towers_of
from .host_clip import host_clip
from .host_encoding import prompt_by_host, stock_note
from .host_texts import text_to_weigh, tokens_of_text
from .marks import unweighted
from .rows import check_embeddings, parts_of_rows, read_of_tokens, shared_tokens, words_of_rows

KNOWN_MODELS = ", ".join(family.title for family in FAMILIES)
"""Names of the known models."""


class WeighedWord(NamedTuple):
    """A weighted stretch of the prompt, with its rows."""

    text: str
    """Its text as typed, without syntax."""
    weight: float
    """Its weight as read."""
    rows: tuple[int, ...]
    """Its rows in the conditioning, counted from 0."""


class WeightedText(NamedTuple):
    """A prompt with weights that act in the attention."""

    encoded: EncodedText
    """Its conditioning, which carries the weights, and the prompt as read."""
    words: tuple[WeighedWord, ...]
    """Weighted words; if empty, the conditioning equals the host's own node's."""
    model: ModelPatcher | None
    """The model for it, if one was given."""


def weight_text(
    clip: EitherClip,
    text: str,
    options: EncodeOptions,
    how: str,
    strength: float = 1.0,
    model: ModelPatcher | None = None,
    node_id: str | None = None,
) -> WeightedText:
    """Encode a prompt without its weights, and weight its words in the attention.

    Args:
        clip: ComfyUI's CLIP, or a `NativeClip`.
        text: The prompt.
        options: Options; the scheme is ignored.
        how: Effect of a weight, one of `WAYS`.
        strength: Scale of weights, as in `effect_of`.
        model: Model for the weights to act in; None for any model that samples with the conditioning.
        node_id: Node to notify after sampling where they acted.

    Returns:
        Conditioning, words and model.

    Raises:
        ValueError: If the rows of a word cannot be determined for this CLIP.
    """
    options = replace(options, scheme=way_of(how).scheme, strength=strength)
    clip = host_clip(clip)
    moves_rows = _moves_rows(how)
    family = None if clip is None or isinstance(clip, NativeClip) else text_family(clip)
    if family is not None and not isinstance(clip, NativeClip):
        encode = _encode_as_negpip if moves_rows else encode_without_weights
        encoded, tokens = encode(clip, family, text, options)
    else:
        _check_is_known(clip)
        encoded = encode_texts(clip, [text], options, check=_rows_of)[0]
        tokens = _rows_of({name: [prompt.read] for name, prompt in encoded.prompts.items()})
    effects = [effect_of(token.weight, how, strength) for token in tokens]
    conditioning, model = with_effects(encoded.conditioning, effects, model, node_id)
    is_weighed = [token.weight != 1.0 for token in tokens] if moves_rows else [effect != PLAIN for effect in effects]
    words = _words(text, tokens, is_weighed)
    prompts = {name: without_ignored(prompt) for name, prompt in encoded.prompts.items()}
    return WeightedText(encoded._replace(conditioning=conditioning, prompts=prompts), words, model)


def without_ignored(prompt: EncodedPrompt) -> EncodedPrompt:
    """A prompt without the problem that its scheme applies no weights: they act later."""
    issues = tuple(issue for issue in prompt.read.issues if issue.code != "ignored-weights")
    return prompt._replace(read=prompt.read._replace(issues=issues))


def report_of(weighed: WeightedText, how: str, strength: float) -> list[str]:
    """Lines about the weighted words with their rows, and about those not weighted."""
    if not weighed.words:
        return ["no word is weighted: the conditioning is that of CLIP Text Encode"]
    lines = [f"weighted in the attention by {how}, strength {strength:g}:"]
    if _moves_rows(how):
        lines = [
            f"weighted by {how}, strength {strength:g}: rows as ComfyUI does, below 0 taken away in the attention:"
        ]
    for text, weight, rows in weighed.words:
        lines.append(f"  {quote(text)} {weight:.4g}: {'row' if len(rows) == 1 else 'rows'} {_ranges(rows)}")
    num_rows = sum(len(word.rows) for word in weighed.words)
    lines.append(f"{counted(num_rows, 'row')}, counted from 0; after sampling ComfyUI's log says in how many layers")
    lines.append("not weighted: the pooled vector, and what a ControlNet reads")
    is_said = any(prompt.signs for prompt in weighed.encoded.prompts.values())  # by the report on the encoding
    return lines if is_said else [*lines, NOT_ACTING]


def _moves_rows(how: str) -> bool:
    """Whether weights move the rows as well, before the image reads them."""
    return SCHEMES[way_of(how).scheme].is_weighing


def _check_is_known(clip: EitherClip) -> None:
    """Refuse text encoders with unknown rows."""
    towers_of(clip)  # raises if there are none
    if isinstance(clip, NativeClip) or is_stable_diffusion(clip):
        return
    encoder_names = ", ".join(other_encoders(clip)) or "none loaded"
    raise ValueError(
        "Attention Weights does not know which rows are a word's in this CLIP "
        f"({type(clip.cond_stage_model).__name__}; beside CLIP: {encoder_names}). It works on {KNOWN_MODELS}."
    )


def encode_without_weights(
    clip: Clip, family: ModelFamily, text: str, options: EncodeOptions
) -> tuple[EncodedText, Sequence[Token]]:
    """Let the host encode a prompt without its syntax; also returns the token of each row."""
    host_text = text_to_weigh(clip, family, text, options)
    tokens = tokens_of_text(clip, host_text)
    check_embeddings(family, tokens)
    host("comfy.model_management").throw_exception_if_processing_interrupted()
    conditioning = clip.encode_from_tokens_scheduled(unweighted(tokens))
    hidden, values = conditioning[0]
    key, read_prompt = read_of_tokens(tokens, family.names_of(clip)) or ("", as_read(host_text.prompt, (), (), options))
    prompt = prompt_by_host(conditioning, read_prompt)
    parts = parts_of_rows(clip, family, tokens, num_rows_read(hidden, values), {})
    conditioning = with_words(conditioning, words_of_rows(parts, {}))
    return EncodedText(conditioning, {key: prompt}, (), stock_note(clip), class_of(clip.tokenizer)), shared_tokens(
        parts
    )


def _encode_as_negpip(
    clip: Clip, family: ModelFamily, text: str, options: EncodeOptions
) -> tuple[EncodedText, tuple[Token, ...]]:
    """Let the host encode a prompt of Anima with absolute weights; also returns the weighted token of each row."""
    if not family.has_row_weights:
        raise ValueError(
            f"how negpip works on Stable Diffusion 1, 2 and XL and on Anima, as CLIP NegPip of ComfyUI-ppm does, not "
            f"on {family.title}. Take bias, which takes words of weights below 0 away as well."
        )
    encoded = encode_text(clip, text, replace(options, scheme="comfy"))
    ((hidden, values),) = encoded.conditioning
    weights = values["t5xxl_weights"]
    (chunk,) = next(iter(encoded.prompts.values())).read.chunks
    if len(chunk.content) + 1 != len(weights):  # the end of the text
        raise ValueError(f"Attention Weights cannot tell which rows of {family.title} are a word's in this prompt.")
    tokens = [token._replace(weight=weight) for token, weight in zip(chunk.content, weights.tolist(), strict=False)]
    tokens += [Token(0)] * (num_rows_read(hidden, values) - len(tokens))
    row_weights = (1.0 + options.strength * (weights - 1.0)).abs()
    return encoded._replace(conditioning=[[hidden, {**values, "t5xxl_weights": row_weights}]]), tuple(tokens)


def _rows_of(reads: Reads) -> tuple[Token, ...]:
    """Token of each row of a prompt, as read by each tower."""
    by_tower = {name: _tokens_of(prompt) for name, (prompt,) in reads.items()}
    (first, tokens), *other_towers = by_tower.items()
    for name, tower_tokens in other_towers:
        differing = [
            row
            for row, (token, tower_token) in enumerate(zip(tokens, tower_tokens, strict=True))
            if token.weight != tower_token.weight
        ]
        if differing:
            raise ValueError(
                f"The text encoders {first} and {name} have different words in row {differing[0]}, as an embedding has "
                "more vectors for one of them: their rows have one weight together. Take its weight and those behind "
                "it off, or the embedding out."
            )
    return tokens


def check_sections(sections: Sequence[Any]) -> None:
    """Refuse the sections of a prompt that is encoded as several prompts."""
    if len(sections) > 1 or any(section.shares or section.weight != 1.0 for section in sections):
        raise ValueError(
            "Attention Weights does not take .and and .blend, whose rows are several prompts: encode each prompt on "
            "its own and join them with Conditioning (Combine)."
        )


def _tokens_of(prompt: ReadPrompt) -> tuple[Token, ...]:
    check_sections(prompt.sections)
    return tuple(token for chunk in prompt.chunks for token in chunk.tokens)


def _words(text: str, tokens: Sequence[Token], is_weighed: Sequence[bool]) -> tuple[WeighedWord, ...]:
    weighed = [row for row, flag in enumerate(is_weighed) if flag]
    by_word: dict[tuple[int, float], list[int]] = {}  # several positions, if encoders follow each other
    for row in weighed:
        by_word.setdefault((tokens[row].fragment, tokens[row].weight), []).append(row)
    words: list[WeighedWord] = []
    for rows in map(tuple, by_word.values()):
        spans = [tokens[row].at for row in rows]
        typed = text[min(span.start for span in spans) : max(span.end for span in spans)]
        words.append(WeighedWord(typed, tokens[rows[0]].weight, rows))
    return tuple(words)


def _ranges(rows: Sequence[int]) -> str:
    """Format row numbers briefly.

    >>> _ranges([1, 2, 3, 7])
    '1-3, 7'
    """
    parts: list[str] = []
    for _, group in groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        run = [row for _, row in group]
        parts.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(parts)
