"""Small fakes of the WebUI's objects: engines of Forge and A1111 around transformers' CLIP, models, generations.

They keep to the host's contract (specs of A1111 1.10 and Forge dfdcbab6), not to its code. Their own way of encoding
knows no weights, so that conditioning made by us cannot be taken for theirs. Real hosts are in tests/hosts.
"""

import functools
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.webui.generation import arm
from weighted_clip.hosts.webui.settings import Settings

pytest.importorskip("transformers", "4.46", reason="the stand-ins are made of transformers 4.46 or newer")

from transformers import CLIPTextConfig, CLIPTextModelWithProjection

BOS, EOS, LENGTH = 49406, 49407, 77
WIDTH = 128


def text_model(seed: int = 0) -> CLIPTextModelWithProjection:
    """transformers' CLIP, narrow, with LayerNorms spread as those of trained models."""
    torch.manual_seed(seed)
    table = _drawn(seed).get_input_embeddings().weight
    return deepcopy(_drawn(seed), {id(table): nn.Parameter(table.data)})


@functools.cache
def _drawn(seed: int) -> CLIPTextModelWithProjection:
    """Its weights; the table of tokens, which takes longest to draw, is that of every model."""
    config = CLIPTextConfig(
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=2,
        projection_dim=WIDTH,
        eos_token_id=EOS,
        vocab_size=49408,
    )
    torch.manual_seed(seed)
    model = CLIPTextModelWithProjection(config).eval()
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.weight.data.normal_(1.0, 0.3)
            module.bias.data.normal_(0.0, 0.3)
    return model


class TokenEmbedding(nn.Module):
    """A token embedding that puts vectors over the tokens that ``fixes`` name, once."""

    def __init__(self, wrapped: nn.Module, owner: Any, key: str) -> None:
        super().__init__()
        self.wrapped, self.textual_inversion_key = wrapped, key
        self.owner = [owner]  # no submodule

    def forward(self, ids: Tensor) -> Tensor:
        fixes: list[Any] = self.owner[0].fixes or []
        self.owner[0].fixes = None
        result = self.wrapped(ids).clone()
        for row, some in enumerate(fixes):
            for offset, embedding in some:
                vectors = (
                    embedding.vec[self.textual_inversion_key] if isinstance(embedding.vec, dict) else embedding.vec
                )
                result[row, offset + 1 : offset + 1 + len(vectors)] = vectors
        return result


class Database:
    """The embeddings of a host."""

    def __init__(self) -> None:
        self.word_embeddings: dict[str, Any] = {}
        self.skipped_embeddings: dict[str, Any] = {}
        self.fixes: Any = None

    def add(self, name: str, vectors: Any) -> None:
        self.word_embeddings[name] = SimpleNamespace(
            name=name,
            vec=vectors,
            vectors=len(vectors["clip_g"] if isinstance(vectors, dict) else vectors),
            shorthash="",
        )


class Engine:
    """Common parts of the two hosts' engines."""

    chunk_length, id_start, id_end, id_pad, comma_token = 75, BOS, EOS, EOS, 267

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        return [[token.id for token in default_tokenizer()(text)] for text in texts]

    def process_texts(self, texts: list[str]) -> tuple[list[list[Any]], int]:
        chunks = []
        for ids in self.tokenize(texts):
            ids = [BOS, *ids[:75], *[EOS] * (76 - len(ids[:75]))]
            chunks.append([SimpleNamespace(tokens=ids, multipliers=[1.0] * LENGTH, fixes=[])])
        return chunks, max(map(len, self.tokenize(texts)))

    def process_tokens(self, tokens: list[list[int]], multipliers: list[list[float]]) -> Tensor:
        del multipliers
        return self.encode_with_transformers(torch.tensor(tokens))

    def encode_with_transformers(self, tokens: Tensor) -> Tensor:
        raise NotImplementedError

    def encode(self, texts: list[str], fixes_owner: Any) -> tuple[Tensor, Tensor | None]:
        batch, _ = self.process_texts(texts)
        self.used_embeddings = [embedding.name for chunks in batch for _, embedding in chunks[0].fixes]
        rows = []
        for column in zip(*batch, strict=True):
            fixes_owner.fixes = [chunk.fixes for chunk in column]
            rows.append(self.process_tokens([c.tokens for c in column], [c.multipliers for c in column]))
        return torch.hstack(rows), getattr(rows[0], "pooled", None)


