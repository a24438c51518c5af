"""transformers' text model and tokenizer with our weights and vocabulary, for comparisons."""

from __future__ import annotations

import importlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...encoder.tokenizer import default_tokenizer, read_merges

if TYPE_CHECKING:
    from ...encoder.config import TextConfig, VisionConfig
    from ...encoder.text_model import TextModel


def sizes_of(config: TextConfig | VisionConfig) -> dict[str, int]:
    """Sizes of a tower by Hugging Face's names."""
    return {
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
    }


def transformers_text_model(model: TextModel, attention: str = "sdpa") -> Any:
    """CLIPTextModel of the same size and weights as ours.

    Args:
        model: Our model.
        attention: transformers' attention implementation, ``sdpa`` or ``eager``.

    Returns:
        The model, in evaluation mode without gradients, on the same tensors as ours.

    Raises:
        ImportError: If transformers is not installed.
    """
    from transformers import CLIPTextConfig, CLIPTextModel

    config = model.config
    make_config: Any = CLIPTextConfig  # its keywords differ between versions
    theirs = CLIPTextModel(
        make_config(
            vocab_size=config.vocab_size,
            **sizes_of(config),
            max_position_embeddings=config.context_length,
            hidden_act=config.activation,
            layer_norm_eps=config.layer_norm_eps,
            bos_token_id=config.bos_id,
            eos_token_id=config.eos_id,
            pad_token_id=config.pad_id,
            attn_implementation=attention,
        )
    )
    give_weights(theirs, model)
    return theirs.eval().requires_grad_(False)


def transformers_projected_model(model: TextModel) -> Any:
    """CLIPTextModelWithProjection of the same size and weights as ours; otherwise like `transformers_text_model`."""
    from transformers import CLIPTextModelWithProjection

    config = transformers_text_model(model).config
    config.projection_dim = model.config.projection_dim
    theirs: Any = CLIPTextModelWithProjection(config)
    give_weights(theirs, model)
    return theirs.eval().requires_grad_(False)


def give_weights(theirs: Any, model: TextModel) -> None:
    """Make a text model of transformers share our tensors."""
    ours, state = model.state_dict(), theirs.state_dict()
    for key in state:
        if not key.endswith("position_ids"):  # before 4.31 these are among the weights
            state[key] = ours[key.removeprefix("text_model.")]
    theirs.load_state_dict(state, assign=True)


def transformers_tokenizer() -> Any:
    """CLIPTokenizer, read from files like those of a downloaded model, made from the vocabulary we ship.

    In transformers 4 it is CLIPTokenizerFast, which became CLIPTokenizer in transformers 5. The slow one of version 4
    cleans texts by rules that depend on the installed packages.
    """
    library: Any = importlib.import_module("transformers")
    theirs = library.CLIPTokenizerFast if library.__version__.startswith("4.") else library.CLIPTokenizer
    ours = default_tokenizer()
    vocabulary = {ours.symbol(token_id): token_id for token_id in range(ours.vocab_size)}
    merges = [" ".join(pair) for pair in read_merges()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")
        special = {"bos_token": ours.symbol(49406), "eos_token": ours.symbol(49407)}
        special |= {"unk_token": special["eos_token"], "pad_token": special["eos_token"]}
        kind = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True}
        (folder / "tokenizer_config.json").write_text(json.dumps({**kind, **special}), encoding="utf-8")
        return theirs.from_pretrained(folder)
