"""A prompt as the page shows it: read for a model, its tokens as a table, its attention masks; and as a file.

Only the file needs a loaded model. ``comparing.py`` compares schemes.

Source: docs/reference/masks.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from ....encoder.masks import causal_mask, combine
from ....encoder.quoting import raising
from ....encoder.tokenizer import default_tokenizer
from ....studio.output.export import write_conditioning
from ....weighting.chunking import ChunkedSection
from ....weighting.options import EncodeOptions
from ....weighting.padding import padding_visible
from ....weighting.phrases.hidden_phrases import phrases_visible
from ....weighting.pipeline import plan_prompt
from ....weighting.plan import VisibleFn, mask_tensor
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.view import counted, id_of, text_of, token_bytes
from ....weighting.schemes.negpip import check_without_signs
from ....weighting.syntax.a1111 import TIMED_READER
from ....weighting.text.chunks import Token, TokenChunk
from ....weighting.text.tags import LORA_LOADER
from ....weighting.towers import joined, read_for_towers
from ...pictures.masks import SHOWN_PADDING, draw_masks, mask_labels
from ..model import LabError, LabModel, without_folder

HEADERS = ("chunk", "position", "id", "text", "weight", "piece", "hidden from", "part of a character")
"""Columns of the table of tokens."""
MAX_POSITIONS = 77
"""Maximum number of positions in a mask."""


class TokenTable(NamedTuple):
    """Tokens of a prompt, one row each."""

    rows: list[list[str | int | float]]
    """Rows with the columns of `HEADERS`: chunk and position from 1; the id, or an embedding's vector as in
    ``name[0]``; the text as typed; the final weight; the number of its piece; the tokens it is hidden from, empty for
    none; its bytes, if a character takes several tokens."""
    num_more: int
    """Number of further tokens."""


def read(model: LabModel, text: str, options: EncodeOptions) -> ReadPrompt:
    """Read a prompt for the first text tower of a model, with the chunks that other towers add to it."""
    with raising(LabError):
        reads = read_for_towers(text, options, model.readers())
    parsed = next(iter(reads.values()))
    return parsed._replace(issues=tuple(replace(issue, message=in_lab_words(issue.message)) for issue in parsed.issues))


def in_lab_words(line: str) -> str:
    """A problem in the words of the lab, which knows no nodes."""
    return line.replace(TIMED_READER, "The tab Schedule shows how").replace(LORA_LOADER, ".")


def token_rows(parsed: ReadPrompt, limit: int) -> TokenTable:
    """Tokens of a prompt as a table with a maximum number of rows."""
    rows: list[list[str | int | float]] = []
    tokens = [token for chunk in parsed.chunks for token in chunk.content]
    parts = iter(token_bytes(tokens, default_tokenizer().symbol))
    words: dict[int, int] = {}  # those without tokens do not count
    for number, chunk in enumerate(parsed.chunks, 1):
        for position, token in enumerate(chunk.content, 1):
            weight = float(f"{token.weight:.6g}")
            hidden_from = parsed.options.hidden_from if token.is_hidden else ""
            word = words.setdefault(token.word, len(words) + 1)
            text = text_of(token, parsed.prompt.source)
            part = next(parts)
            bytes_text = "" if part is None else str(part)
            rows.append([number, position, id_of(token.id), text, weight, word, hidden_from, bytes_text])
    return TokenTable(rows[:limit], max(0, len(rows) - limit))


def totals(parsed: ReadPrompt) -> str:
    """Numbers of tokens, characters and chunks in a prompt, in words."""
    counts = [chunk.num_content for chunk in parsed.chunks]
    characters = len(parsed.prompt.source)
    counts_text = (
        f"{counted(sum(counts), 'token')} of {counted(characters, 'character')} in {counted(len(counts), 'chunk')}"
    )
    return f"{counts_text}: {', '.join(map(str, counts))} of {parsed.layout.capacity}"


def ids_text(parsed: ReadPrompt) -> str:
    """Ids of a prompt's tokens as JSON: a list per chunk, without BOS, EOS and padding; only one list for one chunk."""
    ids = [[id_of(token.id) for token in chunk.content] for chunk in parsed.chunks]
    return json.dumps(ids if len(ids) > 1 else ids[0], ensure_ascii=False)


