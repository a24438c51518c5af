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
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F

from ...encoder.files.checkpoint import load_text_models
from ...encoder.files.safetensors_file import opened, why_unread
from ...encoder.foreign_text import parse_json
from ...encoder.models.config import TextConfig
from ...encoder.models.text_model import TextModel
from ...encoder.quoting import quote
from ...encoder.tokenizer import default_tokenizer
from ...weighting.text.prompt import Span
from ..output.export import write_tensors
from .joint import Joint, JointConfig, Qwen, QwenConfig
from .judge import Found, discs_in, things_in
from .scenes import DISC_WORDS, KINDS, SIDE, TEXTURES, WORDS
from .unet import Regions, Text, UNet, UNetConfig

TEXT = TextConfig(hidden_dim=128, num_heads=2, num_layers=2, mlp_dim=512)
UNET = UNetConfig()
QWEN, JOINT = QwenConfig(), JointConfig()
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
"""Text around a prompt for Z-Image's Qwen 3, as the host writes it."""
PIECES = {
    **{"<|im_start|>": 151644, "<|im_end|>": 151645, "user": 872, "assistant": 77091, "\n": 198},
    **{"a": 64, " a": 264, " and": 323, ",": 11, " disc": 2560},
    **{" red": 2518, " green": 6176, " blue": 6303, " yellow": 13753, " purple": 24932, " white": 4158},
    **{" plain": 14396, " striped": 67590, " dotted": 58101, " checked": 10067},
}
"""Pieces of captions, with the ids that Qwen's tokenizer gives them."""
PUNCTUATION = (",",)
FORMAT = "weighted-clip-world"
"""Value of the metadata entry ``format``."""
TABLE = "embeddings.token_embedding.weight"
ROWS_MEAN = -0.1
"""Bias of the text's final norm before training. CLIP's rows have such a mean, by which some schemes divide."""
MAX_HEADER_BYTES = 1 << 20
MAX_NAMED = 20
"""Unknown words named in a message."""
TRAINED = Path(__file__).with_name("world.safetensors")
"""Result of ``world train`` with its default recipe."""
TRAINED_JOINT = TRAINED.with_name("joint.safetensors")
"""Result of ``world train --kind joint``."""
PURPLE = TRAINED.with_name("purple.safetensors")
"""Result of ``world train --lora 4``: a LoRA with which all things are purple."""
STEPS = 20
CFG = 3.0
"""Strength of classifier-free guidance."""
CELLS = (SIDE // 2, SIDE // 2)
"""Rows and columns of a latent."""


class WorldError(ValueError):
    """Raised for a file that holds no small world, and for words that it does not know."""


def known_ids() -> list[int]:
    """Token ids that the world knows: BOS, EOS, and one for each word and comma."""
    tokenizer = default_tokenizer()
    return [TEXT.bos_id, TEXT.eos_id, *(tokenizer(word)[0].id for word in (*WORDS, *PUNCTUATION))]


_PIECE = re.compile(r"<\|\w+\|>|\n| ?\w+| ?[^\w\s]| ")
"""A piece of text as Qwen's tokenizer cuts it, where it knows the words."""


def pieces_of(caption: str) -> list[str]:
    """Pieces of a caption in its template.

    >>> pieces_of("a red striped disc, a blue")[3:8]
    ['a', ' red', ' striped', ' disc', ',']
    """
    return _PIECE.findall(TEMPLATE.format(caption))


def places_of_pieces(caption: str) -> list[Span | None]:
    """Place of each piece in the caption, without its space; None for those of the template.

    >>> places_of_pieces("a red")[2:6]
    [None, Span(start=0, end=1), Span(start=2, end=5), None]
    """
    first, _ = TEMPLATE.split("{}")
    spans: list[Span | None] = []
    for match in _PIECE.finditer(TEMPLATE.format(caption)):
        start, end = match.start() - len(first), match.end() - len(first)
        is_own = start >= 0 and end <= len(caption)
        spans.append(Span(start + (match[0][0] == " " and len(match[0]) > 1), end) if is_own else None)
    return spans


class World(nn.Module):
    """A text encoder and a network that reads its rows.

    In training the text encoder has a table of the known tokens alone; `whole_text` gives it all of them.
    """

    name: ClassVar[str]
    """Name of the kind of world."""
    kinds: ClassVar[tuple[str, ...]]
    """Kinds of its things."""
    words: ClassVar[tuple[str, ...]]
    """All that its captions are made of, besides commas."""
    prefixes: ClassVar[dict[str, str]]
    """Keys of the file begin with these, by the name of the part."""
    text: Any
    network: Any

    @classmethod
    def sizes(cls) -> dict[str, Any]:
        """Sizes and words, for the metadata."""
        raise NotImplementedError

    def things_in(self, pictures: Tensor) -> list[list[Found]]:
        """Its judge: things in pictures ``[n, 3, SIDE, SIDE]`` in 0..1."""
        raise NotImplementedError

    def ids(self, captions: list[str]) -> Tensor:
        """Rows of the small table for captions of known words, ``[captions, rows]``."""
        raise NotImplementedError

    def read_ids(self, ids: Tensor) -> Text:
        """Encode ids of `ids` for the network."""
        raise NotImplementedError

    def read(self, captions: list[str]) -> Text:
        """Encode captions of known words for the network."""
        return self.read_ids(self.ids(captions))

    def keep_text(self, path: str | Path) -> None:
        """Take the text encoder of a file, which is not trained.

        Raises:
            WorldError: If its sizes are others.
        """
        raise NotImplementedError

    def forward(self, latents: Tensor, times: Tensor, ids: Tensor) -> Tensor:
        """Velocity of latents ``[b, 12, h, w]`` at times ``[b]`` in 0..1, given ids of `ids`."""
        return self.network(latents, 1000 * times, self.read_ids(ids))


class UNetWorld(World):
    """CLIP's text encoder and a U-Net; shapes."""

    name, kinds, words = "unet", KINDS, WORDS
    prefixes: ClassVar = {"network": "model.diffusion_model.", "text": "cond_stage_model.transformer.text_model."}

    def __init__(self) -> None:
        super().__init__()
        ids = known_ids()
        self.text = TextModel(replace(TEXT, vocab_size=len(ids) + 1, bos_id=0, eos_id=1, pad_id=1))
        self.network = UNet(UNET)
        for name, std in (("token", 0.2), ("position", 0.02)):
            nn.init.normal_(self.text.get_parameter(f"embeddings.{name}_embedding.weight"), std=std)
        nn.init.constant_(self.text.final_layer_norm.bias, ROWS_MEAN)
        self.place_of = {token: place for place, token in enumerate(ids)}

    @classmethod
    def sizes(cls) -> dict[str, Any]:
        """Sizes and words, for the metadata."""
        return {"text": asdict(TEXT), "unet": asdict(UNET), "words": [*WORDS, *PUNCTUATION]}

    def things_in(self, pictures: Tensor) -> list[list[Found]]:
        """Its judge."""
        return things_in(pictures)

    def ids(self, captions: list[str]) -> Tensor:
        """Rows of the small table for captions of known words: BOS, tokens, EOS and padding, ``[captions, 77]``."""
        tokenizer, length = default_tokenizer(), TEXT.context_length
        rows = [[0, *(self.place_of[token.id] for token in tokenizer(caption)), 1] for caption in captions]
        return torch.tensor([row + [1] * (length - len(row)) for row in rows])

    def read_ids(self, ids: Tensor) -> Text:
        """Encode ids of `ids` for the network."""
        return Text(self.text(ids).hidden)

    def keep_text(self, path: str | Path) -> None:
        """Take CLIP's text encoder of a file, which is not trained; unknown tokens have the mean of the known rows."""
        models, _ = load_text_models(path)
        text = next(iter(models.values()))
        if len(models) > 1 or replace(text.config, projection_dim=TEXT.projection_dim) != TEXT:
            raise WorldError(
                f"{path}: this is no text encoder for a small world, which has {TEXT.num_layers} layers of width "
                f"{TEXT.hidden_dim}, {TEXT.activation}, CLIP's tokens and {TEXT.context_length} positions"
            )
        state = {key: value for key, value in text.state_dict().items() if not key.startswith("text_projection")}
        rows = state[TABLE][list(self.place_of)]
        state[TABLE] = torch.cat([rows, rows.mean(0, keepdim=True)])
        self.text.load_state_dict(state)
        self.text.requires_grad_(False)

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


class JointWorld(World):
    """A text encoder as Qwen 3 is, and a network with joint attention, as Flux is; discs of several textures."""

    name, kinds, words = "joint", tuple(TEXTURES), DISC_WORDS
    prefixes: ClassVar = {"network": "model.diffusion_model.", "text": "text_encoders.qwen3_4b.transformer.model."}

    def __init__(self) -> None:
        super().__init__()
        self.text, self.network = Qwen(QWEN, len(PIECES) + 1), Joint(JOINT)
        nn.init.normal_(self.text.embed_tokens.weight, std=0.2)
        for block in self.network.single_blocks:
            nn.init.normal_(block.linear2.weight, std=0.02)
            nn.init.zeros_(block.modulation.lin.weight)
            block.modulation.lin.bias.data = torch.tensor([0.0, 0.0, 1.0]).repeat_interleave(JOINT.hidden_size)
        for zero in (self.network.final_layer.linear, self.network.final_layer.adaLN_modulation[1]):
            nn.init.zeros_(zero.weight)
            nn.init.zeros_(zero.bias)

    @classmethod
    def sizes(cls) -> dict[str, Any]:
        """Sizes and words, for the metadata."""
        return {"text": asdict(QWEN), "joint": {**asdict(JOINT), "axes_dim": list(JOINT.axes_dim)}, "words": [*PIECES]}

    def things_in(self, pictures: Tensor) -> list[list[Found]]:
        """Its judge."""
        return discs_in(pictures)

    def ids(self, captions: list[str]) -> Tensor:
        """Rows of the small table for captions of known words in the template, -1 behind them: ``[captions, rows]``."""
        numbers = {piece: number for number, piece in enumerate(PIECES)}
        unknown = len(numbers)
        rows = [torch.tensor([numbers.get(piece, unknown) for piece in pieces_of(caption)]) for caption in captions]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)

    def read_ids(self, ids: Tensor) -> Text:
        """Encode ids of `ids` for the network; rows behind a caption are hidden from all others."""
        hidden = ids < 0
        rows = self.text(ids.clamp_min(0))
        return Text(rows, torch.zeros_like(rows[..., 0]).masked_fill(hidden, -math.inf) if hidden.any() else None)

    def whole_text(self, vocab_size: int) -> dict[str, Tensor]:
        """State of the text encoder with Qwen's token table of so many rows; all unknown tokens have the last row."""
        state = {key: value.detach().clone() for key, value in self.text.state_dict().items()}
        rows = state["embed_tokens.weight"]
        state["embed_tokens.weight"] = rows[-1].repeat(vocab_size, 1)
        state["embed_tokens.weight"][list(PIECES.values())] = rows[:-1]
        return state


