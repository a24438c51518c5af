"""Sizes of a CLIP without weights: by open_clip's names of models, or by a config file.

Source: the ``model_configs`` of open_clip 3.3.0, whose towers for one letter differ in patches and pictures alone;
``plus`` is wider, ``alt`` has a smaller text tower.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..models.config import CLIP_L, MAX_POSITIONS, TOWERS, TextConfig, VisionConfig
from ..quoting import quote
from .config_file import ConfigFileError, Half, Json, part_of, read_json, told_of
from .layouts import tower_of_width
from .tensor_file import MAX_IMAGE_SIZE, MAX_LAYERS, MAX_MLP_DIM, MAX_WIDTH

Configs = tuple[TextConfig, VisionConfig]

_NAME = re.compile(
    r"ViT-(?P<letter>\w+?)-(?P<patch>\d{1,4})(?P<kind>-plus|-alt)?(-(?P<image>\d{1,4}))?(?P<quick>-quickgelu)?"
)
_LETTERS: Mapping[str, tuple[int, int, int, int, int, int]] = {
    "S": (384, 12, 1536, 384, 12, 64),
    "S-alt": (384, 12, 1536, 256, 10, 64),
    "M": (512, 12, 2048, 512, 12, 64),
    "M-alt": (512, 12, 2048, 384, 12, 64),
    "B": (768, 12, 3072, 512, 12, 64),
    "B-plus": (896, 12, 3584, 640, 12, 64),
    "L": (1024, 24, 4096, 768, 12, 64),
    "H": (1280, 32, 5120, 1024, 24, 80),
    "g": (1408, 40, 6144, 1024, 24, 88),
    "bigG": (1664, 48, 8192, 1280, 32, 104),
    "e": (1792, 56, 15360, 1280, 36, 112),
}
"""Width, layers and inner width of the image tower; width and layers of the text tower; width of an image head."""
NAMES = "ViT-B-32, ViT-B-16, ViT-L-14, ViT-L-14-336, ViT-H-14, ViT-g-14, ViT-bigG-14, ViT-B-32-quickgelu and others"
"""Names, in messages."""
_OF_OPEN_CLIP = {"embed_dim", "quick_gelu", "text_cfg", "vision_cfg"}
_OF_TOWERS = {
    *("width", "layers", "heads", "head_width", "mlp_ratio", "norm_kwargs"),
    *("image_size", "patch_size", "context_length", "vocab_size"),
}
_MAX: Mapping[str, int] = {
    "hidden_size": MAX_WIDTH,
    "projection_dim": MAX_WIDTH,
    "intermediate_size": MAX_MLP_DIM,
    "num_hidden_layers": MAX_LAYERS,
    "max_position_embeddings": MAX_POSITIONS,
    "image_size": MAX_IMAGE_SIZE,
    "patch_size": MAX_IMAGE_SIZE,
}


def configs_of(size: str) -> Configs:
    """Sizes of both towers.

    Args:
        size: A name such as ``ViT-B-32``, or the path of a ``config.json`` or ``open_clip_config.json``.

    Raises:
        ValueError: If there is no such model, or a size in the file is missing, wrong or too large.

    >>> text, vision = configs_of("ViT-B-32")
    >>> text.hidden_dim, vision.hidden_dim, vision.grid
    (512, 768, 7)
    """
    name = _NAME.fullmatch(size)
    try:
        if name and (known := _LETTERS.get(name["letter"] + (name["kind"] or ""))):
            text, vision = _named(known, int(name["patch"]), int(name["image"] or 224), is_quick=bool(name["quick"]))
        else:
            text, vision = _in_file(Path(size))
    except ValueError as error:
        raise ValueError(f"{size}: {error}") from error
    if vision.image_size > MAX_IMAGE_SIZE or vision.grid**2 >= MAX_POSITIONS:
        raise ValueError(
            f"{size}: pictures of {vision.image_size} pixels in {vision.grid**2:,} patches; at most {MAX_IMAGE_SIZE} "
            f"pixels and {MAX_POSITIONS - 1:,} patches are possible"
        )
    return text, vision


def _named(known: tuple[int, int, int, int, int, int], patch: int, image: int, *, is_quick: bool) -> Configs:
    width, layers, inner, text_width, text_layers, head_width = known
    shared: dict[str, Any] = {"activation": "quick_gelu" if is_quick else "gelu", "projection_dim": text_width}
    text = replace(
        TOWERS[tower_of_width(text_width)],
        hidden_dim=text_width,
        num_heads=text_width // 64,
        num_layers=text_layers,
        mlp_dim=4 * text_width,
        **shared,
    )
    return text, VisionConfig(image, patch, width, width // head_width, layers, inner, **shared)


def _in_file(path: Path) -> Configs:
    config = read_json(path)
    if config is None:
        raise ConfigFileError(f"there is no such file, and no model of this name; models are {NAMES}")
    _check_known(config)
    text, vision = (_checked(part_of(config, half), half, config) for half in ("text", "vision"))
    if text["projection_dim"] != vision["projection_dim"]:
        raise ConfigFileError("its encoders have projections of different widths")
    if text["vocab_size"] != CLIP_L.vocab_size:
        raise ConfigFileError(
            f"vocab_size is {text['vocab_size']}, and CLIP's tokenizer has {CLIP_L.vocab_size} tokens"
        )
    if text["max_position_embeddings"] < 3:
        raise ConfigFileError("BOS, a token and EOS need 3 positions")
    base, length = TOWERS[tower_of_width(text["hidden_size"])], text["max_position_embeddings"]
    return (
        replace(base, context_length=length, **_shared(text, "text")),
        VisionConfig(vision["image_size"], vision["patch_size"], **_shared(vision, "vision")),
    )


def _check_known(config: Json) -> None:
    """Refuse a config of open_clip with a part that our encoders do not have."""
    model = config.get("model_cfg", config)
    if not isinstance(model, dict) or "vision_cfg" not in model:
        return
    towers = [tower for tower in (model["vision_cfg"], model.get("text_cfg")) if isinstance(tower, dict)]
    for given, known in ((model, _OF_OPEN_CLIP), *((tower, _OF_TOWERS) for tower in towers)):
        others = [name for name, value in given.items() if value and name not in known]
        if others:
            raise ConfigFileError(f"{quote(others[0])} is nothing that the encoders here have")


def _checked(part: Json | None, half: Half, config: Json) -> Json:
    """Entries about a tower, each size checked for its range."""
    if part is None:
        raise ConfigFileError(f"it is of a model of type {quote(config.get('model_type'))}, expected clip")
    for name, most in _MAX.items():
        value = part.get(name, 1)
        if type(value) is not int or not 1 <= value <= most:
            raise ConfigFileError(f"{name} of the {half} encoder is {quote(value)}, expected 1 to {most:,}")
    return part


def _shared(part: Json, half: Half) -> dict[str, Any]:
    told = told_of(part, half, "")
    return {
        "hidden_dim": part["hidden_size"],
        "num_heads": told.num_heads,
        "num_layers": part["num_hidden_layers"],
        "mlp_dim": part["intermediate_size"],
        "activation": told.activation,
        "layer_norm_eps": told.layer_norm_eps,
        "projection_dim": part["projection_dim"],
    }
