"""A small Stable Diffusion: CLIP's text encoder and a U-Net that reads its rows, in one file; and Euler sampling.

The file has the keys of a checkpoint of Stable Diffusion 1.5, in half precision, and its sizes and recipe in the
metadata. Of the token table it holds the rows of the world's words, and one more for all other tokens.

A latent is a picture in -1..1 whose 2 x 2 squares are put into channels, ``[12, 16, 16]``. The model predicts the
velocity from picture to noise (rectified flow): ``x_t = (1 - t) x + t noise``, and the U-Net is given ``1000 t``.

Source: X. Liu et al. 2022, "Flow Straight and Fast"; P. Esser et al. 2024 (times drawn from a logit-normal); ComfyUI
0.29, ``ModelSamplingDiscreteFlow`` with shift 1 and the scheduler ``simple``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F

from ..encoder.config import TextConfig
from ..encoder.files.safetensors_file import opened, why_unread
from ..encoder.foreign_text import parse_json
from ..encoder.quoting import quote
from ..encoder.text_model import TextModel
from ..encoder.tokenizer import default_tokenizer
from ..output.export import save_tensors
from ..output.files import written_whole
from .scenes import SIDE, WORDS
from .unet import Regions, Text, UNet, UNetConfig

TEXT = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=512)
UNET = UNetConfig()
PUNCTUATION = (",",)
FORMAT = "weighted-clip-world"
"""Value of the metadata entry ``format``."""
UNET_PREFIX, TEXT_PREFIX = "model.diffusion_model.", "cond_stage_model.transformer.text_model."
TABLE = "embeddings.token_embedding.weight"
ROWS_MEAN = -0.1
"""Bias of the text's final norm before training. CLIP's rows have such a mean, by which some schemes divide."""
MAX_HEADER_BYTES = 1 << 20
MAX_NAMED = 20
"""Unknown words named in a message."""
TRAINED = Path(__file__).with_name("world.safetensors")
"""Result of ``world train`` with its default recipe."""
STEPS, GUIDANCE = 20, 3.0
CELLS = (SIDE // 2, SIDE // 2)
"""Rows and columns of a latent."""


class WorldError(ValueError):
    """Raised for a file that holds no small world, and for words that it does not know."""


def known_ids() -> list[int]:
    """Token ids that the world knows: BOS, EOS, and one for each word and comma."""
    tokenizer = default_tokenizer()
    return [TEXT.bos_id, TEXT.eos_id, *(tokenizer(word)[0].id for word in (*WORDS, *PUNCTUATION))]


class World(nn.Module):
    """The text encoder and the U-Net.

    In training the text encoder has a table of the known tokens alone; `whole_text` gives it all rows of CLIP's.
    """

    def __init__(self) -> None:
        super().__init__()
        ids = known_ids()
        self.text = TextModel(replace(TEXT, vocab_size=len(ids) + 1, bos_id=0, eos_id=1, pad_id=1))
        self.unet = UNet(UNET)
        for name, std in (("token", 0.2), ("position", 0.02)):
            nn.init.normal_(self.text.get_parameter(f"embeddings.{name}_embedding.weight"), std=std)
        nn.init.constant_(self.text.final_layer_norm.bias, ROWS_MEAN)
        self.place_of = {token: place for place, token in enumerate(ids)}

    def ids(self, captions: list[str]) -> Tensor:
        """Rows of the small table for captions of known words: BOS, tokens, EOS and padding, ``[captions, 77]``."""
        tokenizer, length = default_tokenizer(), TEXT.context_length
        rows = [[0, *(self.place_of[token.id] for token in tokenizer(caption)), 1] for caption in captions]
        return torch.tensor([row + [1] * (length - len(row)) for row in rows])

    def forward(self, latents: Tensor, times: Tensor, ids: Tensor) -> Tensor:
        """Velocity of latents ``[b, 12, h, w]`` at times ``[b]`` in 0..1, given ids of `ids`."""
        return self.unet(latents, 1000 * times, Text(self.text(ids).hidden))

    def whole_text(self) -> TextModel:
        """The text encoder with CLIP's token table, in which all unknown tokens have the last row."""
        with torch.device("meta"):
            text = TextModel(TEXT)
        state = {key: value.detach().clone() for key, value in self.text.state_dict().items()}
        rows = state[TABLE]
        state[TABLE] = rows[-1].repeat(TEXT.vocab_size, 1)
        state[TABLE][list(self.place_of)] = rows[:-1]
        text.load_state_dict(state, assign=True)
        return text.eval().requires_grad_(False)


def check_words(text: str, tokens: Iterable[tuple[int, int, int]]) -> None:
    """Raise WorldError for a text with words that the world does not know, by the ids and places of its tokens."""
    known = set(known_ids())
    places = [(start, end) for token, start, end in tokens if token not in known]
    words = [
        word[0]
        for word in re.finditer(r"[^\W_]+|\S", text)
        if any(start < word.end() and word.start() < end for start, end in places)
    ]
    if words:
        unknown = ", ".join(map(quote, islice(dict.fromkeys(words), MAX_NAMED)))
        raise WorldError(f"the small world does not know {unknown}; it knows {', '.join(WORDS)} and commas")


