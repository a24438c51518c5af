"""NegPip in the WebUI: rows in pairs, what a small cross attention makes of them, and what is left of it: nothing."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.webui.attention.pairs import reading_pairs
from weighted_clip.hosts.webui.conditioning import Stack
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.generation import arm
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt

from . import fake_webui as fake
from .test_webui import expected, native

PROMPT, NEGATIVE = "a (red:1.4) cat, (oil painting:-1.3)", "(blurry:-0.5), ugly"


class CrossAttention(nn.Module):
    """As both hosts have it, with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(fake.WIDTH, 16, bias=False) for _ in range(3))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return attended(self.to_q(x), self.to_k(context), self.to_v(context))


class UNet(nn.Module):
    """One block, whose self attention nothing may happen to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.block = nn.ModuleDict({"attn1": CrossAttention(), "attn2": CrossAttention()})

    def forward(self, x: Tensor, context: Tensor, control: Any = None) -> Tensor:
        return self.block["attn2"](x, context) + self.block["attn1"](x, x)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.softmax(query @ key.transpose(-1, -2) / math.sqrt(16), dim=-1) @ value


def written_out(unet: UNet, x: Tensor, rows: Tensor, signs: Tensor) -> Tensor:
    """Expected result if the values of rows are multiplied by signs."""
    cross, own = unet.block["attn2"], unet.block["attn1"]
    return attended(cross.to_q(x), cross.to_k(rows), cross.to_v(rows) * signs[:, None]) + own(x, x)


@pytest.fixture(params=["forge", "a1111"])
def model(request: pytest.FixtureRequest) -> Any:
    """A model of each host with a U-Net."""
    found = request.getfixturevalue(request.param)
    found.unet = UNet()
    owner = SimpleNamespace(diffusion_model=found.unet)
    if request.param == "forge":
        found.forge_objects = SimpleNamespace(unet=SimpleNamespace(model=owner))
    else:
        found.model = owner
    return found


def noise() -> Tensor:
    return torch.randn(2, 5, fake.WIDTH, generator=torch.Generator().manual_seed(2))


def hooks_on(model: Any) -> int:
    return sum(len(module._forward_pre_hooks) for module in model.unet.modules())


@pytest.mark.parametrize(
    ("scheme", "texts"),
    [
        ("negpip", [("comfy", PROMPT, {5, 6}, ()), ("comfy", NEGATIVE, {1}, ())]),
        (
            "negpip_apart",
            [
                ("a1111", "a (red:1.4) cat, ", set(), ("(oil painting:1.3)", 2)),
                ("a1111", ", ugly", set(), ("(blurry:0.5)", 1)),
            ],
        ),
    ],
)
@torch.no_grad()
def test_words_below_zero_are_taken_away_in_the_cross_attention(
    model: Any, tmp_path: Path, scheme: str, texts: list[tuple[str, str, set[int], Any]]
) -> None:
    p, encoder = fake.armed(model, scheme=scheme), native(tmp_path)
    p.setup_conds(PROMPT, negative=NEGATIVE)
    rows_of = {}
    for index, (base, text, words, term) in enumerate(texts):
        rows = expected(encoder, text.replace(":-", ":"), scheme=base)
        signs = [-1.0 if row in words else 1.0 for row in range(77)]
        if term:
            rows = torch.cat([rows, expected(encoder, term[0])[:, 1 : term[1] + 2]], dim=1)
            signs += [-1.0] * (term[1] + 1)
        rows_of[index] = rows, torch.tensor(signs)
    for index, (rows, signs) in rows_of.items():
        x = noise()[index : index + 1]
        drawn = p.sample(x, only=index)
        alone = written_out(model.unet, x, rows, signs)
        torch.testing.assert_close(drawn, alone, atol=2e-5, rtol=0)
        assert (written_out(model.unet, x, rows, torch.ones(len(signs))) - alone).abs().max() > 1e-3
    assert hooks_on(model) == 0


def test_beside_a_controlnet_it_is_refused_and_nothing_is_left(model: Any) -> None:
    with pytest.raises(WebUIError, match="ControlNet"), reading_pairs(model):
        model.unet(noise(), context=torch.zeros(2, 154, fake.WIDTH), control={"input": []})
    with pytest.raises(WebUIError, match="did not act"), reading_pairs(model):
        pass
    assert hooks_on(model) == 0


@pytest.mark.parametrize("pressed", ["interrupted", "skipped"])
def test_an_interrupt_before_the_first_step_ends_as_the_hosts_own(
    model: Any, monkeypatch: pytest.MonkeyPatch, pressed: str
) -> None:
    """The host's sampler then returns what it began with, without a call of the U-Net."""
    state = SimpleNamespace(interrupted=False, skipped=False)
    monkeypatch.setattr(sys.modules["modules.shared"], "state", state, raising=False)
    monkeypatch.setattr(fake.Generation, "sample", lambda self, noise: noise)
    p = fake.armed(model, scheme="negpip")
    p.setup_conds(PROMPT)
    with pytest.raises(WebUIError, match="did not act"):
        p.sample(noise())
    setattr(state, pressed, True)
    assert torch.equal(p.sample(noise()), noise())
    assert hooks_on(model) == 0


