"""Layouts of queries in models of several families, and masks for pictures and frames."""

from types import SimpleNamespace

import pytest
import torch
from weighted_clip.hosts.comfy.attention.fields import Field, Step, Where, acting, mask_of
from weighted_clip.hosts.comfy.families import queries
from weighted_clip.hosts.comfy.families.queries import ModelCall
from weighted_clip.weighting.placing.field_bias import least_bias
from weighted_clip.weighting.placing.queries import Queries


def call(size, inputs=None, **network) -> ModelCall:
    return ModelCall(SimpleNamespace(**network), {}, inputs or {}, size)


def coarse(*size: int) -> torch.Tensor:
    """A mask of noise whose last frame has one of each four cells."""
    mask = torch.ones(2, 1, *size)
    mask[:, :, -1] = -1
    mask[:, :, -1, ::2, ::2] = 0
    return mask


@pytest.mark.parametrize(
    ("layout", "given", "num_text", "expected"),
    [
        ("text_in_front", call((13, 22), patch_size=2), 5, Queries((7, 11), 5, 0, range(5))),
        ("text_in_front", call((3, 13, 22), patch=2), 5, Queries((3, 7, 11), 5, 0, range(5))),
        ("text_in_front", call((13, 22), patch_size=1), 512, Queries((13, 22), 512, 0, range(512))),
        ("text_in_front_padded", call((13, 22), patch_size=2), 33, Queries((7, 11), 33, 0, range(33))),
        (
            "text_in_front_padded",
            call((13, 22), patch_size=2, pad_tokens_multiple=32),
            *(33, Queries((7, 11), 64, 19, range(33))),
        ),
        ("text_behind", call((13, 22), patch_size=2), 6, Queries((7, 11), 0, 6, range(77, 83))),
        ("picture_alone", call((1, 13, 22), patch_spatial=2), 512, Queries((1, 7, 11))),
        ("picture_alone", call((14, 22), patch_size=2), 120, Queries((7, 11))),
        ("between_references", call((3, 13, 22), patch_size=(1, 2, 2)), 512, Queries((3, 7, 11))),
        (
            "between_references",
            call(
                (3, 14, 22),
                {
                    "reference_latent": torch.zeros(1, 16, 14, 22),
                    "time_dim_concat": torch.zeros(1, 16, 2, 14, 22),
                    "context_latents": [torch.zeros(1, 16, 1, 8, 9)],
                },
                patch_size=(1, 2, 2),
                ref_conv=object(),
            ),
            *(512, Queries((3, 7, 11), 77, 2 * 77 + 4 * 5)),
        ),
        (
            "between_references",
            call(
                (3, 13, 22),
                {"reference_latent": torch.zeros(1, 20, 2, 13, 22), "pose_latents": torch.zeros(1, 20, 3, 6, 11)},
                patch_size=(1, 2, 2),
                patch_embedding_pose=object(),
            ),
            *(512, Queries((3, 7, 11), 2 * 77, 3 * 3 * 6)),
        ),
        (
            "between_references",
            call(
                (3, 16, 32),
                {"reference_latent": torch.zeros(1, 16, 1, 16, 32), "reference_motion": torch.zeros(1, 16, 19, 16, 32)},
                patch_size=(1, 2, 2),
                frame_packer=object(),
            ),
            *(512, Queries((3, 8, 16), 0, 128 + 128 + 32 + 4 * 8)),
        ),
        ("before_guides", call((3, 4, 6)), 128, Queries((3, 4, 6))),
        (
            "before_guides",
            call((5, 4, 6), {"keyframe_idxs": torch.zeros(1, 3, 48, 2), "denoise_mask": coarse(5, 4, 6)}),
            *(128, Queries((3, 4, 6), 0, 24 + 6)),
        ),
    ],
)
def test_layouts_count_patches_text_and_padding(layout, given, num_text, expected) -> None:
    assert getattr(queries, layout)(given, num_text) == expected


def test_queries_that_do_not_add_up_are_refused() -> None:
    layout = Queries((7, 11), before=5, behind=2, text=range(5))
    assert layout.check(84) == layout and layout.picture == slice(5, 82)
    assert layout.check(94, 10) == layout._replace(behind=12)
    with pytest.raises(ValueError, match="each of 85 places is: here 84 are known, the picture's being 7 × 11"):
        layout.check(85)


def step_of(*shape: int, is_part: bool = False) -> Step:
    model = SimpleNamespace(
        latent_format=SimpleNamespace(temporal_downscale_ratio=4),
        model_sampling=SimpleNamespace(percent_to_sigma=lambda part: 1 - part),
    )
    return Step(model, torch.zeros(shape), torch.tensor(0.5), None, {}, is_part)


def test_a_video_has_a_mask_for_each_frame_of_its_own_or_of_the_latent() -> None:
    pictures = torch.rand(9, 4, 6, generator=torch.Generator().manual_seed(1))
    nine, three, two, one = (Where("x", None, pictures[:number]) for number in (9, 3, 2, 1))
    step = step_of(1, 16, 3, 4, 6)
    expected = torch.stack([pictures[0], pictures[1:5].mean(0), pictures[5:].mean(0)])[None]
    torch.testing.assert_close(mask_of(nine, step), expected)
    torch.testing.assert_close(mask_of(three, step), pictures[None, :3])
    torch.testing.assert_close(mask_of(one, step), pictures[:1, None])
    with pytest.raises(ValueError, match="has 2 pictures, but the video has 9 frames, of which the model makes 3"):
        mask_of(two, step)
    with pytest.raises(ValueError, match="context windows"):
        mask_of(three, step_of(1, 16, 3, 4, 6, is_part=True))
    assert mask_of(two, step_of(2, 16, 1, 4, 6)).shape == (2, 1, 4, 6)


def test_a_row_of_several_fields_has_the_least_of_their_product() -> None:
    """Against products written out in float64, for rows of none, some and all of the fields."""
    weights = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(3))
    weights[1, 0, 2, 3] = 0.0
    rows = torch.tensor([[0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 1, 0]]).float()
    found = least_bias(weights, rows)
    for picture, own in enumerate(weights.double()):
        for row, which in enumerate(rows.T):
            product = torch.ones(4, 5, dtype=torch.float64)
            for weight, is_there in zip(own, which, strict=True):
                product *= weight if is_there else 1.0
            assert float(found[picture, row].double().exp()) == pytest.approx(float(product.min()), rel=1e-6)
    left, right = (torch.ones(4, 6) for _ in range(2))
    left[:, 3:], right[:, :3] = 0.5, 0.5
    halves = least_bias(torch.stack([left, right])[None], torch.ones(2, 1))
    assert float(halves.exp()) == pytest.approx(0.5)  # as the same weight everywhere


def test_queries_without_a_place_get_each_pictures_least_weight() -> None:
    mask = torch.stack([torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 1.0]])])
    fields = [Field((1, 2), 1.0, 0.2, Where("x", None, mask), "x"), Field((2,), 0.0, 3.0, Where("y", None, mask), "y")]
    found = acting(fields, 4, step_of(2, 4, 1, 2))
    torch.testing.assert_close(found.unplaced_bias.exp(), torch.tensor([[1, 0.2, 0, 1], [1, 0.6, 0, 1]]))
