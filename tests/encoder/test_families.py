"""The layer each model family conditions on."""

from dataclasses import replace

import pytest
import torch
from weighted_clip.encoder.config import FAMILIES, OPENCLIP_H, TOWERS
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.prefix import encoders_for
from weighted_clip.encoder.text_model import TextModel

from .conftest import TINY, random_ids


def tiny_tower(tower: str, *, projection_dim: int | None = 12, num_layers: int = 3) -> TextModel:
    sizes = replace(TINY, projection_dim=projection_dim, num_layers=num_layers)
    return seeded_text_model(
        replace(sizes, pad_id=TOWERS[tower].pad_id, activation=TOWERS[tower].activation),
        seed=list(TOWERS).index(tower),
    )


TINY_TOWERS = {tower: tiny_tower(tower) for tower in TOWERS}


@pytest.mark.parametrize(
    ("towers", "clip_skip", "family", "used_skip", "final_norm", "projected"),
    [
        (["clip_l"], 1, "SD 1.x", 1, True, False),
        (["clip_l"], 2, "SD 1.x", 2, True, False),
        (["clip_h"], 1, "SD 2.x", 2, True, True),
        (["clip_h"], 3, "SD 2.x", 3, True, True),
        (["clip_l", "clip_g"], 1, "SDXL", 2, False, True),
        (["clip_g", "clip_l"], 2, "SDXL", 2, False, True),
        (["clip_l", "clip_g"], 3, "SDXL", 3, False, True),
        (["clip_g"], 1, "SDXL refiner", 2, False, True),
    ],
)
def test_each_family_has_its_layer(
    towers: list[str], clip_skip: int, family: str, used_skip: int, final_norm: bool, projected: bool
) -> None:
    found, encoders = encoders_for({tower: TINY_TOWERS[tower] for tower in towers}, clip_skip)
    assert found.name == family
    assert tuple(encoders) == found.towers
    for tower, encoder in encoders.items():
        assert encoder.model is TINY_TOWERS[tower]
        ids = random_ids(2, pad_id=encoder.config.pad_id)
        output = encoder.model(ids, clip_skip=used_skip, final_norm=final_norm)
        encoding = encoder(ids.tolist())
        torch.testing.assert_close(encoding.hidden, output.hidden, atol=1e-5, rtol=0)
        pooled = output.projected if projected else output.pooled
        torch.testing.assert_close(encoding.pooled, pooled, atol=1e-5, rtol=0)


def test_without_a_projection_pooled_vectors_stay_as_they_are() -> None:
    # the first tower of an SDXL checkpoint
    _, encoders = encoders_for({"clip_l": tiny_tower("clip_l", projection_dim=None), "clip_g": TINY_TOWERS["clip_g"]})
    ids = random_ids(1).tolist()
    assert encoders["clip_l"](ids).pooled.shape == (1, 16)
    assert encoders["clip_g"](ids).pooled.shape == (1, 12)


def test_the_last_layer_that_diffusers_cuts_off_is_counted() -> None:
    whole = tiny_tower("clip_h", num_layers=OPENCLIP_H.num_layers)
    cut = tiny_tower("clip_h", num_layers=OPENCLIP_H.num_layers - 1)
    cut.load_state_dict(whole.state_dict(), strict=False)
    ids = random_ids(1, pad_id=0).tolist()
    for clip_skip in (1, 2, 3):
        expected, found = (encoders_for({"clip_h": model}, clip_skip)[1]["clip_h"](ids) for model in (whole, cut))
        assert torch.equal(found.hidden, expected.hidden)


@pytest.mark.parametrize("towers", [[], ["clip_h", "clip_l"], ["clip_l", "clip_g", "clip_h"]])
def test_towers_of_no_family_are_refused_with_what_is_allowed(towers: list[str]) -> None:
    with pytest.raises(ValueError, match=r"no model family has the text encoders .*; allowed are") as caught:
        encoders_for({tower: TINY_TOWERS[tower] for tower in towers})
    for family in FAMILIES:
        assert f"{' + '.join(family.towers)} ({family.name})" in str(caught.value)


@pytest.mark.parametrize("clip_skip", [0, -1, 5])
def test_a_clip_skip_out_of_range_is_refused(clip_skip: int) -> None:
    with pytest.raises(ValueError, match=f"clip_skip {clip_skip} is out of range"):
        encoders_for({"clip_g": TINY_TOWERS["clip_g"]}, clip_skip)
