"""Phrases placed by the WebUI's script, on a stand-in for Forge's U-Net; Forge's own is in tests/hosts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.hosts.comfy.attention.fields import Field, Step, Where, acting
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.generation import PROBLEMS, arm, begin_pass, report
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.weighting.placing.field_bias import FieldBias
from weighted_clip.weighting.placing.places import read_place
from weighted_clip.weighting.placing.queries import Queries

from . import fake_webui as fake
from .test_axes import cells, plot  # noqa: F401  # a fixture

TEXT = "a red cat and a blue dog"
LEVELS = [8.0, 4.0, 2.0, 1.0, 0.0]
"""Noise levels of the steps, and the one after the last."""
CELLS = (5, 6)
"""Height and width of the latent."""


def attention_basic(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None) -> Tensor:
    assert heads == 1
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return torch.softmax(logits if mask is None else logits + mask[:, 0], dim=-1) @ v


attention_function: Callable[..., Tensor] = attention_basic


class CrossAttention(nn.Module):
    """As Forge has it, with one head."""

    heads = 1

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_q = nn.Linear(4, 16, bias=False)
        self.to_k, self.to_v = (nn.Linear(width, size, bias=False) for size in (16, 4))

    def forward(self, x: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        return attention_function(self.to_q(x), self.to_k(context), self.to_v(context), self.heads, mask)


class Layer(nn.Module):
    """A layer with a block of a single attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transformer_blocks = nn.ModuleList([nn.ModuleDict({"attn2": CrossAttention(width)})])

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        [block] = self.transformer_blocks
        read = block["attn2"](x.flatten(2).transpose(1, 2), context=context)
        return x + read.transpose(1, 2).view_as(x)


class UNet(nn.Module):
    """A layer at the size of the latent, and one at half of it, rounded up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.fine, self.coarse = Layer(width), Layer(width)

    def forward(self, x: Tensor, *, context: Tensor, transformer_options: dict[str, Any]) -> Tensor:
        del transformer_options
        x = self.fine(x, context)
        return self.coarse(nn.functional.avg_pool2d(x, 2, ceil_mode=True), context)


def rows_in(conditioning: Any) -> Tensor:
    """Rows of a conditioning, which SDXL has beside others: ``[texts, rows, dim]``."""
    return conditioning["crossattn"] if isinstance(conditioning, dict) else conditioning


class Sampler:
    """The host's sampler, as far as ours looks at it."""

    def get_sigmas(self, p: Any, steps: int) -> Tensor:
        del p, steps
        return torch.tensor(LEVELS)

    def callback_state(self, d: dict[str, Any]) -> None:
        """Told after the first call of the U-Net in a step."""