# ---- files


def save_world(world: World, path: Path, recipe: Mapping[str, Any]) -> None:
    """Write a world in half precision; ``recipe`` says in the metadata how it was trained."""
    tensors = {
        prefix + key: value.detach().to("cpu", torch.float16).contiguous()
        for prefix, module in ((UNET_PREFIX, world.unet), (TEXT_PREFIX, world.text))
        for key, value in module.state_dict().items()
    }
    metadata = {"format": FORMAT, "sizes": _sizes(), "recipe": json.dumps(dict(recipe))}
    with written_whole(path) as place:
        save_tensors(tensors, place, metadata)


def load_world(path: str | Path = TRAINED) -> tuple[World, dict[str, Any]]:
    """Read a world in float32, in evaluation mode without gradients, and its recipe.

    Raises:
        WorldError: If the file is missing, damaged, or of something else.
    """
    try:
        with opened(Path(path), MAX_HEADER_BYTES) as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise WorldError(f"{path}: this is no small world; python run.py world train writes one")
            world, recipe = _built(path, metadata)
            shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            for prefix, module in ((UNET_PREFIX, world.unet), (TEXT_PREFIX, world.text)):
                expected = {prefix + key: list(value.shape) for key, value in module.state_dict().items()}
                for key, shape in expected.items():
                    if shapes.pop(key, None) != shape:
                        raise WorldError(f"{path}: key {quote(key)} is missing, or has not the shape {shape}")
                state = {key.removeprefix(prefix): file.get_tensor(key).float().clone() for key in expected}
                if not all(bool(tensor.isfinite().all()) for tensor in state.values()):
                    raise WorldError(f"{path}: it holds values that are NaN or infinite")
                module.load_state_dict(state, assign=True)
            if shapes:
                raise WorldError(f"{path}: key {quote(next(iter(shapes)), 200)} is no part of a small world")
    except (FileNotFoundError, NotADirectoryError) as error:
        how = "; install the pack again, or make it by python run.py world train DIR and put it there"
        raise WorldError(f"{path}: there is no such file{how if path == TRAINED else ''}") from error
    except (SafetensorError, OSError) as error:
        raise WorldError(f"{path}: {why_unread(error)}") from error
    return world.eval().requires_grad_(False), recipe


def _sizes() -> str:
    """Sizes and words of this version's worlds, as JSON."""
    return json.dumps({"text": asdict(TEXT), "unet": asdict(UNET), "words": [*WORDS, *PUNCTUATION]})


def _built(path: str | Path, metadata: Mapping[str, str]) -> tuple[World, dict[str, Any]]:
    """The world that the metadata describes, which must be this program's."""
    try:
        recipe = parse_json(metadata["recipe"])
        if parse_json(metadata["sizes"]) != json.loads(_sizes()) or not isinstance(recipe, dict):
            raise ValueError("its words or sizes are others")
    except (KeyError, ValueError) as error:
        raise WorldError(f"{path}: this small world is of another version: {error}") from error
    with torch.device("meta"):  # all weights come from the file
        return World(), recipe


# ---- sampling


def to_latents(pictures: Tensor) -> Tensor:
    """Latents ``[n, 12, h / 2, w / 2]`` of pictures ``[n, 3, h, w]`` in 0..1."""
    return F.pixel_unshuffle(pictures * 2 - 1, 2)


def to_pictures(latents: Tensor) -> Tensor:
    """Pictures ``[n, 3, h, w]`` in 0..1 of latents."""
    return ((F.pixel_shuffle(latents, 2) + 1) / 2).clamp(0, 1)


def noise_of(seeds: list[int]) -> Tensor:
    """First latents, ``[seeds, 12, 16, 16]``, each from a seed of its own, the same in every batch."""
    shape = (3 * 4, *CELLS)
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds])


def times(steps: int) -> list[float]:
    """Times from 1 to 0 of the scheduler ``simple``: entries of a table of 1,000 times, evenly apart.

    >>> times(4)
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """
    return [(1000 - int(step * 1000 / steps)) / 1000 for step in range(steps)] + [0.0]


class Timed(NamedTuple):
    """A text for the first steps, and one for the others."""

    first: Text | Regions
    later: Text | Regions
    until: float
    """Part of the steps that are the first ones."""


@torch.no_grad()
def sampled(
    unet: UNet,
    noise: Tensor,  # [n, 12, h, w]
    text: Text | Regions | Timed,
    negative: Text,
    steps: int = STEPS,
    guidance: float = GUIDANCE,
) -> Iterator[Tensor]:
    """Latents after each step of Euler's method with classifier-free guidance."""
    x, count = noise, len(noise)
    timed, negative = (text if isinstance(text, Timed) else Timed(text, text, 1.0)), negative.expanded(count)
    first, later = timed.first.expanded(count), timed.later.expanded(count)
    for step, (time, following) in enumerate(pairwise(times(steps))):
        t = torch.full((count,), 1000 * time)
        with_text, without = unet(x, t, first if step < timed.until * steps else later), unet(x, t, negative)
        x = x + (following - time) * (without + guidance * (with_text - without))
        yield x
