"""``config.json`` beside a file of CLIP: its heads, activation and epsilon, which the shapes of tensors do not tell.

Such a file may be of another model, as in a folder of many text encoders. So it counts only where all its sizes are
those of the tensors.

Source: ``configuration_clip.py`` of transformers 5.23 for what is left out, and ``model.py`` of open_clip 3.3.0 for
``open_clip_config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from ..foreign_text import parse_json
from ..models.config import CLIP_L, Activation
from ..quoting import quote
from ..regular_file import read_regular

MAX_BYTES = 2**20
"""Maximum size; those of released models have some thousands of bytes."""

Half = Literal["text", "vision"]
Json = Mapping[str, Any]

_BOTH: Json = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}
_DEFAULTS: Mapping[Half, Json] = {
    "text": {
        **_BOTH,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "max_position_embeddings": 77,
        "vocab_size": 49408,
        "projection_dim": 512,
        "num_attention_heads": 8,
    },
    "vision": {
        **_BOTH,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "image_size": 224,
        "patch_size": 32,
        "projection_dim": 512,
        "num_attention_heads": 12,
    },
}
_MODEL_TYPES: Mapping[Half, tuple[str, ...]] = {
    "text": ("clip", "clip_text_model"),
    "vision": ("clip", "clip_vision_model"),
}
_EOS_IDS = (CLIP_L.eos_id, 2, None)
"""End tokens of CLIP; 2 is what configs said before transformers 4.31, where it means the largest id."""


class ConfigFileError(ValueError):
    """Raised for a config that cannot be used; the message names it."""


class Told(NamedTuple):
    """Properties of a tower that its tensors do not tell."""

    num_heads: int
    """Attention heads in each layer."""
    activation: Activation
    """Non-linearity of the MLP."""
    layer_norm_eps: float
    """Epsilon of layer norms."""
    file: str = ""
    """Name of the config that has them; empty if they are guessed."""
    ignored: str = ""
    """Reason why a config that is there does not count, if they are guessed."""

    def line(self, activation: str = "") -> str:
        """Origin of the properties in words; ``activation`` is that of the caller, if given."""
        chosen = f"; activation as chosen: {activation}" if activation else ""
        if self.file:
            return f"{self.num_heads} heads{chosen or f' and activation {self.activation}'}, by {self.file}"
        heads = f"heads guessed from the width: {self.num_heads}"
        ignored = f" ({self.ignored})" if self.ignored else ""
        return f"{heads}{chosen or f'; activation guessed: {self.activation}'}{ignored}"


def origin_of(told: Mapping[str, Told], activation: str = "") -> str:
    """Origin of the properties of towers by name, in words; ``activation`` as in `Told.line`."""
    lines = {name: one.line(activation) for name, one in told.items()}
    return "; ".join(f"{name}: {line}" if len(lines) > 1 else line for name, line in lines.items())


def beside(path: Path, half: Half, sizes: Mapping[str, int | None], *, is_open_clip: bool) -> Told | str:
    """Look for a config in the folder of a file."""
    names = ("open_clip_config.json", "config.json") if is_open_clip else ("config.json",)
    ignored: list[str] = []
    for name in names:
        try:
            config = read_json(path.with_name(name))
            if config is None:
                continue
            part = part_of(config, half)
            if part is None:
                why = f"it is of a model of type {quote(config.get('model_type'))}"
            elif not (why := _misfit(part, half, sizes)):
                return told_of(part, half, name)
        except ConfigFileError as error:
            raise ConfigFileError(f"{name} beside it: {error}. Mend it, or take it out of the folder") from error
        ignored.append(f"{name} is not used: {why}")
    return "; ".join(ignored)


def read_json(path: Path) -> Json | None:
    """The object in a JSON file; None without a file, ConfigFileError for one that cannot be used."""
    try:
        given = parse_json(read_regular(path, MAX_BYTES), parse_constant=_no_number)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigFileError(f"it cannot be read: {error.strerror or error}") from error
    except ConfigFileError:
        raise
    except ValueError as error:
        raise ConfigFileError(f"it is {error}") from error
    if not isinstance(given, dict):
        raise ConfigFileError("it is no object of JSON")
    return cast("Json", given)


def _no_number(name: str) -> None:
    raise ConfigFileError(f"{name} is no number in JSON")


def _object(config: Json, name: str) -> Json:
    """An object within another; empty if it is left out."""
    found = config.get(name)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigFileError(f"{name} is {quote(found)}, expected an object")
    return cast("Json", found)


def part_of(config: Json, half: Half) -> Json | None:
    """Entries about a tower, with those left out, by Hugging Face's names; None if it is another kind of model."""
    if "model_cfg" in config or "vision_cfg" in config:
        return _of_open_clip(_object(config, "model_cfg") or config, half)
    kind, name = config.get("model_type"), f"{half}_config"
    if kind not in _MODEL_TYPES[half] and (kind is not None or name not in config):
        return None
    if kind != "clip" and name not in config:
        return {**_DEFAULTS[half], **config}
    part = {**_DEFAULTS[half], **_object(config, name)}
    if config.get(f"{name}_dict") is not None:  # which old files have, and transformers puts in its place
        part |= {**_DEFAULTS[half], **_object(config, f"{name}_dict")}
    return {**part, **({"projection_dim": config["projection_dim"]} if "projection_dim" in config else {})}


