"""Pictures of prompts and masks, drawn with Pillow alone.

Every function returns a ``PIL.Image.Image`` in mode RGB and is deterministic on a given machine. Machines differ in
their fonts; see ``fonts.py`` for how to get Chinese, Japanese and Korean characters or emoji drawn.
"""

from .map_grid import draw_heat, draw_word_maps, tile_size
from .masks import draw_encoding_masks
from .matrices import draw_similarity
from .sheets import draw_ranking
from .token_grid import draw_token_grid
from .tokens import draw_tokens

__all__ = [
    "draw_encoding_masks",
    "draw_heat",
    "draw_ranking",
    "draw_similarity",
    "draw_token_grid",
    "draw_tokens",
    "draw_word_maps",
    "tile_size",
]
