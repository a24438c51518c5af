"""The toy encoder of the case files: ten lines that any implementation can repeat, in float64."""

import torch
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.weighting.text.chunks import Token, TokenChunk

EOS = 49407


def toy_encode(ids, mask=None, *, is_causal=True) -> Encoding:
    assert is_causal, "the cases have no other"
    tokens = torch.tensor([list(chunk) for chunk in ids], dtype=torch.float64)
    place, feature = torch.arange(77, dtype=torch.float64), torch.arange(1, 4, dtype=torch.float64)
    u = torch.sin(0.001 * (tokens[..., None] + 1) * feature) + 0.1 * torch.cos(0.05 * place[:, None] * feature) + 0.4
    attention = torch.exp(-0.1 * (place[:, None] - place)).tril().expand(len(tokens), 77, 77)
    if mask is not None:
        attention = attention * mask.expand(len(tokens), -1, -1)
    hidden = attention @ u / attention.sum(-1, keepdim=True) + 0.5 * u
    first_eos = [list(chunk).index(EOS) for chunk in ids]
    return Encoding(hidden, hidden[range(len(tokens)), first_eos] * torch.tensor([1.0, 1.1, 1.2], dtype=torch.float64))


def case_chunks(case: dict) -> list[TokenChunk]:
    """The chunks of a numeric case. Tokens of one word are one fragment."""
    chunks = []
    words = case.get("word_ids") or [[1] * 77 for _ in case["tokens"]]
    for ids, weights, numbers in zip(case["tokens"], case["weights"], words, strict=True):
        num_content = ids.index(EOS) - 1
        tokens = [
            Token(token, weight, word, word) if 1 <= index <= num_content else Token(token)
            for index, (token, weight, word) in enumerate(zip(ids, weights, numbers, strict=True))
        ]
        chunks.append(TokenChunk(tuple(tokens), num_content))
    return chunks