def test_an_unknown_unet_is_refused(forge: fake.ForgeModel) -> None:
    p = fake.armed(forge, scheme="negpip")
    p.setup_conds(PROMPT)
    with pytest.raises(WebUIError, match="U-Net of this model"):
        p.sample(noise())


def test_what_was_armed_is_taken_back(model: Any) -> None:
    p = fake.armed(model, scheme="negpip")
    arm(p, [False])
    assert "sample" not in vars(p)
    theirs = p.sample = lambda *_, **__: "theirs"
    arm(p, [True, "negpip"])
    assert p.sample is not theirs
    arm(p, [False])
    assert p.sample is theirs
    with torch.no_grad():
        other = fake.armed(model, scheme="comfy")
        other.setup_conds("a cat")
        rows = torch.cat([other.c[0], other.uc[0]])
        assert rows.shape[1] == 77
        assert torch.equal(other.sample(noise()), model.unet(noise(), rows))


def test_another_checkpoint_in_the_middle_is_refused(model: Any) -> None:
    for changed in ({"enable_hr": True, "hr_checkpoint_name": "other.ckpt"}, {"refiner_checkpoint": "other.ckpt"}):
        p = fake.armed(model, scheme="negpip")
        vars(p).update(changed)
        with pytest.raises(WebUIError, match=r"other\.ckpt"):
            p.setup_conds(PROMPT)
    p = fake.armed(model, scheme="negpip")
    vars(p).update(enable_hr=False, hr_checkpoint_name="other.ckpt", refiner_checkpoint="None")
    p.setup_conds(PROMPT)


@pytest.mark.parametrize(
    "prompts", [("a (cat:-1)", "a (big cat:-1)"), ("a (cat:-1)=>a cat",)], ids=["batch", "editing"]
)
def test_terms_of_different_numbers_of_rows_are_refused(model: Any, prompts: tuple[str, ...]) -> None:
    with pytest.raises(WebUIError, match=r"78 rows|79 rows|77 rows"):
        fake.armed(model, scheme="negpip_apart").setup_conds(*prompts)
    assert fake.armed(model, scheme="negpip").setup_conds(*prompts)[0].shape[1] == 154
    alike = fake.armed(model, scheme="negpip_apart").setup_conds("a (cat:-1)", "a (dog:-2)=>(bird:-1)")
    assert [cond.shape[1] for cond in alike] == [158, 158]


def test_appended_rows_are_not_forgotten_when_another_text_has_as_many_by_itself() -> None:
    options = EncodeOptions(syntax="a1111", scheme="negpip_apart")
    texts = ("a " + "(cat:-1) " * 37 + "(red cat:-1)", "word " * 80, "a cat")  # 77 rows and 77 appended; 154; 77
    appended, long, short = (read_prompt(text, options, default_tokenizer()) for text in texts)
    stack = Stack("negpip_apart")
    stack.add([appended])
    stack.add([long])
    with pytest.raises(WebUIError, match="one text has 77 rows and another 154"):
        stack.add([short])
    plain = Stack("negpip_apart")
    for prompt in (long, short):
        plain.add([prompt])


class TheirScript:
    """sd-webui-negpip's, as its ``process_batch`` leaves it."""

    active = True

    def title(self) -> str:
        return "NegPiP"


def test_where_their_extension_acts_ours_does_not_and_says_so(model: Any) -> None:
    for scheme in ("negpip", "negpip_apart"):
        p = fake.armed(model, scheme=scheme)
        p.scripts = SimpleNamespace(alwayson_scripts=[TheirScript()])
        (cond,) = p.setup_conds("a (red:1.4) cat, ")  # they have cut the term out
        assert cond.shape[1] == 77
        assert [comment for comment in p.comments if "NegPiP is active" in comment]
        with torch.no_grad():
            assert torch.equal(p.sample(noise()), model.unet(noise(), torch.cat([p.c[0], p.uc[0]])))
        with pytest.raises(WebUIError, match="switch one of the two off"):
            p.setup_conds("a cat, ((oil:0.5) painting:-1) (mat:-1)")
    p = fake.armed(model, scheme="repeat")
    p.scripts = SimpleNamespace(alwayson_scripts=[TheirScript()])
    with pytest.raises(WebUIError, match="NegPiP"):
        p.setup_conds("a (cat:2)")
