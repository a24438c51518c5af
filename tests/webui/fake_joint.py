"""A stand-in for Forge's Chroma: an encoder of T5's kind, and a network in which text and picture share an attention.

It keeps to the host's contract (specs of Forge dfdcbab6), not to its code: the text's rows first, one function of a
module of the host for every attention. Forge's own classes are in tests/hosts/forge_joint.py.
"""

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.weighting.syntax import parse
from weighted_clip.weighting.text.prompt import Break

from . import fake_t5
from . import fake_webui as fake

WIDTH, HEADS, CHANNELS = 16, 2, 3
MODULE = "backend.nn.flux"
LEVELS = [1.0, 0.75, 0.5, 0.25, 0.0]
"""Noise levels of the steps, and the one after the last."""


def attention_pytorch(
    q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None, *, skip_reshape: bool = False
) -> Tensor:
    assert skip_reshape and q.shape[1] == heads
    result = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return result.transpose(1, 2).flatten(2)


class T5(nn.Module):
    """T5, whose rows say which token they are of, and which all those are that may be seen if some may not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.randn(len(fake_t5.PIECES), WIDTH, generator=torch.Generator().manual_seed(0))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        rows = self.table[input_ids]
        if attention_mask is None:
            return rows
        seen = attention_mask.reshape(len(rows), -1, rows.shape[1])[:, :1].float()  # [texts, 1, rows]
        return rows + seen @ rows / seen.sum(-1, keepdim=True)


class T5Engine(fake_t5.T5Engine):
    """The host's, with rows multiplied by the weights of their tokens."""

    def __init__(self, min_length: int = 1) -> None:
        super().__init__(min_length)
        self.text_encoder, self.num_rows = T5(), min_length

    def tokenize_line(self, line: str) -> tuple[list[Any], int]:
        chunks = [SimpleNamespace(tokens=[], multipliers=[])]
        for part in parse(line, "a1111").parts:
            if isinstance(part, Break):
                chunks.append(SimpleNamespace(tokens=[], multipliers=[]))
                continue
            (ids,) = self.tokenize([part.text])
            chunks[-1].tokens += ids
            chunks[-1].multipliers += [part.weight] * len(ids)
        for chunk in chunks:
            num_padding = max(0, self.num_rows - len(chunk.tokens) - 1)
            chunk.tokens += [self.id_end, *[self.id_pad] * num_padding]
            chunk.multipliers += [1.0] * (1 + num_padding)
        return chunks, 0

    def encode_with_transformers(self, tokens: Tensor) -> Tensor:
        return self.text_encoder(input_ids=tokens)

    def process_tokens(self, tokens: list[list[int]], multipliers: list[list[float]]) -> Tensor:
        return self.encode_with_transformers(torch.tensor(tokens)) * torch.tensor(multipliers)[..., None]

    def __call__(self, texts: list[str]) -> Tensor:
        chunks = [chunk for text in texts for chunk in self.tokenize_line(text)[0]]
        rows = [self.process_tokens([chunk.tokens], [chunk.multipliers])[0] for chunk in chunks]
        length = max(map(len, rows))
        return torch.stack([nn.functional.pad(one, (0, 0, 0, length - len(one))) for one in rows])


class Network(nn.Module):
    """Two blocks in each of which all rows read all rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.img_in = nn.Linear(4 * CHANNELS, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.requires_grad_(False)

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor, **_: Any) -> Tensor:
        height, width = x.shape[-2:]
        padded = nn.functional.pad(x, (0, width % 2, 0, height % 2), mode="replicate")
        image = self.img_in(nn.functional.pixel_unshuffle(padded, 2).flatten(2).transpose(1, 2))
        rows = torch.cat([context, image], 1)
        for block in self.blocks:
            q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in block(rows).chunk(3, -1))
            rows = rows + sys.modules[MODULE].attention_function(q, k, v, HEADS, skip_reshape=True)
        return rows[:, context.shape[1] :]


Network.__module__, Network.__qualname__ = "backend.nn.chroma", "IntegratedChromaTransformer2DModel"


class FluxNetwork(Network):
    """The same, as Flux's."""


FluxNetwork.__module__, FluxNetwork.__qualname__ = "backend.nn.flux", "IntegratedFluxTransformer2DModel"


