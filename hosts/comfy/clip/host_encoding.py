"""Prompts for CLIPs without a CLIP text tower: T5, Qwen, Gemma and other encoders, which the host runs itself.

Only what the host's own node does with a prompt is possible here: it weights rows, as in the scheme ``comfy``, or reads
weights as text. A prompt in another syntax is rewritten in the host's, and weights that would be read as text are
stripped. Other requests are refused by name.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Text encoders other than CLIP".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from types import MappingProxyType
from typing import Any, NamedTuple

from ....weighting.options import EncodeOptions
from ....weighting.phrases.words import Words
from ....weighting.pipeline import EncodedPrompt
from ....weighting.reading.characters import Character, stripped
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.schemes import SCHEMES
from ....weighting.syntax import syntax_of
from ....weighting.text.prompt import Issue, Span
from ..attention.text_rows import Part, as_read, num_rows_read
from ..families.families import text_family
from ..titles import WEIGHTED_PROMPT
from ..types import Clip, Conditioning
from .host_texts import tokens_of_text
from .marks import HostText, HostTokens
from .rows import parts_of_rows, read_of_tokens, words_of_rows

_DEFAULTS = EncodeOptions()
_OF_CLIP = {
    "normalization": "normalization",
    "padding": "padding",
    "pooled": "pooled",
    "eos_rows": "eos_rows",
    "hide": "hide",
    "is_causal": "causal",
    "bind": "phrases",
}
"""Options that require a CLIP text tower, with their names in nodes."""

WEIGHS_ROWS = "ComfyUI's own node weighs rows here"
READS_AS_TEXT = "ComfyUI's own node reads weights as text here"
UNKNOWN = "encoded as by ComfyUI's own node"


class HostRead(NamedTuple):
    """A prompt for the host to encode."""

    encoder: str
    """Name of the text encoder among the host's tokens: ``t5xxl``, ..."""
    host_tokens: dict[str, Any]
    """Tokens in the host's form."""
    prompt: ReadPrompt
    """The prompt as read, for views and reports."""


def reads_weights(clip: Clip) -> bool:
    """Whether the host's own node reads ``(word:2)`` as a weight in a CLIP; otherwise it is text."""
    return any(weight != 1.0 for tokens in clip.tokenize("(a:2)").values() for _, weight in _pairs(tokens))


def stock_note(clip: Clip) -> str:
    """Note on how the host's own node treats weights in a CLIP."""
    if text_family(clip) is None:
        return UNKNOWN
    return WEIGHS_ROWS if reads_weights(clip) else READS_AS_TEXT


def prompt_by_host(conditioning: Conditioning, prompt: ReadPrompt) -> EncodedPrompt:
    """A prompt that the host has encoded, with its rows in the first entry; one without a pooled vector has a row."""
    hidden, values = conditioning[0]
    pooled = values.get("pooled_output")
    return EncodedPrompt(hidden, hidden[:, 0] if pooled is None else pooled, prompt, 1)


def written_for_host(clip: Clip, text: str, options: EncodeOptions) -> HostText:
    """Write a prompt so that the host applies its weights.

    Refused if an option requires a CLIP text tower, or the scheme does and the prompt has weights.
    """
    _check_options(clip, options)
    prompt, characters = stripped(text, options)
    has_weights = any(character.weight != 1.0 for character in characters)
    is_weighing, scheme = reads_weights(clip), SCHEMES[options.scheme]
    if has_weights and not scheme.by_host:
        what = "weighs rows" if is_weighing else "encodes without weights"
        raise ValueError(
            f"The scheme {options.scheme} takes a CLIP text encoder, and this CLIP ({_name(clip)}) has none. In "
            f"{WEIGHTED_PROMPT} choose comfy, by which ComfyUI {what}, or unweighted{_way(clip)}."
        )
    issues = [
        Issue("break-is-a-space", "This text encoder has no chunks: BREAK is a space here.", _place(character))
        for character in characters
        if character.is_break
    ]
    if has_weights and scheme.is_weighing and not is_weighing:
        issues.append(_left_out(clip, characters))
    if not is_weighing or not scheme.is_weighing:
        characters = [character._replace(weight=1.0) for character in characters]
    if not is_weighing:
        written = _plain(characters)
    elif syntax_of(options.syntax).by_comfyui and scheme.by_host and scheme.is_weighing:
        written = text
    else:
        written = _in_comfy_syntax(characters)
    return HostText(prompt, characters, options, issues, written, is_weighed=False)


