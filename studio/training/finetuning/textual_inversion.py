"""A new word: vectors used in captions, and nothing else trained. Textual inversion by CLIP's own loss.

Ids from the size of the vocabulary on represent the vectors, in order.

Source: R. Gal et al., "An Image is Worth One Word", 2022, for the trained parameters; initial values and file format as
in AUTOMATIC1111's stable-diffusion-webui.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ....encoder.models.config import TextConfig
from ....encoder.models.text_model import TextModel, Vectors
from ....encoder.quoting import quote
from ....encoder.tokenizer import Tokenizer


class Word(nn.Module):
    """Vectors of a new word."""

    def __init__(self, text: TextModel, tokenizer: Tokenizer, count: int, begin: str) -> None:
        """Initialise with the token embeddings of a text, divided evenly among the vectors."""
        super().__init__()
        ids = [token.id for token in tokenizer(begin)]
        if not ids:
            raise ValueError(f"a word cannot begin with {quote(begin)}, which has no token")
        chosen = torch.tensor([ids[number * len(ids) // count] for number in range(count)])
        table = text.embeddings.token_embedding.weight
        self.vectors = nn.Parameter(table.detach()[chosen.to(table.device)].clone())
        """``[count, d]``."""

    def split(self, ids: Tensor, config: TextConfig) -> tuple[Tensor, Vectors]:
        """Split ids into those a tower reads, and the vectors that replace their embeddings by text and position.

        ``ids`` are ``[texts, s]``, some from ``config.vocab_size`` on.
        """
        is_word = ids >= config.vocab_size
        places = [(int(row), int(column)) for row, column in is_word.nonzero()]
        numbers = [int(ids[place]) - config.vocab_size for place in places]
        vectors = {place: self.vectors[number] for place, number in zip(places, numbers, strict=True)}
        return ids.where(~is_word, 0), vectors


def word_tensors(vectors: Tensor) -> dict[str, Tensor]:
    """A word in the formats of ComfyUI, A1111 and Forge; ``clip_g`` is SDXL's second tower, known by its width."""
    return {"clip_g" if vectors.shape[1] == 1280 else "emb_params": vectors.detach().float().cpu().contiguous()}