def chunk_of(parsed: ReadPrompt, chunk: int) -> TokenChunk:
    """Chunk of a prompt by its number from 0."""
    if not 0 <= chunk < len(parsed.chunks):
        raise LabError(f"there is no chunk {chunk + 1}: this prompt has chunks 1 to {len(parsed.chunks)}")
    return parsed.chunks[chunk]


def export(model: LabModel, text: str, options: EncodeOptions, path: Path) -> None:
    """Encode a prompt into a safetensors file; an existing one is replaced."""
    with raising(LabError):
        check_without_signs(read_for_towers(text, options, model.readers()).values(), "a file")
        rows = joined(model.encode(text, options))
    metadata = {"weights": model.title} | ({"warning": model.warning} if model.warning else {})
    try:
        write_conditioning(path, rows, text, options, metadata)
    except OSError as error:
        raise LabError(without_folder(error, path)) from error
    except UnicodeError as error:
        raise LabError(f"{path.name} cannot be written: {error}") from error


PADDING_CAPTIONS = {
    "attend": "Padding hides nothing: every position may attend PAD, as Stable Diffusion was trained.",
    "mask": "PAD is hidden from every position; EOS stays visible.",
    "mask EOS too": "PAD is hidden from every position, and so is EOS where it has the same id.",
    "drop": "Padding hides nothing from the encoder: its rows are left out of the result afterwards.",
    "clean": "Padding hides nothing from the encoder: its rows are replaced by the empty prompt's afterwards.",
    "clean EOS too": "Padding hides nothing from the encoder: its rows, and that of EOS, are replaced by the empty "
    "prompt's afterwards.",
}
"""Effect of each padding option on the mask."""

SHOWN_VERSIONS = ((16, 4), (40, 2))
"""Further masks side by side: numbers of positions, and of masks shown up to each; beyond the last, one mask."""


class MaskPicture(NamedTuple):
    """A mask as a picture."""

    title: str
    """Its title, also drawn above it."""
    caption: str
    """A text about its effect, not drawn."""
    image: Image.Image
    """RGB."""


def mask_pictures(parsed: ReadPrompt, limit: int, chunk: int = 0) -> list[MaskPicture]:
    """Draw the masks of one chunk, given by its number from 0.

    At most ``limit`` positions are shown, with a little of the padding: causal mask, padding mask, the hidden
    phrases' mask if the chunk has any, their product, and then masks of further encodings that the scheme blends in.
    """
    tokens = chunk_of(parsed, chunk)
    labels = mask_labels(tokens, parsed.prompt.source)
    visible = min(len(labels), tokens.num_content + 2 + SHOWN_PADDING, limit)
    pictures = [
        MaskPicture(title, caption, draw_masks([(title, mask)], labels, visible=visible))
        for title, caption, mask in chunk_masks(parsed, tokens)
    ]
    versions = further_masks(parsed, tokens)
    if versions:
        count = next((number for positions, number in SHOWN_VERSIONS if visible <= positions), 1)
        drawn = [(f"version {number}", mask) for number, mask in enumerate(versions[:count], 1)]
        caption = f"{parsed.options.scheme} also encodes this chunk with further words hidden, and blends the results."
        if parsed.options.binds:
            is_whole = parsed.options.bind_hide == "whole phrases"
            hidden = "all phrases hidden but one" if is_whole else "these words hidden in all phrases but one"
            caption = f"The chunk is also encoded with {hidden}, from which that one's rows are taken."
        if len(versions) > len(drawn):
            caption += f" Of {len(versions)} such versions {len(drawn)} {'is' if len(drawn) == 1 else 'are'} shown."
        pictures.append(MaskPicture("further encodings", caption, draw_masks(drawn, labels, visible=visible)))
    return pictures


