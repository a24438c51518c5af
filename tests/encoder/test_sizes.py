"""Sizes of a CLIP by open_clip's names and by config files, compared with open_clip and transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from weighted_clip.encoder.files.checkpoint import clip_config
from weighted_clip.encoder.files.sizes import configs_of
from weighted_clip.encoder.models.config import CLIP_L, OPENCLIP_BIGG, OPENCLIP_H, VISION_TOWERS

from ..libraries import library

OF_TOWERS = {"width", "layers", "heads", "head_width", "mlp_ratio"} | {
    *("patch_size", "image_size", "context_length", "vocab_size")
}
TINY = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 48, "patch_size": 16, "width": 64, "layers": 2, "mlp_ratio": 2},
    "text_cfg": {"width": 64, "heads": 1, "layers": 2, "mlp_ratio": 2},
}


def as_json(place: Path, content: object) -> str:
    path = place / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def names() -> list[str]:
    """Names of open_clip's models whose towers are plain ones with CLIP's vocabulary."""
    open_clip = library("open_clip", "3.0")
    found = []
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        towers = config.get("text_cfg", {}), config.get("vision_cfg", {})
        is_plain = all(set(tower) <= OF_TOWERS for tower in towers) and not isinstance(towers[1].get("layers"), list)
        if is_plain and set(config) <= {"embed_dim", "quick_gelu", "text_cfg", "vision_cfg"}:
            found.append(name)
    return found


def test_all_plain_models_of_open_clip_are_known_by_name(tmp_path: Path) -> None:
    open_clip = library("open_clip", "3.0")
    found = names()
    assert len(found) >= 29
    for name in found:
        assert configs_of(name) == configs_of(as_json(tmp_path, open_clip.get_model_config(name))), name


def test_released_sizes_are_those_known_from_their_files() -> None:
    for name, text, vision in (
        ("ViT-L-14-quickgelu", CLIP_L, "L/14"),
        ("ViT-L-14-336-quickgelu", CLIP_L, "L/14@336"),
        ("ViT-H-14", OPENCLIP_H, "H/14"),
        ("ViT-g-14", OPENCLIP_H, "g/14"),
        ("ViT-bigG-14", OPENCLIP_BIGG, "bigG/14"),
    ):
        found = configs_of(name)
        assert (found[0].hidden_dim, found[0].num_heads, found[0].num_layers) == (
            *(text.hidden_dim, text.num_heads),
            text.num_layers,
        )
        assert found[1] == VISION_TOWERS[vision]


def test_a_config_of_transformers_has_its_sizes(tmp_path: Path) -> None:
    transformers = library("transformers")
    config = transformers.CLIPConfig(
        text_config={"hidden_size": 96, "num_attention_heads": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-4},
        vision_config={"hidden_size": 80, "num_attention_heads": 5, "image_size": 64, "hidden_act": "quick_gelu"},
        projection_dim=40,
    )
    config.save_pretrained(tmp_path)
    text, vision = configs_of(str(tmp_path / "config.json"))
    for ours, theirs in ((text, config.text_config), (vision, config.vision_config)):
        assert (ours.hidden_dim, ours.num_heads, ours.num_layers) == (
            theirs.hidden_size,
            theirs.num_attention_heads,
            theirs.num_hidden_layers,
        )
        assert (ours.mlp_dim, ours.activation) == (theirs.intermediate_size, theirs.hidden_act)
        assert (ours.layer_norm_eps, ours.projection_dim) == (theirs.layer_norm_eps, 40)
    assert (vision.image_size, vision.patch_size, text.context_length) == (64, config.vision_config.patch_size, 77)
    assert configs_of(as_json(tmp_path, clip_config(text, vision))) == (text, vision)


Change = Callable[[dict[str, Any]], Any]


def changed(**given: Any) -> Change:
    """Entries of a tiny model of open_clip; ``text__width`` is one of its text tower."""

    def change(config: dict[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            tower, _, entry = name.rpartition("__")
            (config[f"{tower}_cfg"] if tower else config)[entry] = value
        return config

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (changed(text__width=-64), "width is -64, expected a whole number from 1"),
        (changed(text__width=10**400), "width is a number of 1,329 bits, expected a whole number"),
        (changed(text__width=8256, embed_dim=8256), "hidden_size of the text encoder is 8256, expected 1 to 8,192"),
        (changed(text__width="64"), "width is '64', expected a whole number"),
        (changed(text__heads=5), "num_attention_heads is 5, which does not divide the width, 64"),
        (changed(text__heads=0), "num_attention_heads is 0, expected a whole number"),
        (changed(text__layers=0), "num_hidden_layers of the text encoder is 0, expected 1 to 256"),
        (changed(vision__layers=[3, 4, 6, 3]), r"num_hidden_layers of the vision encoder is \[3, 4, 6, 3\], expected"),
        (changed(text__mlp_ratio=1e300), "mlp_ratio is 1e.300, expected a number"),
        (changed(text__mlp_ratio=0.001), "intermediate_size of the text encoder is 0, expected 1 to 65,536"),
        (changed(text__context_length=2), "BOS, a token and EOS need 3 positions"),
        (changed(text__vocab_size=32000), "vocab_size is 32000, and CLIP's tokenizer has 49408 tokens"),
        (changed(vision__patch_size=0), "patch_size of the vision encoder is 0, expected 1 to 2,048"),
        (changed(vision__patch_size=7), "image_size 48 is not a multiple of patch_size 7"),
        (changed(vision__image_size=2000, vision__patch_size=1), "4,000,000 patches; at most 2048 pixels and 16,383"),
        (changed(vision__image_size=[48, 64]), r"image_size of the vision encoder is \[48, 64\], expected"),
        (changed(vision__head_width=100), "num_attention_heads is 0, expected a whole number"),
        (changed(vision__timm_model_name="vit"), "'timm_model_name' is nothing that the encoders here have"),
        (changed(text__hf_model_name="roberta"), "'hf_model_name' is nothing that the encoders here have"),
        (changed(multimodal_cfg={"width": 3}), "'multimodal_cfg' is nothing that the encoders here have"),
        (changed(embed_dim=None), "projection_dim of the text encoder is None, expected 1 to 8,192"),
        (changed(text__norm_kwargs={"eps": 5}), "layer_norm_eps is 5, expected a number between 0 and 1"),
        (changed(vision_cfg=[1]), r"vision_cfg is \[1\], expected an object"),
        (lambda _: {"model_cfg": "x"}, "model_cfg is 'x', expected an object"),
        (lambda _: {"model_type": "siglip"}, "it is of a model of type 'siglip', expected clip"),
        (lambda _: {"model_type": "clip_text_model"}, "it is of a model of type 'clip_text_model', expected clip"),
        (lambda _: {}, "it is of a model of type None, expected clip"),
        (lambda config: json.dumps(config).replace("48", "NaN"), "NaN is no number in JSON"),
        (lambda _: "[]", "it is no object of JSON"),
    ],
)
def test_a_config_that_no_clip_can_have_is_refused_in_words(tmp_path: Path, change: Change, why: str) -> None:
    configs_of(as_json(tmp_path, TINY))
    path = as_json(tmp_path, change(json.loads(json.dumps(TINY))))
    with pytest.raises(ValueError, match=rf"^.*config\.json: .*{why}"):
        configs_of(path)


@pytest.mark.parametrize(
    ("size", "why"),
    [
        ("ViT-XL-14", "there is no such file, and no model of this name; models are ViT-B-32, "),
        ("RN50", "there is no such file, and no model of this name"),
        ("", "it is a folder, a pipe or a device, and not a file"),
        ("ViT-B-32\0", "embedded null|there is no such file"),
        ("ViT-B-31", "image_size 224 is not a multiple of patch_size 31"),
        ("ViT-B-0", "patch_size must be at least 1, got 0"),
        ("ViT-B-32-9984", "pictures of 9984 pixels"),
        ("ViT-L-14" * 100, "cannot be read|there is no such file"),
    ],
)
def test_a_name_that_no_model_has_is_refused_in_words(size: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        configs_of(size)