class ForgeEngine(Engine):
    def __init__(self, model: CLIPTextModelWithProjection, key: str = "clip_l", *, pooled: bool = False) -> None:
        self.text_encoder = SimpleNamespace(transformer=model)
        self.embedding_key, self.return_pooled = key, pooled
        self.clip_skip, self.embeddings = 1, Database()
        embeddings = model.text_model.embeddings
        embeddings.token_embedding = TokenEmbedding(embeddings.token_embedding, self.embeddings, key)

    def encode_with_transformers(self, tokens: Tensor) -> Tensor:
        model = self.text_encoder.transformer
        output = model.text_model(input_ids=tokens, output_hidden_states=True)
        hidden = model.text_model.final_layer_norm(output.hidden_states[-self.clip_skip])
        if self.return_pooled:
            hidden.pooled = model.text_projection(output.pooler_output)
        return hidden

    def tokenize_line(self, line: str) -> int:
        del line
        comma_padding_backtrack = 20
        return comma_padding_backtrack

    def __call__(self, texts: list[str]) -> Any:
        hidden, pooled = self.encode(texts, self.embeddings)
        return (hidden, pooled) if self.return_pooled else hidden


class ReadingForgeEngine(ForgeEngine):
    """Forge Neo's, which reads the host's setting of commas."""

    def tokenize_line(self, line: str) -> int:
        del line
        from modules.shared import opts  # pyright: ignore[reportMissingImports]

        return opts.comma_padding_backtrack


class A1111Engine(Engine, nn.Module):
    def __init__(self, model: CLIPTextModelWithProjection, hijack: Any) -> None:
        nn.Module.__init__(self)
        self.wrapped = nn.Module()
        self.wrapped.transformer = model
        self.hijack, self.clip_skip = hijack, 1
        embeddings = model.text_model.embeddings
        embeddings.token_embedding = TokenEmbedding(embeddings.token_embedding, hijack, "clip_l")

    def encode_with_transformers(self, tokens: Tensor) -> Tensor:
        model = self.wrapped.transformer.text_model
        output = model(input_ids=tokens, output_hidden_states=True)
        return model.final_layer_norm(output.hidden_states[-self.clip_skip])

    def forward(self, texts: list[str]) -> Tensor:
        return self.encode(texts, self.hijack)[0]

    def tokenize_line(self, line: str) -> int:
        """As the host's, it reads this setting; ours looks for that."""
        del line
        from modules.shared import opts  # pyright: ignore[reportMissingImports]

        return opts.comma_padding_backtrack


class OpenClipEngine(A1111Engine):
    """As A1111 has it for SDXL's second encoder: no text model of transformers within reach."""

    def __init__(self, model: CLIPTextModelWithProjection, hijack: Any) -> None:
        super().__init__(model, hijack)
        self.inner = [model]
        token_embedding = model.text_model.embeddings.token_embedding
        token_embedding.textual_inversion_key = "clip_g"
        del self.wrapped.transformer
        self.wrapped.model = SimpleNamespace(token_embedding=token_embedding)

    def encode_with_transformers(self, tokens: Tensor) -> Tensor:
        output = self.inner[0].text_model(input_ids=tokens)
        hidden = output.last_hidden_state
        hidden.pooled = output.pooler_output
        return hidden

    def forward(self, texts: list[str]) -> Any:
        return self.encode(texts, self.hijack)


class ForgeModel:
    def __init__(self, engine: ForgeEngine) -> None:
        self.text_processing_engine = engine

    @torch.no_grad()
    def get_learned_conditioning(self, texts: list[str]) -> Tensor:
        return self.text_processing_engine(texts)


