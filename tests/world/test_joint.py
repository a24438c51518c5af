"""The joint world: its network and text encoder beside others', its judge, its file, its training, its weights."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.commands.training.world_training import world_of
from weighted_clip.studio.world.joint import HEAD_DIM, Joint, JointConfig, Qwen, QwenConfig, SingleBlock
from weighted_clip.studio.world.judge import discs_in
from weighted_clip.studio.world.model import (
    PIECES,
    JointWorld,
    WorldError,
    load_world,
    noise_of,
    pieces_of,
    places_of_pieces,
    save_world,
)
from weighted_clip.studio.world.painter import JointPainter, Painter, painter_of
from weighted_clip.studio.world.questions import JOINT_WAYS, PHRASES, REGIONS, Prompt, Way
from weighted_clip.studio.world.scenes import TEXTURES, Scene, Thing, pictures, random_scene
from weighted_clip.studio.world.unet import Regions, Text
from weighted_clip.studio.world.watched_maps import Selection, mean_maps, watched

from ..libraries import library
from .worlds import random_world, wrong

CAPTION = "a red striped disc and a blue plain disc"
PROMPT = Prompt(Scene((Thing("red", "striped"), Thing("blue", "plain"))), 0)
TEXTURED = tuple(TEXTURES)


@pytest.fixture(scope="module")
def world() -> JointWorld:
    return random_world(JointWorld)


@pytest.fixture(scope="module")
def painter(world: JointWorld) -> Painter:
    return painter_of(world)


@pytest.fixture
def file(world: JointWorld, tmp_path: Path) -> Path:
    save_world(world, tmp_path / "world.safetensors", {"steps": 0})
    return tmp_path / "world.safetensors"


# ---- network and text encoder


@pytest.mark.parametrize("heads", [(1, 1), (4, 2)])
def test_the_text_encoder_is_the_qwen_3_of_transformers(heads: tuple[int, int]) -> None:
    transformers = library("transformers")
    config = QwenConfig(num_attention_heads=heads[0], num_key_value_heads=heads[1])
    torch.manual_seed(0)
    theirs = transformers.Qwen3Model(
        transformers.Qwen3Config(
            vocab_size=30,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=heads[0],
            num_key_value_heads=heads[1],
            head_dim=HEAD_DIM,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
        )
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    ours = Qwen(config, 30)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    ids = torch.randint(30, (2, 23))
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(input_ids=ids).last_hidden_state, rtol=1e-4, atol=1e-4)


def test_a_block_is_attention_beside_an_mlp_written_out() -> None:
    """In float64, a query and a pair of numbers at a time: text rows 0 and 1, and a picture of 2 by 1 places."""
    config = JointConfig(hidden_size=16, num_heads=1, depth=1, context_dim=4, axes_dim=(4, 6, 6), theta=100)
    torch.manual_seed(0)
    net = Joint(config).double().requires_grad_(False)
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    x, rows, time = torch.randn(1, 12, 4, 2).double(), torch.randn(1, 2, 4).double(), torch.tensor([300.0]).double()
    block = net.single_blocks[0]
    assert isinstance(block, SingleBlock)
    patches = [x[0, :, 2 * row : 2 * row + 2].flatten() for row in range(2)]  # channel, row, column
    h = torch.cat([net.txt_in(rows[0]), net.img_in(torch.stack(patches))])
    angles = 300.0 * torch.exp(-math.log(10_000) * torch.arange(128) / 128)
    vector = net.time_in(torch.cat([angles.cos(), angles.sin()]).double())
    shift, scale, gate = block.modulation.lin(F.silu(vector)).chunk(3)

    def normed(one: Tensor) -> Tensor:
        return (one - one.mean(-1, keepdim=True)) / (one.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()

    q, k, v, inner = block.linear1(normed(h) * (1 + scale) + shift).split((16, 16, 16, 64), -1)
    positions = [(0, 0, 0), (1, 0, 0), (0, 0, 0), (0, 1, 0)]

    def turned(one: Tensor, norm: Tensor) -> Tensor:
        one = one / one.square().mean(-1, keepdim=True).sqrt() * norm
        found = one.clone()
        for row, place in enumerate(positions):
            pair = 0
            for position, size in zip(place, (4, 6, 6), strict=True):
                for index in range(size // 2):
                    angle = position / 100 ** (2 * index / size)
                    first, second = float(one[row, 2 * pair]), float(one[row, 2 * pair + 1])
                    found[row, 2 * pair] = first * math.cos(angle) - second * math.sin(angle)
                    found[row, 2 * pair + 1] = first * math.sin(angle) + second * math.cos(angle)
                    pair += 1
        return found

    q, k = turned(q, block.norm.query_norm.scale), turned(k, block.norm.key_norm.scale)
    read = (q @ k.T / 4).softmax(-1) @ v
    h = h + gate * block.linear2(torch.cat([read, F.gelu(inner, approximate="tanh")], -1))
    shift, scale = net.final_layer.adaLN_modulation(vector).chunk(2)
    out = net.final_layer.linear(normed(h[2:]) * (1 + scale) + shift)
    expected = torch.stack([one.view(12, 2, 2) for one in out], 1).flatten(1, 2)[None]
    found = net(x, time, Text(rows))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)  # turns and times are in float32


def test_captions_of_several_lengths_are_read_as_each_alone(world: JointWorld) -> None:
    x, t = noise_of([0, 1]), torch.tensor([500.0, 200.0])
    captions = [CAPTION, "a white disc"]
    together = world.network(x, t, world.read(captions))
    for number, caption in enumerate(captions):
        alone = world.network(x[number : number + 1], t[number : number + 1], world.read([caption]))
        torch.testing.assert_close(together[number : number + 1], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("blends", [False, True])
def test_a_hidden_row_is_read_by_no_query_and_a_factor_turns_its_value(world: JointWorld, blends: bool) -> None:
    x, t, rows = noise_of([0]), torch.tensor([500.0]), world.read([CAPTION]).rows

    def out(given: Tensor, bias: float = 0.0, factor: float = 1.0) -> Tensor:
        biases, factors = torch.zeros(1, rows.shape[1]), torch.ones(1, rows.shape[1])
        biases[0, 5], factors[0, 5] = bias, factor
        text = Text(given, biases, factors)
        return world.network(x, t, Regions((text,), torch.ones(1, 16, 16), blend=True) if blends else text)

    torch.testing.assert_close(out(rows), world.network(x, t, Text(rows)))
    other = rows.clone()
    other[0, 5] += 1
    assert torch.equal(out(other, -math.inf), out(rows, -math.inf))
    assert not torch.allclose(out(rows, -math.inf), out(rows), atol=1e-3)
    assert not torch.allclose(out(rows, factor=-1.0), out(rows), atol=1e-3)


def test_places_that_change_nothing_change_nothing(world: JointWorld, painter: Painter) -> None:
    x, t = noise_of([0]), torch.tensor([500.0])
    plain = painter.text(CAPTION, Way(""))
    expected = world.network(x, t, plain)
    everywhere = plain._replace(fields=((torch.ones(16, 16), torch.ones(1, plain.rows.shape[1])),))
    torch.testing.assert_close(world.network(x, t, everywhere), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(world.network(x, t, Regions((plain,), torch.ones(1, 16, 16))), expected)
    placed = painter.drawable(PROMPT, Way("", places=PHRASES), 4.0, "")
    assert not torch.allclose(world.network(x, t, placed), expected, atol=1e-3)
    apart, blended = (
        world.network(x, t, painter.drawable(PROMPT, Way("", places=REGIONS._replace(blend=blend)), 1.0, ""))
        for blend in (False, True)
    )
    assert not torch.allclose(apart, blended, atol=1e-3)


def test_maps_are_probabilities_written_out(world: JointWorld, painter: Painter) -> None:
    text = painter.text(
        "a (red:0.5) striped disc", Way("", how="bias", maps=Selection("color")), ["a red striped disc"]
    )
    assert isinstance(text, Text) and text.words is not None
    assert text.words[0].argmax(1).tolist() == [3, 4, 5]
    expected: list[Tensor] = []

    def write_out(block: SingleBlock, given: tuple[Tensor, Tensor, Tensor, object, int], _: Tensor) -> None:
        q, k, _, _ = block.states(*given[:3])
        logits = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double()) / q.shape[-1] ** 0.5
        logits[..., 4] += math.log(0.5)
        expected.append(logits.softmax(-1).mean(1)[:, -64:, 4].unflatten(-1, (8, 8)))

    hooks = [block.register_forward_hook(write_out) for block in world.network.single_blocks]
    with watched(world.network) as found:
        world.network(noise_of([1, 2]), torch.tensor([400.0, 900.0]), text.expanded(2))
    for hook in hooks:
        hook.remove()
    assert len(found) == len(expected) == 6
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:, 1].double(), other, rtol=0, atol=1e-6)
    assert mean_maps(found).shape == (2, 3, 16, 16)


# ---- words


def test_pieces_of_captions_are_known_and_cover_them() -> None:
    caption = "a white dotted disc, a green checked disc and a yellow disc, a purple plain disc"
    assert all(piece in PIECES for piece in pieces_of(caption))
    assert "".join(pieces_of(caption)).removeprefix("<|im_start|>user\n").startswith(caption)
    words = [caption[span.start : span.end] for span in places_of_pieces(caption) if span]
    assert words == caption.replace(",", " ,").split()
    assert len(set(PIECES.values())) == len(PIECES)


def test_weights_fall_on_their_rows(painter: Painter) -> None:
    text = painter.text("a red striped disc and (a blue:0.5) plain disc", Way("", how="value"))
    assert text.factor is not None
    assert text.factor[0].tolist() == [1.0] * 8 + [0.5, 0.5] + [1.0] * 7
    assert torch.equal(text.rows, painter.text(CAPTION, Way("")).rows)


def test_rows_as_of_t5_move_from_the_empty_prompts(painter: Painter) -> None:
    assert isinstance(painter, JointPainter)
    plain, empty = painter.text(CAPTION, Way("")).rows[0], painter.empty.rows[0]
    as_of_t5 = next(way for way in JOINT_WAYS if way.name == "rows as of T5")
    found = painter.text("a (red:0.25) striped disc and a blue plain (disc:3)", as_of_t5).rows[0]
    expected = plain.clone()
    expected[4] = 0.25 * plain[4] + 0.75 * empty[4]
    expected[11] = 3 * plain[11] - 2 * empty[7]  # the empty prompt has eight rows
    torch.testing.assert_close(found, expected)
    scaled = painter.text("a (red:0.25) striped disc and a blue plain disc", Way("", {"scheme": "scaled"})).rows[0]
    torch.testing.assert_close(scaled[4], 0.25 * plain[4])
    with pytest.raises(ValueError, match="negpip"):
        painter.text("a (red:0.5) striped disc", Way("", how="negpip"))


# ---- scenes and the judge


def test_the_judge_finds_what_is_drawn_and_finds_it_under_noise() -> None:
    rng = random.Random(0)
    scenes = [random_scene(rng, colors_differ=True, kinds=TEXTURED) for _ in range(200)]
    shown = pictures(scenes)
    assert wrong(scenes, shown, discs_in) == (0, 0, 0)
    noisy = shown + 0.1 * torch.randn(shown.shape, generator=torch.Generator().manual_seed(0))
    assert max(wrong(scenes, noisy, discs_in)) <= 0.01


def test_no_disc_is_found_where_none_is() -> None:
    assert discs_in(torch.full((1, 3, 32, 32), 0.25)) == [[]]
    assert discs_in(torch.zeros(0, 3, 32, 32)) == []
    scattered = torch.full((3, 32, 32), 0.25)
    scattered[:, ::3, ::3] = torch.tensor([220.0, 40, 40])[:, None, None] / 255  # of no texture
    assert discs_in(scattered[None]) == [[]]


# ---- files and commands


def test_weights_of_another_kind_of_world_are_refused(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_world(random_world(), other, {})
    with safe_open(file, "pt") as opened, safe_open(other, "pt") as another:
        about, abouts = dict(opened.metadata()), dict(another.metadata())
    for path, wrong_about in ((file, abouts), (other, about)):
        save_file(load_file(path), path, wrong_about)
        with pytest.raises(WorldError, match="is missing"):
            load_world(path)


def test_unknown_words_and_options_of_clip_are_named(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["world", "sample", str(file)]
    options = ["--steps", "1", "--count", "1", "--out", str(tmp_path / "out.png")]
    assert main([*command, "a red striped disc, a (blue:0.5) plain disc", *options]) == 0
    capsys.readouterr()
    assert main([*command, "a tiny red circle and a (Blue:0.5) disc!", *options]) == 1
    told = capsys.readouterr().err
    assert "does not know 'tiny', 'circle', 'Blue', '!'; it knows a, and, disc, red" in told
    assert main([*command, CAPTION, "--scheme", "compel", *options]) == 1
    assert "--scheme: of CLIP's rows alone" in capsys.readouterr().err


def test_a_folder_of_pictures_is_not_taken_for_the_world_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("joint").mkdir()
    assert world_of(Path("joint"))[1]["kind"] == "joint"
    save_world(random_world(JointWorld), Path("joint", "world.safetensors"), {"kind": "mine"})
    assert world_of(Path("joint"))[1]["kind"] == "mine"
