"""Prompts for models with several CLIP text towers, such as SDXL: each tower reads and encodes the prompt separately.

The towers' rows are joined side by side. If one tower has more rows than another, as a Long-CLIP can, its last ones are
left out.

Source: docs/models.md; behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice, zip_longest
from pathlib import Path

import torch

from ..encoder.encoding import Encoding
from ..encoder.models.config import TextConfig
from ..encoder.tokenizer import default_tokenizer
from .chunking import CHUNKINGS, ChunkedSection, rule_of
from .chunking.a1111 import chunk_a1111
from .chunking.t5 import T5Rule, chunk_t5
from .options import EncodeOptions
from .padding import rows_kept
from .pipeline import EncodedPrompt
from .reading.prompt_reader import ReadPrompt, read_prompt
from .schemes import SCHEMES
from .schemes.negpip import NegPipError
from .schemes.scheme import taken_weight
from .text.chunks import CLIP_L_LAYOUT, ChunkLayout, Token, Tokenize, close_chunk, filled
from .text.embedding_folder import EmbeddingFolder
from .text.embeddings import Embeddings, EmbeddingsOfSdxl
from .text.prompt import Issue, Span


@dataclass(frozen=True)
class Reader:
    """Prompt reader for one text tower."""

    tokenize: Tokenize
    """Its tokenizer."""
    layout: ChunkLayout = CLIP_L_LAYOUT
    """Fixed parts of its chunks."""
    embeddings: Embeddings | None = None
    """Embeddings that prompts can name for it, if any."""
    embeddings_of_webui: Embeddings | None = None
    """Those for the chunk rule ``a1111``, if others."""

    @property
    def chunk_length(self) -> int | None:
        """Positions that the encoder has in every chunk; None if their number may be any."""
        return self.layout.length

    def options_of(self, options: EncodeOptions) -> EncodeOptions:
        """Those options that count for the encoder."""
        return options

    def read(self, text: str, options: EncodeOptions) -> ReadPrompt:
        """Read a prompt, as in `read_prompt`."""
        is_webui = CHUNKINGS.get(rule_of(options.chunking, options.syntax)) is chunk_a1111
        embeddings = (self.embeddings_of_webui if is_webui else None) or self.embeddings
        return read_prompt(text, options, self.tokenize, self.layout, embeddings=embeddings)


@dataclass(frozen=True)
class T5Reader(Reader):
    """Prompt reader for a T5 encoder beside CLIP text towers, by the rule of a program.

    Of the options only those count that say how a text is read, and the normalization: the others are CLIP's.
    """

    rule: T5Rule = field(kw_only=True)
    """The rule."""

    @property
    def chunk_length(self) -> int | None:
        """Positions that the encoder has in every chunk; None if their number may be any."""
        return self.rule.length if self.rule.is_cut else None

    def options_of(self, options: EncodeOptions) -> EncodeOptions:
        """Those options that count for the encoder."""
        fields = ("syntax", "normalization", "cleaning", "has_tags", "strict")
        return EncodeOptions(scheme=self.rule.scheme, **{name: getattr(options, name) for name in fields})

    def read(self, text: str, options: EncodeOptions) -> ReadPrompt:
        """Read a prompt.

        Raises:
            As in `read_prompt`, and `chunk_t5`.
        """
        rule = partial(chunk_t5, rule=self.rule)
        return read_prompt(text, self.options_of(options), self.tokenize, self.layout, rule=rule)


def layout_of(config: TextConfig) -> ChunkLayout:
    """Chunk layout of one of our text towers."""
    return ChunkLayout(config.context_length, config.bos_id, config.eos_id, config.pad_id)


def native_readers(
    configs: Mapping[str, TextConfig], embeddings: Callable[[str, TextConfig], Embeddings | None]
) -> dict[str, Reader]:
    """Prompt readers for our text towers; ``embeddings`` returns the embeddings for a tower of such sizes."""
    return as_sdxl(
        {
            name: Reader(default_tokenizer(), layout_of(config), embeddings(name, config))
            for name, config in configs.items()
        }
    )


def as_sdxl(readers: Mapping[str, Reader]) -> dict[str, Reader]:
    """Prompt readers of Stable Diffusion 1, 2 or XL; those of SDXL's two towers share the WebUI's embeddings."""
    by_tower = {name: reader.embeddings for name, reader in readers.items() if reader.embeddings is not None}
    if by_tower.keys() != {"clip_l", "clip_g"}:
        return dict(readers)
    return {
        name: replace(reader, embeddings_of_webui=EmbeddingsOfSdxl(name, by_tower)) for name, reader in readers.items()
    }


def in_folders(folders: Iterable[str | Path]) -> Callable[[str, TextConfig], Embeddings | None]:
    """Embeddings in some folders, for `native_readers`; without folders none."""
    folders = list(folders)
    return lambda tower, config: EmbeddingFolder(folders, tower, config.hidden_dim) if folders else None


def read_for_towers(
    text: str | Mapping[str, str], options: EncodeOptions, readers: Mapping[str, Reader]
) -> dict[str, ReadPrompt]:
    """Read a prompt for every tower.

    Args:
        text: One text, or one per tower by name.
        options: Options for reading it.
        readers: Readers by tower.

    Returns:
        The prompt by tower, those of T5 last. Empty chunks are added to the shorter prompts, as in ComfyUI's
        CLIPTextEncodeSDXL and compel, except if one text is cut by ComfyUI's rule, as in its CLIPTextEncode, or is for
        towers of different lengths. Text beyond the rows common to all towers is named in the issues.

    Raises:
        As in `read_together`.
    """
    readers, others = _apart(readers)
    reads = _read([text], options, readers)
    is_cut_by_comfyui = rule_of(options.chunking, options.syntax).startswith("comfy")
    if not isinstance(text, str) or not (is_cut_by_comfyui or _differ_in_length(readers.values())):
        reads = _with_equal_counts(reads)
    found = _with_cut_told({name: read for name, (read,) in _with_equal_rows(reads).items()})
    return {**found, **{name: read for name, (read,) in _read([text], options, others).items()}}


def read_together(
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    readers: Mapping[str, Reader],
    kept: Sequence[int] = (),
) -> dict[str, list[ReadPrompt]]:
    """Read prompts that alternate, and add empty chunks to the shorter ones.

    Args:
        texts: At least one prompt: one text, or one per tower. ComfyUI's names of towers are ``clip_l``, ``clip_g`` and
            ``clip_h``.
        options: Options for reading them.
        readers: Readers by tower, those of CLIP with the same chunk length.
        kept: If padding is dropped, the number of rows of each chunk to keep for the sake of other texts.

    Returns:
        The prompts by tower, those of T5 last. Those of CLIP have equal numbers of kept rows and of
        chunks in their results, at least as many as in ``kept``.

    Raises:
        PromptError: In strict mode, if the reference raises.
        ValueError: If an option is out of range.
    """
    readers, others = _apart(readers)
    reads = _with_equal_rows(_with_equal_counts(_read(texts, options, readers), len(kept)), kept)
    return {**reads, **_read(texts, options, others)}


def _apart(readers: Mapping[str, Reader]) -> tuple[dict[str, Reader], dict[str, Reader]]:
    """Readers of towers whose rows stand side by side, and of those whose rows stand behind them."""
    others = {name: reader for name, reader in readers.items() if reader.layout.is_open}
    return {name: reader for name, reader in readers.items() if name not in others}, others


def _differ_in_length(towers: Iterable[Reader | ReadPrompt]) -> bool:
    return len({tower.layout.length for tower in towers}) > 1


Reads = Mapping[str, Sequence[ReadPrompt]]
"""Each tower's reading of each text."""


