"""The small world: its judge measured on drawn scenes, its sampler, its file, and its training."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from weighted_clip.encoder.files.checkpoint import hugging_face_tensors, seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.world import evaluation
from weighted_clip.studio.world.evaluation import held_out_scenes, is_held_out, rightness, training_example
from weighted_clip.studio.world.judge import NO_KIND, assigned, things_in
from weighted_clip.studio.world.model import (
    FORMAT,
    PUNCTUATION,
    TEXT,
    TRAINED,
    JointWorld,
    Timed,
    UNetWorld,
    World,
    WorldError,
    known_ids,
    load_world,
    noise_of,
    sampled,
    save_world,
    times,
    to_latents,
    to_pictures,
)
from weighted_clip.studio.world.scenes import (
    BACKGROUND,
    COLORS,
    DISC_WORDS,
    KINDS,
    SIDE,
    TEXTURES,
    WORDS,
    Scene,
    Thing,
    pictures,
    random_scene,
)
from weighted_clip.studio.world.unet import Text, UNet
from weighted_clip.weighting.encoders import Encoders

from ..libraries import library
from .worlds import random_world, wrong

CAPTION = "a red circle and a blue square"


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    rng = random.Random(0)
    return [random_scene(rng) for _ in range(500)]


@pytest.fixture(scope="module")
def world() -> World:
    return random_world()


@pytest.fixture
def file(world: World, tmp_path: Path) -> Path:
    save_world(world, tmp_path / "world.safetensors", {"steps": 0})
    return tmp_path / "world.safetensors"


def text_of(world: World, caption: str = CAPTION) -> Text:
    return Text(world.text(world.ids([caption])).hidden)


# ---- scenes and the judge


def test_the_judge_finds_what_is_drawn(scenes: list[Scene]) -> None:
    assert {len(scene.things) for scene in scenes} == {1, 2, 3}
    missed, kinds, more = wrong(scenes, pictures(scenes))
    assert missed == more == 0
    assert kinds <= 0.005


def test_the_judge_finds_it_under_noise_and_blur(scenes: list[Scene]) -> None:
    clean = pictures(scenes)
    noisy = clean + 0.1 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(0))
    kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16
    padded = torch.nn.functional.pad(clean.flatten(0, 1)[:, None], (1,) * 4, mode="replicate")
    blurred = torch.nn.functional.conv2d(padded, kernel[None, None]).reshape(clean.shape)
    for shown in (noisy, blurred):
        missed, kinds, more = wrong(scenes, shown)
        assert missed == more == 0
        assert kinds <= 0.04


def test_places_and_radii_are_those_of_the_drawing(scenes: list[Scene]) -> None:
    for scene, found in zip(scenes[:100], things_in(pictures(scenes[:100])), strict=True):
        if len({thing[:2] for thing in scene.things}) < len(scene.things):
            continue  # which of two that are alike is which cannot be told
        for thing, one in zip(scene.things, assigned(found, scene.things), strict=True):
            assert one is not None
            assert math.dist((one.thing.x, one.thing.y), (thing.x, thing.y)) < 1
            assert abs(one.thing.radius - thing.radius) < 1.25


def test_nothing_is_found_where_nothing_is() -> None:
    empty = torch.tensor(BACKGROUND).float()[:, None, None].expand(3, SIDE, SIDE) / 255
    assert things_in(empty[None]) == [[]]
    assert things_in(torch.zeros(0, 3, SIDE, SIDE)) == []


def test_a_patch_of_no_shape_has_no_kind() -> None:
    picture = torch.full((3, SIDE, SIDE), 0.25)
    picture[:, 3:5, 2:30] = torch.tensor([220.0, 40, 40])[:, None, None] / 255
    [[found]] = things_in(picture[None])
    assert (found.thing.color, found.thing.kind) == ("red", NO_KIND)


@pytest.mark.parametrize("kind", KINDS)
def test_two_things_of_one_colour_are_two(kind: str) -> None:
    apart = Scene((Thing("green", kind, 8, 8, 6), Thing("green", "square", 23, 23, 6)))
    [found] = things_in(pictures([apart]))
    assert sorted(one.thing.kind for one in found) == sorted([kind, "square"])


def test_squares_of_one_colour_that_touch_at_a_corner_are_two() -> None:
    touching = Scene((Thing("blue", "square", 9, 9, 6), Thing("blue", "square", 19, 18, 6)))
    [found] = things_in(pictures([touching]))
    assert [one.thing.kind for one in found] == ["square", "square"]


def test_the_same_colour_and_kind_is_taken_before_the_same_colour() -> None:
    [found] = things_in(pictures([Scene((Thing("red", "cross", 8, 8, 6.5), Thing("red", "circle", 23, 23, 5)))]))
    circle, none = assigned(found, [Thing("red", "circle"), Thing("blue", "circle")])
    assert circle is not None and circle.thing.kind == "circle"
    assert none is None


def test_a_thing_has_twenty_pixels_or_more() -> None:
    picture = torch.tensor(BACKGROUND).float()[:, None, None].expand(3, SIDE, SIDE).clone() / 255
    picture[:, 10:14, 10:15] = torch.tensor(COLORS["red"]).float()[:, None, None] / 255
    [[found]] = things_in(picture[None])
    assert (found.thing.color, int(found.area.sum())) == ("red", 20)
    picture[:, 13, 14] = torch.tensor(BACKGROUND).float() / 255
    assert things_in(picture[None]) == [[]]


def test_a_thing_is_found_for_one_of_two_that_are_asked_for() -> None:
    [found] = things_in(pictures([Scene((Thing("red", "circle", 16, 16, 7),))]))
    one, other = assigned(found, [Thing("red", "circle"), Thing("red", "circle")])
    assert one is not None and other is None


@pytest.mark.parametrize(("kinds", "words"), [(KINDS, WORDS), (tuple(TEXTURES), DISC_WORDS)])
def test_no_picture_of_training_holds_a_pair_that_is_held_out(kinds: tuple[str, ...], words: tuple[str, ...]) -> None:
    held = held_out_scenes(100, kinds)
    assert len({scene.caption for scene in held}) == 100
    assert all(is_held_out(scene, kinds) for scene in held)
    shown, captions = training_example(random.Random(0), 300, kinds)
    assert len(shown) == len(captions) == 300
    assert not any(scene.caption in caption for scene in held for caption in captions)
    assert any(", " in caption for caption in captions)
    assert {word for caption in captions for word in caption.replace(",", "").split()} == set(words)


def test_a_pair_is_held_out_with_a_third_thing_between_them() -> None:
    one, other = held_out_scenes(1)[0].things
    between = next(
        thing
        for thing in (Thing(color, kind) for color in COLORS for kind in KINDS)
        if not is_held_out(Scene((one, thing))) and not is_held_out(Scene((thing, other)))
    )
    assert is_held_out(Scene((one, between, other)))


def test_each_caption_has_a_seed_of_its_own_in_batches_of_any_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def noted(given: list[int]) -> torch.Tensor:
        seeds.extend(given)
        return noise_of(given)

    monkeypatch.setattr(evaluation, "noise_of", noted)
    monkeypatch.setattr(evaluation, "sampled", lambda network, noise, *rest, **options: [noise])
    rightness(world, held_out_scenes(5), batch=2, seed=70)
    assert seeds == [70, 71, 72, 73, 74]


# ---- the model


def test_each_word_of_the_world_is_one_token() -> None:
    assert all(len(default_tokenizer()(word)) == 1 for word in (*WORDS, *PUNCTUATION))
    assert len(set(known_ids())) == 2 + len(WORDS) + len(PUNCTUATION)


def test_the_whole_table_gives_the_same_rows(world: World) -> None:
    ids = torch.full((1, 77), 49407)
    tokens = [49406, *(token.id for token in default_tokenizer()(CAPTION))]
    ids[0, : len(tokens)] = torch.tensor(tokens)
    torch.testing.assert_close(world.whole_text()(ids).hidden, text_of(world).rows, rtol=0, atol=1e-6)


def test_latents_are_pictures_and_back() -> None:
    shown = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    assert to_latents(shown).shape == (2, 12, 16, 16)
    torch.testing.assert_close(to_pictures(to_latents(shown)), shown)


def test_sampling_is_eulers_method_written_out(world: World) -> None:
    noise, rows, empty = noise_of([3, 4]), text_of(world), text_of(world, "")
    *_, found = sampled(world.network, noise, rows, empty, 4, 2.5)
    x = noise
    for time in (1.0, 0.75, 0.5, 0.25):
        t = torch.full((2,), 1000 * time)
        with_text, without = (world.network(x, t, one.expanded(2)) for one in (rows, empty))
        x = x - 0.25 * (without + 2.5 * (with_text - without))
    torch.testing.assert_close(found, x)
    assert times(3) == [1.0, 0.667, 0.334, 0.0]


@pytest.mark.parametrize(("steps", "until", "num_first"), [(5, 0.4, 2), (4, 0.3, 2), (4, 0.0, 0), (4, 1.0, 4)])
def test_a_timed_text_is_read_in_its_part_of_the_steps(world: World, steps: int, until: float, num_first: int) -> None:
    x, first, later, empty = noise_of([3]), text_of(world), text_of(world, "a blue square"), text_of(world, "")
    *_, found = sampled(world.network, x, Timed(first, later, until), empty, steps, 2.5)
    for index in range(steps):
        t = torch.tensor([1000 * times(steps)[index]])
        text = first if index < num_first else later
        with_text, without = (world.network(x, t, one) for one in (text, empty))
        x = x + (times(steps)[index + 1] - times(steps)[index]) * (without + 2.5 * (with_text - without))
    torch.testing.assert_close(found, x)


def test_noise_depends_on_its_seed_alone() -> None:
    assert torch.equal(noise_of([1, 2, 3])[1:2], noise_of([2]))


def test_a_hidden_row_is_read_by_no_place_and_a_factor_turns_its_value(world: World) -> None:
    rows = text_of(world).rows
    x, t = noise_of([0]), torch.tensor([500.0])

    def out(unet: UNet, given: torch.Tensor, bias: float = 0.0, factor: float = 1.0) -> torch.Tensor:
        biases, factors = torch.zeros(1, 77), torch.ones(1, 77)
        biases[0, 5], factors[0, 5] = bias, factor
        return unet(x, t, Text(given, biases, factors))

    torch.testing.assert_close(out(world.network, rows), world.network(x, t, Text(rows)))
    other = rows.clone()
    other[0, 5] += 1
    torch.testing.assert_close(
        out(world.network, other, -math.inf), out(world.network, rows, -math.inf), rtol=0, atol=0
    )
    without = world.network(x, t, Text(rows[:, [*range(5), *range(6, 77)]]))
    torch.testing.assert_close(out(world.network, rows, -math.inf), without)
    assert not torch.allclose(out(world.network, rows, factor=-1.0), out(world.network, rows))


# ---- files


@pytest.mark.parametrize(
    ("kind", "most", "names"),
    [
        (
            UNetWorld,
            6e6,
            {
                "model.diffusion_model.input_blocks.3.1.transformer_blocks.0.attn2.to_k.weight",
                "cond_stage_model.transformer.text_model.final_layer_norm.bias",
            },
        ),
        (
            JointWorld,
            4e6,
            {
                "model.diffusion_model.single_blocks.5.norm.query_norm.scale",
                "text_encoders.qwen3_4b.transformer.model.layers.1.self_attn.q_norm.weight",
            },
        ),
    ],
)
def test_a_file_is_read_as_it_was_written(tmp_path: Path, kind: type[World], most: float, names: set[str]) -> None:
    world, file = random_world(kind), tmp_path / "world.safetensors"
    save_world(world, file, {"steps": 0})
    found, recipe = load_world(file)
    assert isinstance(found, kind) and recipe == {"steps": 0}
    expected = {key: value.half().float() for key, value in world.state_dict().items()}
    state = found.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in state)
    assert file.stat().st_size <= most
    with safe_open(file, "pt") as opened:
        assert names <= set(opened.keys())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, about: about.update(format="dalle-prior"), "this is no small world"),
        (lambda tensors, about: about.update(sizes="[" * 100_000), "of another version"),
        (lambda tensors, about: about.pop("recipe"), "of another version"),
        (lambda tensors, about: about.update(sizes=about["sizes"].replace("128", "256")), "of another version"),
        (lambda tensors, about: about.update(sizes=about["sizes"].replace('"red"', '"pink"')), "of another version"),
        (lambda tensors, about: tensors.pop("model.diffusion_model.out.2.bias"), "out.2.bias' is missing"),
        (lambda tensors, about: tensors.update(more=torch.zeros(1)), "'more' is no part of a small world"),
        (lambda tensors, about: tensors["model.diffusion_model.out.2.bias"].fill_(math.nan), "NaN or infinite"),
    ],
    ids=["format", "deep", "recipe", "sizes", "words", "missing", "more", "nan"],
)
def test_what_is_no_world_is_refused_in_words(file: Path, change: object, message: str) -> None:
    with safe_open(file, "pt") as opened:
        about = dict(opened.metadata())
    tensors = load_file(file)
    change(tensors, about)  # pyright: ignore[reportCallIssue]
    save_file(tensors, file, about)
    with pytest.raises(WorldError, match=message):
        load_world(file)


def test_a_file_cut_off_or_absent_is_refused_in_words(file: Path, tmp_path: Path) -> None:
    file.write_bytes(file.read_bytes()[:100_000])
    with pytest.raises(WorldError, match=r"world\.safetensors"):
        load_world(file)
    with pytest.raises(WorldError, match="there is no such file"):
        load_world(tmp_path / "none.safetensors")


# ---- a text encoder that is kept


def write_text(path: Path, config: TextConfig, **changes: Any) -> TextModel:
    text = seeded_text_model(replace(config, **changes), seed=3)
    save_file(hugging_face_tensors(text), path)
    return text


def test_a_kept_text_encoder_gives_its_rows_and_is_not_trained(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.safetensors", TEXT)
    world = UNetWorld()
    world.keep_text(tmp_path / "text.safetensors")
    tokens = [49406, *(token.id for token in default_tokenizer()(CAPTION))]
    ids = torch.tensor([tokens + [49407] * (77 - len(tokens))])
    expected = text(ids).hidden
    torch.testing.assert_close(world.eval().read([CAPTION]).rows, expected)
    torch.testing.assert_close(world.whole_text()(ids).hidden, expected)
    assert not any(parameter.requires_grad for parameter in world.text.parameters())
    assert all(parameter.requires_grad for parameter in world.network.parameters())


@pytest.mark.parametrize("changes", [{"num_layers": 3}, {"hidden_dim": 64}, {"mlp_dim": 256}, {"context_length": 64}])
def test_a_text_encoder_of_other_sizes_is_refused(tmp_path: Path, changes: dict[str, int]) -> None:
    write_text(tmp_path / "text.safetensors", TEXT, **changes)
    with pytest.raises(WorldError, match="no text encoder for a small world, which has 2 layers of width 128"):
        UNetWorld().keep_text(tmp_path / "text.safetensors")


# ---- commands


def test_a_world_trained_on_a_kept_text_encoder_still_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library("accelerate")
    monkeypatch.setattr("weighted_clip.studio.training.objectives.small_world.NUM_MEASURED", 2)
    text = write_text(tmp_path / "text.safetensors", TEXT)
    given = ["--text", str(tmp_path / "text.safetensors"), "--steps", "2", "--batch", "2", "--device", "cpu"]
    assert main(["world", "train", str(tmp_path / "out"), *given]) == 0
    world, recipe = load_world(tmp_path / "out" / "world.safetensors")
    assert recipe["text"] == "text.safetensors"
    found = world.whole_text().get_parameter("final_layer_norm.weight")
    assert torch.equal(found, text.final_layer_norm.weight.half().float())


@pytest.mark.parametrize("more", [["--kind", "joint"], ["--lora", "4"]])
def test_a_text_encoder_is_kept_for_a_whole_u_net_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    assert main(["world", "train", str(tmp_path / "out"), "--text", "text.safetensors", *more]) == 1
    assert "--text is for a U-Net" in capsys.readouterr().err


def test_pictures_of_training_are_written_with_their_captions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from PIL import Image

    assert main(["world", "scenes", str(tmp_path / "scenes"), "--count", "3", "--seed", "5"]) == 0
    rng = random.Random(5)
    for number in range(3):
        shown, [caption] = training_example(rng, 1)
        place = tmp_path / "scenes" / f"{number:05}"
        assert place.with_suffix(".txt").read_text(encoding="utf-8") == caption
        with Image.open(place.with_suffix(".png")) as picture:
            torch.testing.assert_close(torch.tensor(np.array(picture)).permute(2, 0, 1)[None] / 255, shown)
    assert main(["world", "scenes", str(tmp_path / "scenes")]) == 1
    assert "is no empty folder" in capsys.readouterr().err
    assert main(["world", "scenes", str(tmp_path / "other"), "--count", "100001"]) == 1
    assert "--count must be from 1 to 100,000, got 100001" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_unknown_words_are_named_with_the_known_ones(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, options = (
        ["world", "sample", str(file)],
        ["--steps", "1", "--count", "1", "--out", str(tmp_path / "out.png")],
    )
    assert main([*command, "A red CIRCLE, and a (blue:0.5) square", *options]) == 0
    capsys.readouterr()
    assert main([*command, "a small octahedron, 2 red circles, a (small:1.5) square!", *options]) == 1
    told = capsys.readouterr().err
    assert "does not know 'small', 'octahedron', '2', 'circles', '!'; it knows a, and, red" in told


def test_a_weight_is_read_as_the_rest_of_the_pack_reads_it(file: Path, tmp_path: Path) -> None:
    def drawn(text: str, *more: str) -> bytes:
        out = tmp_path / "out.png"
        assert main(["world", "sample", str(file), text, "--steps", "1", "--count", "1", "--out", str(out), *more]) == 0
        return out.read_bytes()

    plain = drawn(CAPTION)
    weighted = CAPTION.replace("red", "(red:0.5)")
    assert drawn(weighted) != plain
    assert drawn(weighted, "--scheme", "unweighted") == plain
    remove = ("--scheme", "masked_blend", "--mask-method", "remove")
    assert drawn("a red circle (and a blue square:0)", *remove) == drawn("a red circle")


def test_a_word_below_0_is_taken_away_where_it_is_read(file: Path, tmp_path: Path) -> None:
    from PIL import Image

    text, out = "a red circle and (a blue square:-1)", tmp_path / "out.png"
    given = [str(file), text, "--scheme", "negpip", "--steps", "3", "--count", "1", "--out", str(out)]
    assert main(["world", "sample", *given]) == 0
    world, _ = load_world(file)
    encoders = Encoders.of_models({"clip_l": world.whole_text()})
    rows = Text(encoders("a red circle and a blue square").hidden)
    signs = torch.tensor([[1.0] * 5 + [-1.0] * 3 + [1.0] * 69])  # after the start token and four words
    *_, latents = sampled(world.network, noise_of([0]), rows._replace(factor=signs), Text(encoders("").hidden), 3, 3.0)
    with Image.open(out) as picture:
        found = torch.tensor(np.array(picture)[::4, ::4]) / 255  # enlarged
    torch.testing.assert_close(found.permute(2, 0, 1)[None], to_pictures(latents), rtol=0, atol=0.5 / 255 + 1e-5)


def test_a_caption_is_drawn_into_a_file(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    given = [str(file), CAPTION, "--steps", "2", "--count", "9", "--out", str(tmp_path / "out.png")]
    assert main(["world", "sample", *given]) == 0
    assert "9 pictures" in capsys.readouterr().out
    with Image.open(tmp_path / "out.png") as picture:
        assert picture.size == (8 * 4 * SIDE, 2 * 4 * SIDE)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--count", "0"], "--count must be from 1 to 4,096, got 0"),
        (["--steps", "1001"], "--steps must be from 1 to 1,000, got 1001"),
        (["--guidance", "nan"], "--guidance must be a number, got nan"),
        (["--out", "out.jpg"], "ends in .png"),
    ],
)
def test_bad_values_are_refused_in_words(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    given = ["world", "sample", str(file), CAPTION, "--out", str(tmp_path / "out.png"), *more]
    assert main(given) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize("kind", ["unet", "joint"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    library("accelerate")
    monkeypatch.setattr("weighted_clip.studio.training.objectives.small_world.NUM_MEASURED", 2)
    from ..training.objectives import stopping_after

    given = ["world", "train", "--kind", kind, "--steps", "4", "--batch", "4", "--device", "cpu"]
    assert main([*given, str(tmp_path / "whole")]) == 0
    with stopping_after(2):
        assert main([*given, str(tmp_path / "stopped")]) == 130
    checkpoint = tmp_path / "stopped/checkpoint.pt"
    state = torch.load(checkpoint, weights_only=True)
    assert state["about"].pop("processes") == 1
    torch.save({**state, "about": {**state["about"], "processes": 2}}, checkpoint)
    assert main([*given, str(tmp_path / "stopped"), "--resume"]) == 1
    assert "processes (2 then, 1 now)" in capsys.readouterr().err
    torch.save(state, checkpoint)  # as before it was noted
    assert main([*given, str(tmp_path / "stopped"), "--resume"]) == 0
    one, other = (load_file(tmp_path / name / "world.safetensors") for name in ("whole", "stopped"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    world, recipe = load_world(tmp_path / "whole" / "world.safetensors")
    assert (recipe["kind"], recipe["steps"], recipe["pictures"]) == (kind, 4, 16)
    if kind == "unet":
        found = rightness(world, held_out_scenes(2))
        assert len(found.colors) == len(found.kinds) == 4
    with safe_open(tmp_path / "whole" / "world.safetensors", "pt") as opened:
        assert json.loads(opened.metadata()["recipe"])["seed"] == 0
        assert opened.metadata()["format"] == FORMAT


def test_the_folder_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "world.safetensors").write_bytes(b"other")
    assert main(["world", "train", str(tmp_path / "out"), "--steps", "1"]) == 1
    assert "there is a run in it" in capsys.readouterr().err
    assert (tmp_path / "out" / "world.safetensors").read_bytes() == b"other"


def test_without_a_file_the_packs_own_is_drawn_with(tmp_path: Path) -> None:
    def drawn(*given: str) -> bytes:
        out = tmp_path / "out.png"
        assert main(["world", "sample", *given, CAPTION, "--count", "1", "--steps", "2", "--out", str(out)]) == 0
        return out.read_bytes()

    assert drawn() == drawn(str(TRAINED))


@pytest.mark.parametrize(("given", "expected"), [(None, 1), ("2", 2)])
def test_so_small_a_world_takes_one_thread_unless_told_otherwise(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, expected: int
) -> None:
    seen: list[int] = []

    def recording(*words: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        return sampled(*words, **options)

    monkeypatch.setattr("weighted_clip.studio.world.model.sampled", recording)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    else:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        out = tmp_path / "x.png"
        assert main(["world", "sample", str(file), CAPTION, "--count", "1", "--steps", "1", "--out", str(out)]) == 0
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == [expected]


def test_a_short_run_is_measured_at_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library("accelerate")
    monkeypatch.setattr("weighted_clip.studio.training.objectives.small_world.NUM_MEASURED", 2)
    assert main(["world", "train", str(tmp_path / "out"), "--steps", "5", "--batch", "2", "--device", "cpu"]) == 0
    entries = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "colors" in entry] == [0, 5]