def _of_open_clip(model: Json, half: Half) -> Json:
    """The same entries of a config of OpenCLIP."""
    given = _object(model, f"{half}_cfg")
    width = given.get("width", _DEFAULTS[half]["hidden_size"])
    _check_whole("width", width)
    ratio = given.get("mlp_ratio", 4.0)
    if type(ratio) not in (int, float) or not 0 < ratio < MAX_BYTES:
        raise ConfigFileError(f"mlp_ratio is {quote(ratio)}, expected a number")
    part = {
        "hidden_size": width,
        "intermediate_size": int(width * ratio),
        "num_hidden_layers": given.get("layers", 12),
        "projection_dim": model.get("embed_dim"),
        "layer_norm_eps": _object(given, "norm_kwargs").get("eps", 1e-5),
        "hidden_act": "quick_gelu" if model.get("quick_gelu") else "gelu",
    }
    if half == "text":
        return part | {
            "max_position_embeddings": given.get("context_length", 77),
            "vocab_size": given.get("vocab_size", 49408),
            "num_attention_heads": given.get("heads", 8),
        }
    head_width = given.get("head_width", 64)
    _check_whole("head_width", head_width)
    return part | {
        "image_size": given.get("image_size", 224),
        "patch_size": given.get("patch_size", 16),
        "num_attention_heads": width // head_width,
    }


def _check_whole(name: str, value: object) -> None:
    if type(value) is not int or not 1 <= value < 2**31:
        raise ConfigFileError(f"{name} is {quote(value)}, expected a whole number from 1")


def _misfit(part: Json, half: Half, sizes: Mapping[str, int | None]) -> str:
    """The first difference from the sizes of the tensors, in words."""
    for name, size in sizes.items():
        if size is None:
            continue
        _check_whole(name, part[name])
        if part[name] != size:
            return f"by it the {half} encoder has {name} {part[name]}, by its tensors {size}"
    return ""


def told_of(part: Json, half: Half, file: str) -> Told:
    """Properties of a config that fits, checked."""
    heads, width = part["num_attention_heads"], part["hidden_size"]
    _check_whole("num_attention_heads", heads)
    if width % heads:
        raise ConfigFileError(f"num_attention_heads is {quote(heads)}, which does not divide the width, {width}")
    activation, eps = part["hidden_act"], part["layer_norm_eps"]
    if activation not in ("quick_gelu", "gelu"):
        raise ConfigFileError(f"hidden_act is {quote(activation)}, possible here are quick_gelu and gelu")
    if type(eps) not in (int, float) or not 0 < eps < 1:
        raise ConfigFileError(f"layer_norm_eps is {quote(eps)}, expected a number between 0 and 1")
    if half == "text" and part.get("eos_token_id") not in _EOS_IDS:
        raise ConfigFileError(f"eos_token_id is {quote(part['eos_token_id'])}, and texts end in {CLIP_L.eos_id}")
    return Told(heads, activation, eps, file)
