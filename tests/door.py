"""Prompts that were read by a test, through the product's own door, with an encode function of the test's."""

from collections.abc import Sequence

from weighted_clip.encoder.encoding import EncodeFn
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.pipeline import EncodedPrompt, ask
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.schemes.scheme import SchemeOptions, Weighted
from weighted_clip.weighting.text.chunks import TokenChunk, Tokenize
from weighted_clip.weighting.towers import Reader


def encode_prompts(
    reads: Sequence[ReadPrompt], encode: EncodeFn, tokenize: Tokenize | None = None, **choices
) -> list[EncodedPrompt]:
    encoders = Encoders({"tower": Reader(tokenize or default_tokenizer())}, {"tower": encode}, **choices)
    return encoders.plan([{"tower": read} for read in reads]).run_tower("tower")


def encode_prompt(read: ReadPrompt, encode: EncodeFn, tokenize: Tokenize | None = None) -> EncodedPrompt:
    return encode_prompts([read], encode, tokenize)[0]


def apply_scheme(name: str, chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions) -> Weighted:
    return ask(SCHEMES[name].plan(chunks, options), encode, max_chunks=16)


def num_rows(read: ReadPrompt) -> int:
    """The rows that a prompt without ``.blend`` has in the result of its scheme, with any padding but ``drop``."""
    if read.options.scheme == "lpw":  # it leaves out the rows between chunks
        return 75 * len(read.chunks) + 2
    if read.options.scheme == "lerp_last":  # it has no padding
        return sum(chunk.num_content + 2 for chunk in read.chunks)
    return 77 * len(read.chunks)
