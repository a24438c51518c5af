"""Prompts for models with several CLIP text towers, such as SDXL: each tower reads and encodes the prompt on its own.

The towers' rows stand side by side, so that all have to have the same number of chunks.

Source: docs/models.md; behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..encoder.config import TextConfig
from ..encoder.encoding import Encoding
from ..encoder.tokenizer import default_tokenizer
from .chunking import ChunkedSection
from .chunks import CLIP_L_LAYOUT, ChunkLayout, Tokenize, close_chunk
from .embedding_folder import EmbeddingFolder
from .embeddings import Embeddings
from .encode import EncodedPrompt, EncodeOptions, ReadPrompt, read_prompt
from .padding import rows_kept


@dataclass(frozen=True)
class Reader:
    """What reads prompts for one text tower."""

    tokenize: Tokenize
    """Its tokenizer."""
    layout: ChunkLayout = CLIP_L_LAYOUT
    """The fixed parts of its chunks."""
    embeddings: Embeddings | None = None
    """What prompts can name for it, if anything."""


def layout_of(config: TextConfig) -> ChunkLayout:
    """The chunks of a text tower of ours."""
    return ChunkLayout(config.context_length, config.bos_id, config.eos_id, config.pad_id)


def native_readers(
    configs: Mapping[str, TextConfig], embeddings: Callable[[str, TextConfig], Embeddings | None]
) -> dict[str, Reader]:
    """What reads prompts for text towers of ours; ``embeddings`` gives what they can name for a tower of such sizes."""
    return {
        name: Reader(default_tokenizer(), layout_of(config), embeddings(name, config))
        for name, config in configs.items()
    }


def in_folders(folders: Iterable[str | Path]) -> Callable[[str, TextConfig], Embeddings | None]:
    """The embeddings in some folders, for `native_readers`; without folders none."""
    folders = list(folders)
    return lambda tower, config: EmbeddingFolder(folders, tower, config.hidden_dim) if folders else None


def read_for_towers(
    text: str | Mapping[str, str], options: EncodeOptions, readers: Mapping[str, Reader]
) -> dict[str, ReadPrompt]:
    """Read a prompt, one text or one for each tower by name; otherwise as `read_together`."""
    return {name: reads[0] for name, reads in read_together([text], options, readers).items()}


def read_together(
    texts: Sequence[str | Mapping[str, str]],
    options: EncodeOptions,
    readers: Mapping[str, Reader],
    kept: Sequence[int] = (),
) -> dict[str, list[ReadPrompt]]:
    """Read prompts that stand in for one another, and add empty chunks to the shorter ones.

    Args:
        texts: At least one prompt: one text, or one for each tower. ComfyUI's names of towers are ``clip_l``,
            ``clip_g`` and ``clip_h``.
        options: How to read them.
        readers: By tower.
        kept: Padding ``drop``: how many rows of each chunk are kept for the sake of other texts.

    Returns:
        By tower, in the order of ``readers``, all with the same number of chunks in their result, at least as many as
        ``kept`` has, and of rows kept.

    Raises:
        PromptError: In strict mode, where the reference raises.
        ValueError: If an option is out of range.
    """

    def read(text: str | Mapping[str, str], name: str, reader: Reader) -> ReadPrompt:
        text = text if isinstance(text, str) else text[name]
        return read_prompt(text, options, reader.tokenize, reader.layout, embeddings=reader.embeddings)

    reads = {name: [read(text, name, reader) for text in texts] for name, reader in readers.items()}
    longest = max(len(kept), *(num_chunks(read) for some in reads.values() for read in some))
    reads = {name: [padded(read, longest) for read in some] for name, some in reads.items()}
    counts = [read.kept for some in reads.values() for read in some if read.kept is not None]
    if counts:  # the same rows of every text and tower
        fullest = tuple(map(max, zip(*counts, *[kept] * bool(kept), strict=True)))
        reads = {name: [read._replace(kept=fullest) for read in some] for name, some in reads.items()}
    return reads


def num_chunks(read: ReadPrompt) -> int:
    """Chunks behind one another in the result; of prompts that are blended, only the longest counts."""
    return sum(max(map(len, section.prompts)) for section in read.sections)


def padded(read: ReadPrompt, count: int) -> ReadPrompt:
    """The prompt with empty chunks behind it, as many as it lacks.

    Args:
        read: A prompt of at most ``count`` chunks.
        count: How many chunks it shall have.

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
    """The towers' rows side by side, and the pooled vector that image models take.

    Args:
        encoded: By tower, with equal numbers of rows.

    Returns:
        Hidden states ``[1, rows, sum of the towers' dims]`` in the order of ``encoded``; the pooled vector of the last
        tower, which in SDXL is CLIP-G's.
    """
    prompts = list(encoded.values())
    return Encoding(torch.cat([prompt.hidden for prompt in prompts], dim=-1), prompts[-1].pooled)
