"""Preservation of a text tower's knowledge: ``--keep`` keeps the token states of general prompts from changing.

The prompts are our own: people, animals, places, things and styles, none of them taken from anybody's work.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import torch
from torch import Tensor

from ....encoder.models.linear import widened
from ....encoder.models.text_model import TextModel
from ....encoder.tokenizer import default_tokenizer
from ..data.captions import token_ids

PER_STEP = 8
"""General prompts used in each step, different ones each time."""

PROMPTS = (
    "a photo of a cat",
    "a dog running on a beach",
    "a red car parked on a street at night",
    "a portrait of an old man with a white beard",
    "a young woman with long dark hair, smiling",
    "two children playing in the snow",
    "a crowd of people at a concert",
    "a bowl of fruit on a wooden table",
    "a cup of coffee next to an open book",
    "a plate of spaghetti with tomato sauce",
    "a mountain lake at sunrise, mist over the water",
    "a dense forest in autumn",
    "waves breaking on black rocks",
    "a desert under a clear blue sky",
    "a field of yellow flowers",
    "a waterfall in the jungle",
    "the skyline of a large city in the evening",
    "an empty street in the rain, neon signs",
    "an old stone bridge over a river",
    "a small wooden house in the mountains",
    "the inside of a cathedral, sunlight through stained glass",
    "a modern living room with large windows",
    "a kitchen with blue tiles",
    "a train arriving at a station",
    "a sailing boat on calm water",
    "an airplane above the clouds",
    "a bicycle leaning against a brick wall",
    "a horse in a green meadow",
    "a flock of birds at sunset",
    "an elephant drinking at a river",
    "a butterfly on a pink flower, close-up",
    "a black and white photograph of a jazz musician",
    "an oil painting of a storm at sea",
    "a watercolor of a quiet village",
    "a pencil drawing of a hand",
    "a pixel art castle",
    "a comic book hero flying over a city",
    "a cartoon fox wearing a scarf",
    "an anime girl with blue eyes",
    "a 3d render of a robot",
    "a low poly landscape",
    "a knight in shining armor",
    "a dragon flying over a burning castle",
    "a wizard reading in a library",
    "an astronaut on the moon",
    "a spaceship above a ringed planet",
    "a city of the future with flying cars",
    "a haunted house under a full moon",
    "a red rose on a white background",
    "a green apple and three yellow lemons",
    "a tall tower beside a small hut",
    "a man in a blue shirt holding a black umbrella",
    "a woman reading a newspaper in a cafe",
    "a chef cooking in a restaurant",
    "a football player kicking a ball",
    "a doctor talking to a patient",
    "a guitar, a drum and a piano",
    "an antique clock showing ten past ten",
    "a glass of water with ice cubes",
    "a sign that says open",
    "a map of an island",
    "a statue made of marble",
    "fireworks over a harbor",
    "a highly detailed photograph, soft light, sharp focus",
)


class Kept(NamedTuple):
    """Some prompts and their initial rows."""

    ids: Tensor
    """``[prompts, s]``, int64."""
    rows: Tensor
    """``[prompts, s, d]``, float: last hidden states after the final layer norm."""
    is_row: Tensor
    """``[prompts, s]``, bool: True for BOS, tokens and EOS, False for padding."""

    def distance(self, text: TextModel) -> Tensor:
        """Distance of the rows from their initial values: the mean over all rows of ``|h - h0|^2 / |h0|^2``."""
        change = widened(text(self.ids).hidden) - self.rows  # [prompts, s, d]
        shares = change.square().sum(-1) / self.rows.square().sum(-1)  # [prompts, s]
        return shares[self.is_row].mean()


class Keeping:
    """Initial rows of all general prompts."""

    @torch.no_grad()
    def __init__(self, text: TextModel, seed: int) -> None:
        """Compute the rows."""
        self._seed = seed
        ids = token_ids(PROMPTS, default_tokenizer(), text.config)
        device = text.final_layer_norm.weight.device
        rows = widened(text(ids.to(device)).hidden).cpu()
        is_eos = ids == text.config.eos_id
        is_row = is_eos.cumsum(1) - is_eos.int() == 0  # up to the first EOS
        self._all = Kept(ids, rows, is_row)

    def __call__(self, step: int, device: torch.device) -> Kept:
        """Prompts of a step, which depend on its number and the seed alone, so they are the same on all processes."""
        chosen = random.Random(f"{self._seed}/keep/{step}").sample(range(len(PROMPTS)), PER_STEP)
        length = int(self._all.is_row[chosen].sum(1).max())
        return Kept(*(tensor[chosen, :length].to(device) for tensor in self._all))