def install(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of the host with the function for each attention."""
    module, other = ModuleType(MODULE), ModuleType("backend.attention")
    module.__dict__["attention_function"] = other.__dict__["attention_pytorch"] = attention_pytorch
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    return module


def model(network: nn.Module | None = None) -> Any:
    """A model of the host of the class Chroma."""
    engine = T5Engine()
    predictor = SimpleNamespace(percent_to_sigma=lambda part: 1.0 - part)
    inner = SimpleNamespace(diffusion_model=network or Network(), predictor=predictor)
    objects = SimpleNamespace(unet=SimpleNamespace(model=inner))
    made = fake_t5.model("Chroma", text_processing_engine_t5=engine, forge_objects=objects)
    made.get_learned_conditioning = lambda texts: engine(texts)
    return made


def flux() -> Any:
    """A model of the host of the class Flux; its conditioning is T5's rows alone."""
    made = model(FluxNetwork())
    engine = T5Engine(256)
    found = fake_t5.model("Flux", text_processing_engine_t5=engine, forge_objects=made.forge_objects)

    def get_learned_conditioning(texts: list[str]) -> Tensor:
        found.text_processing_engine_l(texts)
        return engine(texts)

    found.get_learned_conditioning = get_learned_conditioning
    return found


class Denoiser(nn.Module):
    """As ``CFGDenoiser``: it gets all texts, counts its calls, and lets the network read those of the step."""

    step = 0

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = [network]

    def forward(self, x: Tensor, sigma: float, *, cond: Any, uncond: Any) -> Tensor:
        def rows(schedules: Any) -> Tensor:
            found = [next(one for one in own if self.step <= one.end_at_step).cond for own in schedules]
            longest = max(map(len, found))
            return torch.stack([torch.cat([own, own[-1:].expand(longest - len(own), -1)]) for own in found])

        positive, negative = rows([parts[0].schedules for parts in cond.batch]), rows(uncond)
        length = math.lcm(positive.shape[1], negative.shape[1])
        context = torch.cat([one.repeat(1, length // one.shape[1], 1) for one in (positive, negative)])
        options = {"cond_or_uncond": [0, 1], "sigmas": torch.tensor([sigma])}
        result = self.network[0](torch.cat([x, x]), torch.tensor([sigma]), context=context, transformer_options=options)
        self.step += 1
        return result


class Sampler:
    """As the host's: it tells of each step, and of the noise of all."""

    def __init__(self, network: nn.Module) -> None:
        self.model_wrap_cfg = Denoiser(network)

    def get_sigmas(self, p: Any, steps: int) -> Tensor:
        return torch.tensor(LEVELS)

    def callback_state(self, told: dict[str, int]) -> None:
        pass


class Generation(fake.Generation):
    """A generation of four steps, which tells its scripts of its pass."""

    steps, is_hr_pass, height, width = 4, False, 64, 96
    begin: Any = staticmethod(lambda p, latent: None)

    def conds(self, prompts: list[str], negative: str = "the") -> None:
        """Encode prompts, whose texts are divided by ``=>``, and the negative one."""
        negatives = fake.SdConditioning([negative] * len(prompts))
        negatives.is_negative_prompt = True
        self.all_prompts, self.all_negative_prompts = prompts, [negative]
        uncond = self.get_conds_with_caching(scheduled, negatives, 20, [self.cached_uc])
        cond = self.get_conds_with_caching(scheduled, fake.SdConditioning(prompts), 20, [self.cached_c])
        self.c = SimpleNamespace(batch=[[SimpleNamespace(schedules=own)] for own in cond])
        self.uc = uncond

    def sample(self, noise: Tensor | None = None, only: int | None = None) -> Tensor:
        """Results of all steps, of the same noise."""
        network = self.model.forge_objects.unet.model.diffusion_model
        self.sampler = Sampler(network)
        x = torch.randn(len(self.c.batch), CHANNELS, 8, 12, generator=torch.Generator().manual_seed(0))
        self.begin(self, x)
        self.sampler.get_sigmas(self, 4)
        found = []
        for number, level in enumerate(LEVELS[:-1]):
            found.append(self.sampler.model_wrap_cfg(x * level, level, cond=self.c, uncond=self.uc))
            self.sampler.callback_state({"i": number})
        return torch.stack(found)


def scheduled(host_model: Any, prompts: Any, steps: int, hires_steps: Any = None) -> list[list[Any]]:
    """As the host's function of that name: the texts of each prompt, of which the first is read in two steps."""
    found = []
    for prompt in prompts:
        texts = fake.SdConditioning(prompt.split("=>"))
        texts.is_negative_prompt = getattr(prompts, "is_negative_prompt", False)
        conds = host_model.get_learned_conditioning(texts)
        ends = [1, 99] if len(texts) > 1 else [99]
        found.append([SimpleNamespace(end_at_step=end, cond=conds[index]) for index, end in enumerate(ends)])
    return found
