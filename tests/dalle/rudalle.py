"""Sizes, weights and ids of a small ru-DALL-E, by formulas that any program can repeat."""

from __future__ import annotations

import torch
from weighted_clip.studio.dalle.published import VARIANTS

RUDALLE = VARIANTS


SIZES = {
    "num_layers": 7,
    "vocab_size": 20 + 6,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "text_seq_length": 6,
    "image_tokens_per_dim": 8,
    "image_vocab_size": 13,
}
"""Sizes of their model. The last of 7 layers has the convolutional mask, and with 8 columns the variants' masks
differ."""


def formula_state(num_layers: int = SIZES["num_layers"], dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """A state dict of ru-DALL-E, without masks, that any program can repeat: sines, smaller for more inputs."""
    d, texts, side = SIZES["hidden_size"], SIZES["vocab_size"], SIZES["image_tokens_per_dim"]
    images = SIZES["image_vocab_size"]
    shapes = {
        "text_embeddings.weight": (texts, d),
        "image_embeddings.weight": (images, d),
        "text_pos_embeddings.weight": (SIZES["text_seq_length"] + 1, d),
        "image_row_embeddings.weight": (side, d),
        "image_col_embeddings.weight": (side, d),
        "to_logits.0.weight": (d,),
        "to_logits.1.weight": (texts + images, d),
        "to_logits.1.bias": (texts + images,),
        "transformer.final_layernorm.weight": (d,),
    }
    norms = ("input", "post_attention", "before_first_addition", "before_second_addition")
    for layer in range(num_layers):
        at = f"transformer.layers.{layer}"
        shapes |= {f"{at}.{name}_layernorm.weight": (d,) for name in norms}
        shapes |= {
            f"{at}.attention.query_key_value.weight": (3 * d, d),
            f"{at}.attention.dense.weight": (d, d),
            f"{at}.mlp.dense_h_to_4h.weight": (4 * d, d),
            f"{at}.mlp.dense_4h_to_h.weight": (d, 4 * d),
        }
    for name, shape in list(shapes.items()):
        if "embeddings" not in name and name.endswith(".weight"):
            shapes[name.removesuffix(".weight") + ".bias"] = shape[:1]
    state: dict[str, torch.Tensor] = {}
    for number, name in enumerate(sorted(shapes)):
        shape = shapes[name]
        count = torch.Size(shape).numel()
        values = torch.sin(0.37 * torch.arange(count, dtype=torch.float64) + number * (1 + 0.01 * number))
        is_norm = "layernorm" in name or "to_logits.0" in name
        if is_norm and name.endswith("weight"):
            values = 1 + 0.3 * values
        elif name.endswith("bias"):
            values = 0.2 * values
        elif "embeddings" not in name:
            values = values * (2 / shape[1]) ** 0.5
        state[name] = values.view(shape).to(dtype)
    return state


def formula_ids() -> torch.Tensor:
    """``[2, T + n]``: two captions, one with padding, and the tokens of two images."""
    side, kinds = SIZES["image_tokens_per_dim"], SIZES["image_vocab_size"]
    text = torch.tensor([[2, 7, 19, 3, 0, 0], [2, 11, 4, 5, 6, 3]])
    places = torch.arange(2 * side * side)
    return torch.cat([text, (places * places * 5 + places // 3).remainder(kinds).view(2, -1)], 1)