def chunk_masks(parsed: ReadPrompt, chunk: TokenChunk) -> list[tuple[str, str, Tensor]]:
    """Title, caption and mask of each picture of a chunk; masks are ``[1, 77, 77]``, bool, True = may be attended."""
    options, length = parsed.options, parsed.layout.length
    everything = torch.ones(1, length, length, dtype=torch.bool)

    def of_chunk(visible: VisibleFn) -> Tensor:
        mask = mask_tensor([visible(chunk)], length)
        return everything if mask is None else mask.expand(1, length, length)

    causal = causal_mask(length) if options.is_causal else everything
    padding = of_chunk(padding_visible(options.padding, parsed.layout))
    phrases = of_chunk(phrases_visible(options))
    causal_caption = (
        "Each position may attend itself and what comes before it; everything after it is hidden."
        if options.is_causal
        else "Causality is off: every position may attend every other, which CLIP was not trained for."
    )
    masks = [("causal mask", causal_caption, causal), ("padding mask", PADDING_CAPTIONS[options.padding], padding)]
    if any(token.is_hidden for token in chunk.tokens):
        masks.append(("hidden phrases", _hidden_caption(parsed, chunk), phrases))
    product = combine(causal, padding, phrases)
    assert product is not None
    if torch.equal(product, causal):
        summary = "Here that is causality alone." if options.is_causal else "Here nothing is hidden."
    else:
        summary = "Here more is hidden than by causality." if options.is_causal else "Here something is hidden."
    return [*masks, ("product", f"What the encoder gets: a cell is open where all masks are. {summary}", product)]


def further_masks(parsed: ReadPrompt, chunk: TokenChunk) -> list[Tensor]:
    """Distinct masks of those encodings of a chunk in which the scheme hides more than the prompt itself.

    Each is ``[77, 77]``, bool, including causality; empty for schemes that hide nothing.
    """
    causal = causal_mask(parsed.layout.length)
    product = chunk_masks(parsed, chunk)[-1][2][0]
    masks: dict[bytes, Tensor] = {}
    for variant in plan_prompt(_around(parsed, chunk), _one_token).variants():
        for its_chunk, visible in zip(variant.chunks, variant.visible, strict=True):
            mask = mask_tensor([visible], parsed.layout.length)
            if mask is not None and its_chunk.ids == chunk.ids:
                seen = mask[0] & causal[0] if variant.is_causal else mask[0].expand(parsed.layout.length, -1)
                masks[seen.numpy().tobytes()] = seen
    return [mask for mask in masks.values() if bool((product & ~mask).any())]


def _around(parsed: ReadPrompt, chunk: TokenChunk) -> ReadPrompt:
    """A prompt of one chunk and its neighbours, into which its words may extend.

    Otherwise a long prompt would be encoded completely for each faded word anywhere in it.
    """
    for section in parsed.sections:
        for prompt in section.prompts:
            for index, candidate in enumerate(prompt):
                if candidate is chunk:
                    neighbours = prompt[max(0, index - 1) : index + 2]
                    return parsed._replace(sections=(ChunkedSection((neighbours,)),), kept=None)
    raise ValueError("the chunk is none of this prompt")


def _one_token(text: str) -> list[tuple[int, int, int]]:
    """Tokenizer for texts that do not matter: the filler, and the raw text of a pooled vector."""
    return [(0, 0, len(text))]


def _hidden_caption(parsed: ReadPrompt, chunk: TokenChunk) -> str:
    hidden = _texts(parsed, chunk, lambda token: token.is_hidden)
    subject = f"{' and '.join(hidden)} {'is' if len(hidden) == 1 else 'are'} hidden from"
    if parsed.options.hidden_from == "everything":
        return f"{subject} every position, {'its' if len(hidden) == 1 else 'their'} own included."
    if parsed.options.hidden_from == "padding rows only":
        return f"{subject} the padding after the prompt; its words still see all of it."
    blind = _texts(parsed, chunk, lambda token: token.is_blind)
    return f"{subject} {' and '.join(blind) or 'nothing in this chunk'}; all else still sees it."


def _texts(parsed: ReadPrompt, chunk: TokenChunk, is_meant: Callable[[Token], bool]) -> list[str]:
    """Quoted stretches of text of the selected tokens."""
    texts: list[str] = []
    for meant, group in groupby(chunk.content, is_meant):
        text, end = "", 0
        for span in dict.fromkeys(token.span for token in group if meant and token.span):
            # brackets and weights between two tokens are not part of a phrase
            text += (" " if text and span.start > end else "") + parsed.prompt.source[span.start : span.end]
            end = span.end
        texts += [f"“{text}”"] if text else []
    return list(dict.fromkeys(texts))
