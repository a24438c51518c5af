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
from .schemes.scheme import effective_weight
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
    """Prompt reader for a T5 encoder used with CLIP text towers, by the rule of a program.

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
        fields = ("syntax", "normalization", "cleaning", "has_tags", "strict", "comments")
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
    """Prompt readers of Stable Diffusion 1, 2 or XL; SDXL's two towers share the WebUI's embeddings."""
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
        The prompt by tower, T5's last. Empty chunks are added to the shorter prompts, as in ComfyUI's
        CLIPTextEncodeSDXL and compel, except if one text is cut by ComfyUI's rule, as in its CLIPTextEncode, or is for
        towers of different lengths. Text beyond the rows common to all towers is named in the issues.

    Raises:
        As in `read_together`.
    """
    readers, open_readers = _split_by_layout(readers)
    reads = _read([text], options, readers)
    is_cut_by_comfyui = rule_of(options.chunking, options.syntax).startswith("comfy")
    if not isinstance(text, str) or not (is_cut_by_comfyui or _differ_in_length(readers.values())):
        reads = _with_equal_counts(reads)
    prompts = _with_cut_issues({name: parsed for name, (parsed,) in _with_equal_rows(reads).items()})
    return {**prompts, **{name: parsed for name, (parsed,) in _read([text], options, open_readers).items()}}


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
        readers: Readers by tower; CLIP's have the same chunk length.
        kept: If padding is dropped, the number of rows of each chunk to keep for the sake of other texts.

    Returns:
        The prompts by tower, T5's last. CLIP's have equal numbers of kept rows and of
        chunks in their results, at least as many as in ``kept``.

    Raises:
        PromptError: In strict mode, if the reference raises.
        ValueError: If an option is out of range.
    """
    readers, open_readers = _split_by_layout(readers)
    reads = _with_equal_rows(_with_equal_counts(_read(texts, options, readers), len(kept)), kept)
    return {**reads, **_read(texts, options, open_readers)}


def _split_by_layout(readers: Mapping[str, Reader]) -> tuple[dict[str, Reader], dict[str, Reader]]:
    """Readers of towers whose rows are side by side, and of towers whose rows come after them."""
    open_readers = {name: reader for name, reader in readers.items() if reader.layout.is_open}
    return {name: reader for name, reader in readers.items() if name not in open_readers}, open_readers


def _differ_in_length(towers: Iterable[Reader | ReadPrompt]) -> bool:
    return len({tower.layout.length for tower in towers}) > 1


Reads = Mapping[str, Sequence[ReadPrompt]]
"""Each tower's reading of each text."""


def _read(
    texts: Sequence[str | Mapping[str, str]], options: EncodeOptions, readers: Mapping[str, Reader]
) -> dict[str, list[ReadPrompt]]:
    return {name: [reader.read(_text_for(name, text), options) for text in texts] for name, reader in readers.items()}


def _text_for(name: str, text: str | Mapping[str, str]) -> str:
    """Text for a tower; T5 gets the last tower's."""
    return text if isinstance(text, str) else text.get(name, [*text.values()][-1])


def _with_equal_counts(reads: Reads, min_count: int = 0) -> Reads:
    """Pad all to the number of chunks of the longest, and to at least ``min_count``."""
    longest = max(min_count, *(num_chunks(parsed) for prompts in reads.values() for parsed in prompts))
    return {name: [padded(parsed, longest) for parsed in prompts] for name, prompts in reads.items()}


def _with_equal_rows(reads: Reads, min_rows: Sequence[int] = ()) -> dict[str, list[ReadPrompt]]:
    """If padding is dropped, keep the same rows of every text and tower: as many of each chunk as the fullest has."""
    every = [parsed for prompts in reads.values() for parsed in prompts]
    counts = [parsed.kept for parsed in every if parsed.kept is not None]
    fullest = tuple(map(max, zip_longest(*counts, min_rows, fillvalue=0)))

    def dropping(parsed: ReadPrompt) -> ReadPrompt:
        if parsed.kept is None:
            return parsed
        if len(fullest) > 1 and _differ_in_length(every):
            # a row that is padding for one tower is a word for another, as their chunks end elsewhere
            message = (
                "Padding cannot be dropped here, because the text encoders' chunks differ in length: all of it is kept."
            )
            issue = Issue("padding-kept", message, Span(0, 0))
            return parsed._replace(kept=None, issues=(*parsed.issues, issue))
        return _keeping(parsed, tuple(min(count, parsed.layout.length) for count in fullest[: num_chunks(parsed)]))

    return {name: list(map(dropping, prompts)) for name, prompts in reads.items()}


