"""The text tower that training begins with: that of the file, or a new one with random weights.

A tower with rotary positions is always a new one: the weights of released towers were learned with a table of
positions, and mean nothing without it.

Source: the ``initialize_parameters`` of OpenAI's CLIP, for the spread of first weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..encoder.config import TextConfig
from ..encoder.contrastive import INITIAL_TEMPERATURE
from ..encoder.full_clip import FullClip
from ..encoder.layers import Block
from ..encoder.text_model import TextModel
from .options import TrainOptions


def with_text(clip: FullClip, weights: Path, options: TrainOptions) -> FullClip:
    """The CLIP that training begins with.

    Args:
        clip: As it was read.
        weights: The file that it was read from.
        options: Whether its text tower is replaced by a new one of the same size, and which positions it is to have.

    Returns:
        The same; or with a new text tower, and the scale that CLIP's training begins with.

    Raises:
        ValueError: If the file's text tower is to be trained with positions that it does not have, or to be the base of
            a LoRA or word for hosts, which cannot load it.
    """
    config = clip.text.config
    if options.new_text:
        positions, length = options.positions or "learned", options.context_length or config.context_length
        new = new_text_model(replace(config, positions=positions, context_length=length), options.seed)
        return replace(clip, text=new, logit_scale=1 / INITIAL_TEMPERATURE)
    if options.positions not in (None, config.positions):
        raise ValueError(
            f"--positions {options.positions}: the text encoder of {weights} was trained with {config.positions} "
            f"positions, and its weights mean nothing with others. Leave out --positions, or add --new-text, which "
            "begins a text encoder of the same size with random weights"
        )
    if config.positions == "rotary" and (options.lora or options.word):
        raise ValueError(
            f"{weights} has a text encoder with rotary positions, which no host loads: --lora and --word are for the "
            "text encoder of a host"
        )
    return clip


def new_text_model(config: TextConfig, seed: int) -> TextModel:
    """A tower with the first weights of CLIP's own training.

    Args:
        config: Sizes.
        seed: Of the weights.

    Returns:
        The model, in evaluation mode without gradients.
    """
    width = config.hidden_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TextModel(config)
        nn.init.normal_(model.embeddings.token_embedding.weight, std=0.02)
        if model.embeddings.position_embedding is not None:
            nn.init.normal_(model.embeddings.position_embedding.weight, std=0.01)
        for block in model.encoder.layers:
            assert isinstance(block, Block)
            attention, mlp = block.self_attn, block.mlp
            into_stream = (2 * width * config.num_layers) ** -0.5
            for layer in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
                nn.init.normal_(layer.weight, std=into_stream if layer is attention.out_proj else width**-0.5)
                nn.init.zeros_(layer.bias)
            nn.init.normal_(mlp.fc1.weight, std=(2 * width) ** -0.5)
            nn.init.normal_(mlp.fc2.weight, std=into_stream)
        if model.text_projection is not None:
            nn.init.normal_(model.text_projection.weight, std=width**-0.5)
    return model.eval().requires_grad_(False)
