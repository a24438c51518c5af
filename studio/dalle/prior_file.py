"""A prior alone as a safetensors file, as ``convert-rudalle`` writes it.

``dalle train`` writes a complete DALL·E instead, with a discrete VAE and merges (``dalle.py``).
"""

from __future__ import annotations

from .config import PriorConfig
from .prior import Prior
from .weight_files import Format, read_sizes, sizes_text

CONVERT = "python run.py convert-rudalle IN OUT"
"""Command that converts ru-DALL-E's weights."""
PRIOR_FORMAT = Format(
    name="dalle-prior",
    title="a prior",
    entries=("prior",),
    build=lambda metadata: Prior(read_sizes(metadata["prior"], PriorConfig)),
    describe=lambda prior: {"prior": sizes_text(prior.config)},
    maker=f"ru-DALL-E's are converted by {CONVERT}",
    for_pickles=f". Convert ru-DALL-E's first: {CONVERT}",
)
save_prior, load_prior = PRIOR_FORMAT.save, PRIOR_FORMAT.load