WORLDS: dict[str, type[World]] = {world.name: world for world in (UNetWorld, JointWorld)}
"""Kinds of worlds by name; the first is the default."""


def trained(kind: str) -> Path:
    """The pack's own world of a kind."""
    return {"unet": TRAINED, "joint": TRAINED_JOINT}[kind]


def check_words(text: str, places: Sequence[tuple[int, int]], known_words: Sequence[str] = WORDS) -> None:
    """Raise WorldError for a text with unknown words at some places, none of which may be empty."""
    words = [
        word[0]
        for word in re.finditer(r"[^\W_]+|\S", text)
        if any(start < word.end() and word.start() < end for start, end in places)
    ]
    if words:
        unknown = ", ".join(map(quote, islice(dict.fromkeys(words), MAX_NAMED)))
        raise WorldError(f"the small world does not know {unknown}; it knows {', '.join(known_words)} and commas")


# ---- files


def save_world(world: World, path: Path, recipe: Mapping[str, Any]) -> None:
    """Write a world in half precision; ``recipe`` says in the metadata how it was trained."""
    tensors = {
        prefix + key: value.detach().to("cpu", torch.float16).contiguous()
        for part, prefix in world.prefixes.items()
        for key, value in getattr(world, part).state_dict().items()
    }
    metadata = {"format": FORMAT, "sizes": json.dumps(world.sizes()), "recipe": json.dumps(dict(recipe))}
    write_tensors(path, tensors, metadata)


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
            for part, prefix in world.prefixes.items():
                module = getattr(world, part)
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
        more = next((f" --kind {kind}" for kind in WORLDS if path == trained(kind)), None)
        how = f"; install the pack again, or make it by python run.py world train{more} DIR and put it there"
        raise WorldError(f"{path}: there is no such file{'' if more is None else how}") from error
    except (SafetensorError, OSError) as error:
        raise WorldError(f"{path}: {why_unread(error)}") from error
    return world.eval().requires_grad_(False), recipe