class Generation(fake.Generation):
    """A generation that is sampled as Forge does it, prompts and negative prompts in a call."""

    width, height, steps = 8 * CELLS[1], 8 * CELLS[0], 4
    all_prompts: Sequence[str] = ()
    cells = CELLS
    changed: Callable[[Tensor], Tensor] = staticmethod(lambda rows: rows)
    options: dict[str, Any] = {}  # noqa: RUF012
    fails_at: float | None = None
    paste_to: Any = None
    overlay_images: Any = None

    def sample(self, noise: Tensor, only: int | None = None) -> Tensor:
        del only
        state = sys.modules["modules.shared"].__dict__["state"]
        self.sampler = Sampler()
        begin_pass(self, torch.zeros(len(self.c), 4, *self.cells))  # pyright: ignore[reportArgumentType]
        levels = self.sampler.get_sigmas(self, self.steps).tolist()
        state.sampling_steps = len(levels) - 1
        results: list[Tensor] = []
        callback = self.sampler.callback_state
        for step, level in enumerate(levels[:-1]):
            if level == self.fails_at:
                raise RuntimeError("out of memory")
            conds = torch.stack([texts[min(step // 2, len(texts) - 1)] for texts in map(rows_in, self.c)])
            context = torch.cat([self.changed(conds), rows_in(self.uc[0]).expand_as(conds)])
            options = {
                **{"cond_or_uncond": [0, 1], "sigmas": torch.full((len(conds),), level)},
                **self.options,
            }
            x = noise.expand(len(context), -1, -1, -1)
            results.append(self.sd_model.unet(x, context=context, transformer_options=options))
            callback({"i": step})
        return torch.stack(results)


class TwoPasses(Generation):
    """With hires. fix, whose first pass is of a smaller latent."""

    is_hr_pass = False

    def sample(self, noise: Tensor, only: int | None = None) -> Tensor:
        self.cells = (3, 3)
        super().sample(noise[..., :3, :3], only)
        self.cells, self.is_hr_pass = CELLS, True
        return super().sample(noise, only)


@pytest.fixture
def model(forge: fake.ForgeModel, monkeypatch: pytest.MonkeyPatch) -> Any:
    return with_unet(forge, fake.WIDTH, monkeypatch)


def with_unet(found: Any, width: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model with a U-Net."""
    found.unet = UNet(width).eval()
    predictor = SimpleNamespace(percent_to_sigma=lambda part: 9e9 if part <= 0 else 10 * (1 - part))
    owner = SimpleNamespace(diffusion_model=found.unet, predictor=predictor)
    found.forge_objects = SimpleNamespace(unet=SimpleNamespace(model=owner))
    state = SimpleNamespace(interrupted=False, skipped=False, sampling_steps=0)
    monkeypatch.setitem(sys.modules["modules.shared"].__dict__, "state", state)
    monkeypatch.setattr(sys.modules["modules"], "shared", sys.modules["modules.shared"], raising=False)
    return found


def noise() -> Tensor:
    return torch.randn(1, 4, *CELLS, generator=torch.Generator().manual_seed(2))


def sampled(model: Any, *lines: str, prompts: Sequence[str] = (TEXT,), **changes: Any) -> Any:
    """A generation with what was sampled, ``[steps, batch, ...]``."""
    p: Any = Generation(model)
    vars(p).update({name: changes.pop(name) for name in list(changes) if hasattr(Generation, name)})
    arm(p, list({**vars(Settings()), "enabled": True, "places": "\n".join(lines), **changes}.values()))
    with torch.no_grad():
        p.setup_conds(*prompts, negative=prompts[0])
        p.samples = p.sample(noise())
    return p


def hooks_on(model: Any) -> int:
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.unet.modules())


def written_out(p: Any, picture: int, step: int, *fields: tuple[tuple[int, ...], Tensor]) -> Tensor:
    """Result of the U-Net for a picture, by loops; fields are rows and their weights at the latent's places."""
    return readings(p, picture, step, *fields)[1]


def readings(
    p: Any, picture: int, step: int, *fields: tuple[tuple[int, ...], Tensor], pair: int = 1
) -> tuple[list[Tensor], Tensor]:
    """Shares of the keys at each place of each layer, ``[places, keys]`` in float64, and the U-Net's result."""
    found: list[Tensor] = []
    x, texts = noise(), rows_in(p.c[picture])
    context = texts[min(step // 2, len(texts) - 1)].double()
    for layer, side in ((p.sd_model.unet.fine, 1), (p.sd_model.unet.coarse, 2)):
        if side == 2:
            x = nn.functional.avg_pool2d(x, 2, ceil_mode=True)
        own = layer.transformer_blocks[0]["attn2"].double()
        q, k, v = own.to_q(x.double()[0].flatten(1).T), own.to_k(context[::pair]), own.to_v(context[pair - 1 :: pair])
        layer.float()
        shares = torch.exp(q @ k.T / 4)
        for rows, weights in fields:
            for place in range(len(q)):
                top, left = (side * one for one in divmod(place, x.shape[-1]))
                shares[place, list(rows)] *= weights[top : top + side, left : left + side].double().mean()
        found.append((shares / shares.sum(1, keepdim=True)).detach())
        x = x + (found[-1] @ v).T.view_as(x).float()
    return found, x[0].detach()


def mask(rows: range, columns: range) -> Tensor:
    found = torch.zeros(CELLS)
    found[rows.start : rows.stop, columns.start : columns.stop] = 1.0
    return found


LEFT = mask(range(5), range(3))
"""The left half; its border is within cells of the coarse layer."""


def test_a_phrase_is_read_in_its_area_and_the_negative_prompt_everywhere(model: Any) -> None:
    p, plain = sampled(model, "red cat: left half"), sampled(model)
    top = mask(range(2), range(6))
    top[2] = 0.5
    for step in range(4):
        expected = written_out(p, 0, step, ((2, 3), LEFT))
        torch.testing.assert_close(p.samples[step, 0], expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(p.samples[step, 1], plain.samples[step, 1], atol=1e-6, rtol=1e-6)
        assert (p.samples[step, 0] - plain.samples[step, 0]).abs().max() > 1e-3
    both = sampled(model, "red cat: left half, outside 0.5", "Blue dog: top, inside 2, outside 0.1", "cat: right")
    fields = (((2, 3), LEFT * 0.5 + 0.5), ((6, 7), top * 1.9 + 0.1), ((3,), 1 - LEFT))
    torch.testing.assert_close(both.samples[0, 0], written_out(both, 0, 0, *fields), atol=1e-5, rtol=1e-5)


def test_the_bias_is_that_of_comfyuis_node(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor | None] = []

    def attention_basic(q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None) -> Tensor:
        seen.append(mask)
        return theirs(q, k, v, heads, mask)

    theirs = attention_function
    monkeypatch.setattr(sys.modules[__name__], "attention_function", attention_basic)
    lines = {"left half ~0.3, outside 0.2": (2, 3), "0 1, 0.3 1, inside 2, outside 0.1": (3,), "inside 1.7": (7,)}
    texts = dict(zip(("red cat", "cat", "dog"), lines, strict=True))
    sampled(model, *(f"{phrase}: {line}" for phrase, line in texts.items()))
    places = [read_place(f"a: {line}") for line in lines]
    fields = [
        Field(rows, place.inside, place.outside, Where("", place.area), "")
        for rows, place in zip(lines.values(), places, strict=True)
    ]
    host_model = SimpleNamespace(latent_format=None, model_sampling=model.forge_objects.unet.model.predictor)
    step = Step(host_model, torch.zeros(1, 4, *CELLS), torch.tensor(LEVELS[0]), LEVELS, {})
    found = acting(fields, 77, step)
    fields_of_node = FieldBias(found.weights, found.rows[None], found.unplaced_bias)
    for mask, grid in zip(seen[:2], (CELLS, (3, 3)), strict=True):
        [bias] = fields_of_node.biases(Queries(grid))
        assert mask is not None
        assert mask.shape == (2, 1, math.prod(grid), 77)
        torch.testing.assert_close(mask[0, 0], bias + found.bias, atol=1e-6, rtol=1e-6)


def test_with_only_masked_an_area_is_one_of_the_whole_picture(model: Any) -> None:
    """The latent is the right three quarters of a picture of 64 pixels, and the lower half, at another scale."""
    whole = SimpleNamespace(width=64, height=80)
    p = sampled(model, "red cat: left half", paste_to=(16, 40, 48, 40), overlay_images=[whole])
    expected = written_out(p, 0, 0, ((2, 3), mask(range(5), range(2))))
    torch.testing.assert_close(p.samples[0, 0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("time", "steps"),
    [
        ("0-1", range(4)),
        ("1-3 steps", range(1, 3)),
        ("0-99 steps", range(4)),
        ("0-0.6", range(1)),  # at 0.6 the level is 4
        ("0.6-1", range(1, 4)),
        ("0.2-0.8", range(2)),  # levels 8 to above 2
    ],
)
def test_times_include_their_start_and_not_their_end(model: Any, time: str, steps: range) -> None:
    p, plain = sampled(model, f"red cat: left, {time}"), sampled(model)
    is_changed = [not torch.equal(*pair) for pair in zip(p.samples[:, 0], plain.samples[:, 0], strict=True)]
    assert [step for step, one in enumerate(is_changed) if one] == list(steps)
    assert f"Weighted CLIP: “red cat: left, {time}” acted in {len(steps)} of 4 steps." in p.comments


def test_in_hires_fix_an_area_is_one_of_the_larger_latent(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "Generation", TwoPasses)
    p = sampled(model, "red cat: left half")
    for step in range(4):
        expected = written_out(p, 0, step, ((2, 3), LEFT))
        torch.testing.assert_close(p.samples[step, 0], expected, atol=1e-5, rtol=1e-5)
    line = "“red cat: left half” acted in 4 of 4 steps and in 4 of 4 steps of hires. fix."
    assert f"Weighted CLIP: {line}" in p.comments


def test_a_time_without_steps_is_a_warning(model: Any) -> None:
    for time in ("0.95-1", "7-9 steps"):
        p, plain = sampled(model, f"red cat: left, {time}"), sampled(model)
        assert torch.equal(p.samples, plain.samples)
        processed = SimpleNamespace(extra_generation_params={})
        report(p, processed)
        [line] = processed.extra_generation_params[PROBLEMS]
        assert line == f"Warning: “red cat: left, {time}” acted in 0 of 4 steps: no step is in its time."


def test_each_text_of_a_batch_has_its_own_rows(model: Any) -> None:
    texts = (TEXT, "a blue dog=>a red cat")
    p = sampled(model, "red cat: left half", "blue dog: right", prompts=texts)
    cat, dog = ((2, 3), LEFT), ((2, 3), 1 - LEFT)
    for step, picture, fields in ((0, 0, (cat, ((6, 7), 1 - LEFT))), (0, 1, (dog,)), (3, 1, (cat,))):
        expected = written_out(p, picture, step, *fields)
        torch.testing.assert_close(p.samples[step, picture], expected, atol=1e-5, rtol=1e-5)
    assert "Weighted CLIP: “red cat: left half” is in 2 of 3 texts and acted in 4 of 4 steps." in p.comments


def test_without_places_or_with_neutral_ones_nothing_is_changed(model: Any) -> None:
    plain, alone = sampled(model), Generation(model)
    arm(alone, [False])
    with torch.no_grad():
        alone.setup_conds(TEXT, negative=TEXT)
        stock = alone.sample(noise())
    assert torch.equal(plain.samples, stock)
    p = sampled(model, "red cat: left, outside 1", "", "dog: 0-0.5")
    assert torch.equal(p.samples, stock)
    assert sum("its weight is 1 everywhere" in line for line in p.comments) == 2


def test_nothing_is_left_after_an_error_or_an_interrupt(model: Any) -> None:
    plain = sampled(model)
    p: Any = Generation(model)
    arm(p, list({**vars(Settings()), "enabled": True, "places": "red cat: left, 0-3 steps"}.values()))
    p.setup_conds(TEXT)
    for fails_at in (8.0, 2.0):
        p.fails_at = fails_at
        with pytest.raises(RuntimeError), torch.no_grad():
            p.sample(noise())
        assert hooks_on(model) == 0
        assert vars(p.sampler) == {}
    arm(p, [False])
    assert not [name for name in vars(p) if name.startswith("weighted_clip") or name == "sample"]
    assert torch.equal(sampled(model).samples, plain.samples)
    assert hooks_on(model) == 0


def test_both_text_encoders_of_sdxl_have_a_phrase_in_the_same_rows(
    forge_xl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    p = sampled(with_unet(forge_xl, 2 * fake.WIDTH, monkeypatch), "red cat: left half")
    torch.testing.assert_close(p.samples[0, 0], written_out(p, 0, 0, ((2, 3), LEFT)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("lines", "changes", "words"),
    [
        (["red cat: upstairs"], {}, "“red cat: upstairs”: The area “upstairs” is not understood"),
        (["red cat: left", "a bird: left"], {}, "“a bird: left”: “a bird” is in none of the prompts"),
        (["red cat: left"] * 101, {}, "101 lines, and at most 100"),
        (["red cat: 0 99, 0 1"], {}, "“red cat: 0 99, 0 1”: .* reaches to pixel 99, but the picture is 48 wide"),
        (["red cat: left"], {"changed": lambda rows: rows * 1.01}, "has changed the rows of the prompt"),
        (["red cat: left"], {"options": {"patches_replace": {"attn2": {1: 1}}}}, "IP-Adapter"),
        (["red cat: left"], {"cells": (9, 9)}, "cuts the picture into parts"),
        (["red cat: left"], {"refiner_checkpoint": "other"}, "one checkpoint in a generation"),
        (["red: left"], {"scheme": "negpip", "prompts": ["a (red:-1) cat"]}, "“red” has a weight below 0"),
    ],
)
def test_what_cannot_be_placed_is_refused_in_words(
    model: Any, monkeypatch: pytest.MonkeyPatch, lines: list[str], changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr(Generation, "refiner_checkpoint", None, raising=False)
    with pytest.raises(WebUIError, match=words):
        sampled(model, *lines, **changes)
    assert hooks_on(model) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"places": "red cat: left"}, "Places works in Forge"),
        ({"word_maps": True}, r"Word maps works in Forge .*: switch Word maps off"),
    ],
)
def test_where_it_does_not_work_it_is_refused_and_all_else_works(
    model: Any, a1111: Any, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    a1111.model = model.forge_objects.unet.model
    with pytest.raises(WebUIError, match=words):
        fake.armed(a1111, **changes).setup_conds(TEXT)
    fake.armed(a1111).setup_conds(TEXT)

    def attention_xformers(*given: Any) -> Tensor:
        return attention_basic(*given)

    monkeypatch.setattr(sys.modules[__name__], "attention_function", attention_xformers)
    with pytest.raises(WebUIError, match="attention_xformers"):
        sampled(model, **changes)
    sampled(model)


def test_a_phrase_of_another_prompt_of_the_generation_is_no_error(model: Any) -> None:
    p = sampled(model, "red cat: left", "bird: top", all_prompts=(TEXT, "a (bird:1.2) in a tree"))
    assert "Weighted CLIP: “bird: top” is in none of the texts of these images." in p.comments


def test_the_axis_replaces_the_lines_of_its_phrase(plot: Any, model: Any) -> None:  # noqa: F811
    box = "red cat: left half\nblue dog: right half"
    values = ["Red cat: top", "red cat: left half, 0-0.6", "off"]
    expected = [box.replace("red cat: left half\n", "") + f"\n{values[0]}"] * 2 + [""]
    expected[1] = expected[1].replace(values[0], values[1])
    for cell, lines in zip(cells(plot, Generation(model), "Places", values), expected, strict=True):
        arm(cell, list({**vars(Settings()), "enabled": True, "places": box}.values()))
        assert cell.extra_generation_params.get("Weighted CLIP places", "") == lines
    for wrong, words in ((["red cat"], "no colon"), ([], "write a line")):
        with pytest.raises(WebUIError, match=words):
            cells(plot, Generation(model), "Places", wrong)
