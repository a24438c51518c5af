"""The text tower at the start of training: the one in the file, or a new one with random weights.

A tower with rotary positions is always new: released weights were trained with a table of positions, and are
meaningless without it.

Source: the ``initialize_parameters`` of OpenAI's CLIP, for the standard deviations of initial weights.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ..encoder.clip import FullClip
from ..encoder.config import TextConfig
from ..encoder.layers import Block
from ..encoder.similarity import INITIAL_TEMPERATURE
from ..encoder.text_model import TextModel
from .options import TrainOptions


def with_text(clip: FullClip, weights: Path, options: TrainOptions) -> FullClip:
    """Model at the start of training."""
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
    """New tower with the initial weights of CLIP's own training."""
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