def _built(path: str | Path, metadata: Mapping[str, str]) -> tuple[World, dict[str, Any]]:
    """The world that the metadata describes, which must be one of this program's."""
    try:
        recipe, sizes = parse_json(metadata["recipe"]), parse_json(metadata["sizes"])
        make = next((world for world in WORLDS.values() if json.loads(json.dumps(world.sizes())) == sizes), None)
        if make is None or not isinstance(recipe, dict):
            raise ValueError("its words or sizes are others")
    except (KeyError, ValueError) as error:
        raise WorldError(f"{path}: this small world is of another version: {error}") from error
    with torch.device("meta"):  # all weights come from the file
        return make(), recipe


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
    network: UNet | Joint,
    noise: Tensor,  # [n, 12, h, w]
    text: Text | Regions | Timed,
    negative: Text,
    steps: int = STEPS,
    guidance: float = CFG,
) -> Iterator[Tensor]:
    """Latents after each step of Euler's method with classifier-free guidance."""
    x, count = noise, len(noise)
    timed, negative = (text if isinstance(text, Timed) else Timed(text, text, 1.0)), negative.expanded(count)
    first, later = timed.first.expanded(count), timed.later.expanded(count)
    for step, (time, following) in enumerate(pairwise(times(steps))):
        t = torch.full((count,), 1000 * time)
        with_text = network(x, t, first if step < timed.until * steps else later)
        without = network(x, t, negative)
        x = x + (following - time) * (without + guidance * (with_text - without))
        yield x