def _with_cut_issues(reads: Mapping[str, ReadPrompt]) -> dict[str, ReadPrompt]:
    """Add an issue for each tower with tokens beyond the rows that all towers have, in all prompts of its text."""
    counts = {name: _first_rows(parsed)[-1] for name, parsed in reads.items()}
    shortest = min(counts, key=counts.__getitem__)
    issues: dict[str, list[Issue]] = {}
    for name, parsed in reads.items():
        lost = _content_from(counts[shortest], parsed) if counts[name] > counts[shortest] else []
        if lost:
            message = (
                f"{shortest} ends at row {counts[shortest]}: the last {len(lost)} of {name}'s tokens come after "
                "that and are left out, as in ComfyUI."
            )
            span = Span(lost[0].at.start, lost[-1].at.end)
            issues.setdefault(parsed.prompt.source, []).append(Issue("rows-cut", message, span))
    return {
        name: parsed._replace(issues=(*parsed.issues, *issues.get(parsed.prompt.source, ())))
        for name, parsed in reads.items()
    }


def _first_rows(parsed: ReadPrompt) -> list[int]:
    """First row of each chunk of a prompt's result, and finally the number of rows."""
    return list(accumulate(parsed.kept or [parsed.layout.length] * num_chunks(parsed), initial=0))


def _content_from(row: int, parsed: ReadPrompt) -> list[Token]:
    """Tokens between BOS and EOS from a row on."""
    first_rows = _first_rows(parsed)
    first = 0
    tokens: list[Token] = []
    for section in parsed.sections:
        for prompt in section.prompts:
            for start, chunk in zip(first_rows[first:], prompt, strict=False):
                tokens += chunk.content[max(0, row - start - 1) :]
        first += max(map(len, section.prompts))
    return tokens


def _keeping(parsed: ReadPrompt, row_counts: tuple[int, ...]) -> ReadPrompt:
    """The prompt with a number of kept rows per chunk; under a scheme without padding they are filled with EOS."""
    if SCHEMES[parsed.options.scheme].is_padded:
        return parsed._replace(kept=row_counts)
    counts = iter(row_counts)
    sections: list[ChunkedSection] = []
    for section in parsed.sections:
        of_section = list(islice(counts, max(map(len, section.prompts))))
        prompts = (
            tuple(filled(chunk, count, parsed.layout) for chunk, count in zip(chunks, of_section, strict=False))
            for chunks in section.prompts
        )
        sections.append(replace(section, prompts=tuple(prompts)))
    return parsed._replace(sections=tuple(sections), kept=row_counts)


def num_chunks(parsed: ReadPrompt) -> int:
    """Number of consecutive chunks in the result; of blended prompts, only the longest counts."""
    return sum(max(map(len, section.prompts)) for section in parsed.sections)


def num_rows(parsed: ReadPrompt) -> int:
    """Number of rows of the result, under schemes that return all rows of every chunk; terms' rows are appended."""
    return _first_rows(parsed)[-1] + sum(term.num_tokens + 1 for term in parsed.terms)


def check_same_signs(reads: Reads) -> None:
    """Check that the rows to subtract are the same in all towers, whose rows stand side by side."""
    (first, signs), *rest = ((name, list(map(_signs, prompts))) for name, prompts in reads.items())
    for name, tower_signs in rest:
        if tower_signs != signs:
            raise NegPipError(
                f"Weights below 0 must stand in the same rows of {first} and {name}, which stand side by side: give "
                "both the same text, and no embedding that has more vectors for one than for the other."
            )


def _signs(parsed: ReadPrompt) -> list[bool]:
    """Rows of a prompt's result with the sign -1; empty if there are none."""
    if not parsed.has_signs:
        return []
    if parsed.terms:
        count = _first_rows(parsed)[-1]
        return [row >= count for row in range(num_rows(parsed))]
    chunks = [chunk for section in parsed.sections for chunk in max(section.prompts, key=len)]
    counts = parsed.kept or [parsed.layout.length] * len(chunks)
    rows = (weight for chunk, count in zip(chunks, counts, strict=True) for weight in chunk.weights[:count])
    return [effective_weight(weight, parsed.options.strength) < 0 for weight in rows]


def padded(parsed: ReadPrompt, count: int) -> ReadPrompt:
    """Append as many empty chunks to the prompt as it lacks.

    Args:
        parsed: A prompt of at most ``count`` chunks.
        count: Required number of chunks.

    Returns:
        The longer prompt. The rows of an empty chunk equal the empty prompt's, in every section and blend.
    """
    missing = count - num_chunks(parsed)
    if not missing:
        return parsed
    *earlier, last = parsed.sections
    longest = max(range(len(last.prompts)), key=lambda index: len(last.prompts[index]))
    prompts = list(last.prompts)
    prompts[longest] = (*prompts[longest], *[close_chunk([], parsed.layout)] * missing)
    sections: tuple[ChunkedSection, ...] = (*earlier, replace(last, prompts=tuple(prompts)))
    return parsed._replace(sections=sections, kept=None if parsed.kept is None else rows_kept(sections))


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
