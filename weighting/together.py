"""Several texts encoded together, as the WebUI encodes all texts of a timed prompt: first all first chunks, and so on.

For most schemes that is the same as one text after another. The WebUI's own mean is taken over all texts, and its last
digits depend on what is encoded together, so for those schemes this is the way to the program's numbers.

Source: docs/weighting.md, "In the WebUI"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .batching import encode_prompts
from .chunks import TokenChunk, Tokenize
from .embeddings import TokenId
from .encode import EncodedPrompt, mask_fn, without_padding
from .reading import ReadPrompt
from .scheme_api import EncodeFn, Encoding, SchemeOptions, Weighted
from .schemes import SCHEMES

MAX_CHUNKS = 32
"""What a WebUI's encoder is given at once, beyond the chunks of one text."""
_OF_A_COLUMN = {"a1111": "a1111_global_norm", "a1111_no_norm": "a1111_no_norm", "unweighted": "unweighted"}
"""The WebUI's schemes, and what each does to a column, which is the same chunk of every text: the mean over a column is
the mean over all chunks it is given."""


def encode_together(reads: Sequence[ReadPrompt], encode: EncodeFn, tokenize: Tokenize) -> list[EncodedPrompt]:
    """Encode texts that stand in for one another while an image is made.

    Args:
        reads: The texts, at least one, with the same options, layout and number of chunks.
        encode: The encoder.
        tokenize: Its tokenizer.

    Returns:
        One result for each text.

    Raises:
        ValueError: If the filler is not exactly one token.
    """
    if not _are_columns(reads):
        return encode_prompts(reads, encode, tokenize, max_chunks=MAX_CHUNKS)
    columns = [
        _encode_column(column, encode, reads[0]) for column in zip(*(read.chunks for read in reads), strict=True)
    ]
    results: list[EncodedPrompt] = []
    for index, read in enumerate(reads):
        rows = [column.hidden[index : index + 1] for column in columns]  # [1, 77, dim] each
        # what is found in a column is told once, with the first text
        found = [issue for column in columns for issue in column.issues] if index == 0 else []
        pooled = columns[0].pooled[index : index + 1]
        weighted = Weighted(torch.cat(rows, dim=1), pooled, len(columns), tuple(dict.fromkeys(found)))
        if read.kept is not None:
            weighted = without_padding(weighted, read.kept, read.layout)
        read = read._replace(issues=(*read.issues, *weighted.issues))
        results.append(EncodedPrompt(weighted.hidden, weighted.pooled, read, weighted.num_encodings))
    return results


def _are_columns(reads: Sequence[ReadPrompt]) -> bool:
    """Whether the texts are encoded chunk by chunk: by a scheme of the WebUI, with nothing the WebUI does not have."""
    options = reads[0].options
    is_plain = all(len(read.sections) == 1 and not read.sections[0].shares for read in reads)
    is_plain = is_plain and all(read.sections[0].weight == 1.0 for read in reads)
    return is_plain and options.scheme in _OF_A_COLUMN and options.eos_rows == "own" and options.pooled != "raw text"


def _encode_column(column: Sequence[TokenChunk], encode: EncodeFn, read: ReadPrompt) -> Weighted:
    """One chunk of every text: hidden states ``[texts, 77, dim]`` and pooled vectors ``[texts, pooled_dim]``."""
    options = read.options
    mask_of = mask_fn(options, read.layout)
    encoding = encode([chunk.ids for chunk in column], mask_of(column), is_causal=options.is_causal)

    def encoded(ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        """What was encoded above, as the pooled vectors of all texts are wanted and a scheme gives the first only."""
        del ids, mask, is_causal
        return encoding

    scheme_options = SchemeOptions(mask_of=mask_of, layout=read.layout)
    weighted = SCHEMES[_OF_A_COLUMN[options.scheme]].apply(column, encoded, scheme_options)
    return weighted._replace(hidden=weighted.hidden.view_as(encoding.hidden), pooled=encoding.pooled)