class ForgeXLModel:
    def __init__(self, first: ForgeEngine, second: ForgeEngine) -> None:
        self.text_processing_engine_l, self.text_processing_engine_g = first, second

    @torch.no_grad()
    def get_learned_conditioning(self, texts: list[str]) -> dict[str, Tensor]:
        hidden, (other, pooled) = self.text_processing_engine_l(texts), self.text_processing_engine_g(texts)
        return {"crossattn": torch.cat([hidden, other], dim=2), "vector": pooled}


class A1111Model:
    def __init__(self, engine: A1111Engine) -> None:
        self.cond_stage_model = engine

    @torch.no_grad()
    def get_learned_conditioning(self, texts: list[str]) -> Tensor:
        return self.cond_stage_model(texts)


class A1111XLModel:
    def __init__(self, first: A1111Engine, second: A1111Engine) -> None:
        self.conditioner = SimpleNamespace(embedders=[first, second, nn.Identity()])

    @torch.no_grad()
    def get_learned_conditioning(self, texts: list[str]) -> dict[str, Tensor]:
        first, second, _ = self.conditioner.embedders
        hidden, (other, pooled) = first(texts), second(texts)
        return {"crossattn": torch.cat([hidden, other], dim=2), "vector": pooled}


def get_learned_conditioning_prompt_schedules(prompts: list[str], steps: int, hires_steps: Any) -> list[list[str]]:
    """As the host's function of that name: the texts of each prompt, which are divided by ``=>``."""
    del steps, hires_steps
    return [prompt.split("=>") for prompt in prompts]


def get_learned_conditioning(model: Any, prompts: list[str], steps: int, hires_steps: Any = None) -> list[Any]:
    """As the host's function of that name."""
    schedules = get_learned_conditioning_prompt_schedules(prompts, steps, hires_steps)
    return [model.get_learned_conditioning(texts) for texts in schedules]


class SdConditioning(list[str]):
    """The host's list of prompts, which knows whether they are negative."""

    def __init__(self, prompts: Any = (), is_negative_prompt: bool = False, copy_from: Any = None) -> None:
        super().__init__(prompts)
        self.is_negative_prompt = is_negative_prompt or getattr(copy_from, "is_negative_prompt", False)


class Generation:
    """A generation of the host, with its caches shared by all."""

    cached_c: list[Any] = [None, None, None]  # noqa: RUF012
    cached_uc: list[Any] = [None, None, None]  # noqa: RUF012

    def __init__(self, model: Any) -> None:
        self.model = self.sd_model = model
        self.cached_c, self.cached_uc = Generation.cached_c, Generation.cached_uc
        self.extra_generation_params: dict[str, Any] = {}
        self.comments: dict[str, int] = {}

    def comment(self, text: str) -> None:
        self.comments[text] = 1

    def get_conds_with_caching(
        self, function: Any, prompts: list[str], steps: int, caches: list[Any], hires_steps: Any = None
    ) -> Any:
        for cache in caches:
            if cache[0] is not None and cache[0] == (tuple(prompts), steps):
                return cache[1]
        caches[0][1] = function(self.model, prompts, steps, hires_steps)
        caches[0][0] = (tuple(prompts), steps)
        return caches[0][1]

    def sample(self, noise: Tensor, only: int | None = None) -> Tensor:
        """A U-Net's result for prompt and negative prompt, together or for one of them."""
        conds = [self.c[0], self.uc[0]] if only is None else [(self.c[0], self.uc[0])[only]]
        return self.model.unet(noise, context=torch.cat(conds))

    def setup_conds(self, *prompts: str, negative: str = "") -> Any:
        negatives = SdConditioning([negative])
        negatives.is_negative_prompt = True
        self.uc = self.get_conds_with_caching(get_learned_conditioning, negatives, 20, [self.cached_uc])
        positives = SdConditioning(prompts)
        self.c = self.get_conds_with_caching(get_learned_conditioning, positives, 20, [self.cached_c])
        return self.c


def armed(model: Any, *values: Any, **settings: Any) -> Generation:
    """A generation with our script switched on: at the first of its values, or at these settings."""
    generation = Generation(model)
    arm(generation, [True, *values] if values else list({**vars(Settings()), "enabled": True, **settings}.values()))
    return generation
