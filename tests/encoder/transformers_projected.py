"""CLIPTextModelWithProjection of the transformers library on the tensors of a model of ours."""

from __future__ import annotations

from typing import Any

from weighted_clip.encoder.text_model import TextModel
from weighted_clip.parity.transformers_reference import give_weights, transformers_text_model


def transformers_projected_model(model: TextModel) -> Any:
    """In evaluation mode without gradients, with ``sdpa`` attention.

    Raises:
        ImportError: If there is no transformers.
    """
    from transformers import CLIPTextModelWithProjection

    config = transformers_text_model(model).config
    config.projection_dim = model.config.projection_dim
    theirs: Any = CLIPTextModelWithProjection(config)
    give_weights(theirs, model)
    return theirs.eval().requires_grad_(False)