def read_for_host(clip: Clip, text: str, options: EncodeOptions) -> HostRead:
    """Read a prompt that the host is to encode, with an issue about weights that are left out.

    Refused as by `written_for_host`.
    """
    host_text = written_for_host(clip, text, options)
    tokens = tokens_of_text(clip, host_text)
    family = text_family(clip)
    names = (_encoder_of(clip, tokens),) if family is None else family.names_of(clip)
    named_prompt = read_of_tokens(tokens, names)
    issues = tuple(dict.fromkeys(host_text.issues))
    name, prompt = named_prompt or (names[0], as_read(host_text.prompt, (), issues, options))
    return HostRead(name, tokens, prompt)


def words_or_reason(
    clip: Clip,
    tokens: HostTokens,
    conditioning: Conditioning,
    of_towers: Mapping[str, Words] = MappingProxyType({}),
    sizes: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> tuple[Part, ...] | str:
    """Words and rows of a conditioning that the host has made of marked tokens, or the reason why none are known.

    ``of_towers`` holds the words of text towers that read the prompt by our rules, ``sizes`` the numbers of rows of
    pictures, as in `parts_of_rows`.
    """
    family = text_family(clip)
    if family is None:
        return f"it is unknown which rows its text encoder ({type(clip.cond_stage_model).__name__}) makes of which word"
    rows, values = conditioning[0]
    named = {name.removeprefix("clip_"): words for name, words in of_towers.items()}
    try:
        return words_of_rows(parts_of_rows(clip, family, tokens, num_rows_read(rows, values), sizes), named)
    except ValueError as error:
        return f"{error}".rstrip(".")


def _check_options(clip: Clip, options: EncodeOptions) -> None:
    """Refuse options that require a CLIP text tower."""
    for field, name in _OF_CLIP.items():
        value = getattr(options, field)
        if value != getattr(_DEFAULTS, field):
            setting = f"{name} {value}" if isinstance(value, str) and "\n" not in value else name
            raise ValueError(
                f"“{setting}” takes a CLIP text encoder, and this CLIP ({_name(clip)}) has none: set {name} back"
                f"{_way(clip)}."
            )


def _name(clip: Clip) -> str:
    family = text_family(clip)
    return type(clip.cond_stage_model).__name__ if family is None else f"{family.title}’s"


def _way(clip: Clip) -> str:
    """Advice on what to use for weights."""
    return (
        "" if text_family(clip) is None else ", or take the node Attention Weights, which weighs words in any encoder"
    )


def _left_out(clip: Clip, characters: Sequence[Character]) -> Issue:
    """Issue saying that weights are not encoded, at the first of them."""
    index, first = next((index, character) for index, character in enumerate(characters) if character.weight != 1.0)
    rest = takewhile(
        lambda character: (character.fragment, character.weight) == (first.fragment, first.weight), characters[index:]
    )
    span = Span(first.place, [*rest][-1].place + 1)
    way = "Attention Weights applies them." if text_family(clip) else "Attention Weights does not know this encoder."
    message = (
        f"This text encoder has no weights, ComfyUI gives it brackets and numbers as text: they are left out. {way}"
    )
    return Issue("weights-left-out", message, span)


def _place(character: Character) -> Span:
    return Span(character.place, character.place + len("BREAK"))


def _plain(characters: Iterable[Character]) -> str:
    return "".join(character.text for character in characters)


def _runs(characters: Sequence[Character]) -> list[list[Character]]:
    """Stretches that the host tokenizes separately: those between weights, or the whole text without any."""
    if all(character.weight == 1.0 for character in characters):
        return [[*characters]] if characters else []
    return [[*run] for _, run in groupby(characters, lambda character: (character.fragment, character.weight))]


def _in_comfy_syntax(characters: Sequence[Character]) -> str:
    """Text and weights in the form that ComfyUI's own node reads."""
    runs = [(_plain(run).replace("(", r"\(").replace(")", r"\)"), run[0].weight) for run in _runs(characters)]
    if len(runs) == 1 and runs[0][1] == 1.0:
        return runs[0][0]
    return "".join(f"({text}:{float(weight)!r})" for text, weight in runs)


def _pairs(tokens: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """Token and weight of everything the host's tokenizer returned for an encoder."""
    for chunk in tokens:
        for pair in chunk if isinstance(chunk, list) else ():
            yield pair[0], pair[1]


def _encoder_of(clip: Clip, host_tokens: Mapping[str, Any]) -> str:
    """Encoder whose tokens are shown: the first one that is loaded."""
    family = text_family(clip)
    if family is not None:
        return family.encoder_of(clip)
    loaded = {name for name, _ in clip.cond_stage_model.named_children()}
    return next((name for name in host_tokens if {name, f"clip_{name}"} & loaded), next(iter(host_tokens)))