def _read(
    texts: Sequence[str | Mapping[str, str]], options: EncodeOptions, readers: Mapping[str, Reader]
) -> dict[str, list[ReadPrompt]]:
    return {name: [reader.read(_text_for(name, text), options) for text in texts] for name, reader in readers.items()}


def _text_for(name: str, text: str | Mapping[str, str]) -> str:
    """Text for a tower; T5 has that of the last."""
    return text if isinstance(text, str) else text.get(name, [*text.values()][-1])


def _with_equal_counts(reads: Reads, least: int = 0) -> Reads:
    """Pad all to the number of chunks of the longest, and to at least ``least``."""
    longest = max(least, *(num_chunks(read) for some in reads.values() for read in some))
    return {name: [padded(read, longest) for read in some] for name, some in reads.items()}


def _with_equal_rows(reads: Reads, kept: Sequence[int] = ()) -> dict[str, list[ReadPrompt]]:
    """If padding is dropped, keep the same rows of every text and tower: as many of each chunk as the fullest has."""
    every = [read for some in reads.values() for read in some]
    counts = [read.kept for read in every if read.kept is not None]
    fullest = tuple(map(max, zip_longest(*counts, kept, fillvalue=0)))

    def dropping(read: ReadPrompt) -> ReadPrompt:
        if read.kept is None:
            return read
        if len(fullest) > 1 and _differ_in_length(every):
            # a row that is padding for one tower is a word for another, as their chunks end elsewhere
            message = (
                "Padding cannot be dropped here, because the text encoders' chunks differ in length: all of it is kept."
            )
            issue = Issue("padding-kept", message, Span(0, 0))
            return read._replace(kept=None, issues=(*read.issues, issue))
        return _keeping(read, tuple(min(count, read.layout.length) for count in fullest[: num_chunks(read)]))

    return {name: list(map(dropping, some)) for name, some in reads.items()}


