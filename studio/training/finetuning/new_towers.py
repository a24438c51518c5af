"""Towers at the start of training: those in the file, or new ones with random weights.

A text tower with rotary positions is always new: released weights were trained with a table of positions, and are
meaningless without it.

Source: the ``initialize_parameters`` of OpenAI's CLIP, for the standard deviations of initial weights; where it has
none, in the blocks of the image tower, they are those of PyTorch's ``nn.MultiheadAttention`` and ``nn.Linear``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from ....encoder.files.sizes import configs_of
from ....encoder.files.tensor_file import MAX_PARAMETERS
from ....encoder.models.clip import FullClip
from ....encoder.models.config import Activation, TextConfig, VisionConfig
from ....encoder.models.layers import EncoderBlock
from ....encoder.models.text_model import TextModel
from ....encoder.models.vision_model import VisionModel
from ....encoder.similarity import INITIAL_TEMPERATURE
from ..options import TrainOptions


def new_clip(size: str, options: TrainOptions, activation: Activation | None = None) -> FullClip:
    """A whole CLIP with the initial weights of CLIP's own training, of a size as in `configs_of`.

    Positions and context length among the options, and an activation, replace those of the size.

    Raises:
        ValueError: If there is no such model, or it is too large.
    """
    text, vision = configs_of(size)
    text = replace(text, positions=options.positions or "learned")
    if options.context_length:
        text = replace(text, context_length=options.context_length)
    if activation:
        text, vision = replace(text, activation=activation), replace(vision, activation=activation)
    with torch.device("meta"):
        models = (TextModel(text), VisionModel(vision))
        count = max(sum(parameter.numel() for parameter in model.parameters()) for model in models)
    if count > MAX_PARAMETERS:
        raise ValueError(f"{size}: an encoder of {count:,} parameters, at most {MAX_PARAMETERS:,} are possible")
    return FullClip(
        new_text_model(text, options.seed),
        new_vision_model(vision, options.seed),
        1 / INITIAL_TEMPERATURE,
        f"random weights, {Path(size).name}",
        f"{text.num_heads} and {vision.num_heads} heads, activations {text.activation} and {vision.activation}",
    )


def about_clip(clip: FullClip, options: TrainOptions) -> dict[str, str]:
    """Properties of the first CLIP that a resumed run must share: its name, and of a new one its sizes."""
    sizes = {"sizes": repr((clip.text.config, clip.vision.config))} if options.new else {}
    return {"weights": clip.name, **sizes}


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
            assert isinstance(block, EncoderBlock)
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


def new_vision_model(config: VisionConfig, seed: int) -> VisionModel:
    """New image tower with the initial weights of CLIP's own training."""
    width = config.hidden_dim
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed + 2**32)  # other numbers than the text tower's
        model = VisionModel(config)
        embeddings = model.embeddings
        for weight in (embeddings.class_embedding, embeddings.position_embedding.weight):
            nn.init.normal_(weight, std=width**-0.5)
        for block in model.encoder.layers:
            assert isinstance(block, EncoderBlock)
            attention = block.self_attn
            for layer in (attention.q_proj, attention.k_proj, attention.v_proj):
                bound = (6 / (4 * width)) ** 0.5  # Xavier's of the three in one matrix
                nn.init.uniform_(layer.weight, -bound, bound)
                nn.init.zeros_(layer.bias)
            nn.init.zeros_(attention.out_proj.bias)
        if model.visual_projection is not None:
            nn.init.normal_(model.visual_projection.weight, std=width**-0.5)
    return model.eval().requires_grad_(False)