def _with_cut_told(reads: Mapping[str, ReadPrompt]) -> dict[str, ReadPrompt]:
    """Add an issue for each tower with tokens beyond the rows that all towers have, in all prompts of its text."""
    counts = {name: _first_rows(read)[-1] for name, read in reads.items()}
    shortest = min(counts, key=counts.__getitem__)
    issues: dict[str, list[Issue]] = {}
    for name, read in reads.items():
        lost = _content_from(counts[shortest], read) if counts[name] > counts[shortest] else []
        if lost:
            message = (
                f"{shortest} ends at row {counts[shortest]}: the last {len(lost)} of {name}'s tokens come after "
                "that and are left out, as in ComfyUI."
            )
            span = Span(lost[0].at.start, lost[-1].at.end)
            issues.setdefault(read.prompt.source, []).append(Issue("rows-cut", message, span))
    return {
        name: read._replace(issues=(*read.issues, *issues.get(read.prompt.source, ()))) for name, read in reads.items()
    }


def _first_rows(read: ReadPrompt) -> list[int]:
    """First row of each chunk of a prompt's result, and finally the number of rows."""
    return list(accumulate(read.kept or [read.layout.length] * num_chunks(read), initial=0))


def _content_from(row: int, read: ReadPrompt) -> list[Token]:
    """Tokens between BOS and EOS from a row on."""
    first_rows = _first_rows(read)
    first = 0
    found: list[Token] = []
    for section in read.sections:
        for prompt in section.prompts:
            for start, chunk in zip(first_rows[first:], prompt, strict=False):
                found += chunk.content[max(0, row - start - 1) :]
        first += max(map(len, section.prompts))
    return found


def _keeping(read: ReadPrompt, kept: tuple[int, ...]) -> ReadPrompt:
    """The prompt with a number of kept rows per chunk; under a scheme without padding they are filled with EOS."""
    if SCHEMES[read.options.scheme].is_padded:
        return read._replace(kept=kept)
    counts = iter(kept)
    sections: list[ChunkedSection] = []
    for section in read.sections:
        of_section = list(islice(counts, max(map(len, section.prompts))))
        prompts = (
            tuple(filled(chunk, count, read.layout) for chunk, count in zip(chunks, of_section, strict=False))
            for chunks in section.prompts
        )
        sections.append(replace(section, prompts=tuple(prompts)))
    return read._replace(sections=tuple(sections), kept=kept)


def num_chunks(read: ReadPrompt) -> int:
    """Number of consecutive chunks in the result; of blended prompts, only the longest counts."""
    return sum(max(map(len, section.prompts)) for section in read.sections)


def num_rows(read: ReadPrompt) -> int:
    """Number of rows of the result, under schemes that return all rows of every chunk; those of terms are appended."""
    return _first_rows(read)[-1] + sum(term.num_tokens + 1 for term in read.terms)


def check_same_signs(reads: Reads) -> None:
    """Check that the rows to subtract are the same in all towers, whose rows stand side by side."""
    (first, signs), *others = ((name, list(map(_signs, some))) for name, some in reads.items())
    for name, other in others:
        if other != signs:
            raise NegPipError(
                f"Weights below 0 must stand in the same rows of {first} and {name}, which stand side by side: give "
                "both the same text, and no embedding that has more vectors for one than for the other."
            )


def _signs(read: ReadPrompt) -> list[bool]:
    """Rows of a prompt's result with the sign -1; empty if there are none."""
    if not read.has_signs:
        return []
    if read.terms:
        count = _first_rows(read)[-1]
        return [row >= count for row in range(num_rows(read))]
    chunks = [chunk for section in read.sections for chunk in max(section.prompts, key=len)]
    counts = read.kept or [read.layout.length] * len(chunks)
    rows = (weight for chunk, count in zip(chunks, counts, strict=True) for weight in chunk.weights[:count])
    return [taken_weight(weight, read.options.strength) < 0 for weight in rows]


def padded(read: ReadPrompt, count: int) -> ReadPrompt:
    """Append as many empty chunks to the prompt as it lacks.

    Args:
        read: A prompt of at most ``count`` chunks.
        count: Required number of chunks.

    Returns:
        The longer prompt. The rows of an empty chunk are those of the empty prompt, in every section and blend.
    """
    missing = count - num_chunks(read)
    if not missing:
        return read
    *others, last = read.sections
    longest = max(range(len(last.prompts)), key=lambda index: len(last.prompts[index]))
    prompts = list(last.prompts)
    prompts[longest] = (*prompts[longest], *[close_chunk([], read.layout)] * missing)
    sections: tuple[ChunkedSection, ...] = (*others, replace(last, prompts=tuple(prompts)))
    return read._replace(sections=sections, kept=None if read.kept is None else rows_kept(sections))


def joined(encoded: Mapping[str, EncodedPrompt]) -> Encoding:
    """Join the towers' rows side by side, with the pooled vector that image models use.

    Args:
        encoded: Encoded prompts by tower.

    Returns:
        Hidden states ``[1, rows, sum of the towers' dims]`` in the order of ``encoded``, with the rows common to all;
        pooled vector of the last tower, in SDXL CLIP-G.
    """
    prompts = list(encoded.values())
    num_rows = min(prompt.hidden.shape[1] for prompt in prompts)
    return Encoding(torch.cat([prompt.hidden[:, :num_rows] for prompt in prompts], dim=-1), prompts[-1].pooled)
