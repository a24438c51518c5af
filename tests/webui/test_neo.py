"""The script on Forge Neo's engine: with the defaults its own numbers, and the settings that it reads.

The engine is a stand-in written after what Neo's code does (docs/compatibility.md). Unlike those of fake_webui.py it
weighs words and cuts chunks itself, so that what our script makes can be compared with what Neo makes without it. It
reads plain words, ``(words:weight)`` and ``BREAK``, no other syntax.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.webui.engines import engines_of, text_engine_class
from weighted_clip.hosts.webui.generation import arm
from weighted_clip.hosts.webui.settings import Settings

from . import fake_webui as fake

COMMA = 267


class Emphasis:
    """Neo makes it anew whenever it is asked for, and calls it."""

    name = "Original"

    def __call__(self, hidden: Tensor, multipliers: Tensor) -> Tensor:
        mean = hidden.mean()
        weighted = hidden * multipliers.unsqueeze(-1)
        return weighted * (mean / weighted.mean())


class ClipEngine(fake.ForgeEngine):
    """One text encoder."""

    chunk_length, id_start, id_end, id_pad, comma_token = 75, fake.BOS, fake.EOS, fake.EOS, COMMA

    def __init__(self, model: Any, key: str = "clip_l", *, pooled: bool = False, pad: int = fake.EOS) -> None:
        super().__init__(model, key, pooled=pooled)
        self.id_pad = pad
        self.minimal_clip_skip, self.final_layer_norm, self.text_projection = 1, True, pooled

    @property
    def emphasis(self) -> Emphasis:
        """It cannot be set, as it can in Forge."""
        return Emphasis()

    def tokenize(self, texts: Any) -> Any:
        """Ids of one text, or a list of them for several."""
        if isinstance(texts, str):
            return [token.id for token in default_tokenizer()(texts)]
        return [self.tokenize(text) for text in texts]

    def encode_with_transformers(self, tokens: Tensor) -> Tensor:
        """Numbers of the layer that clip skip says; the tokens' embeddings are made float32 each time."""
        embeddings = self.text_encoder.transformer.text_model.embeddings
        embeddings.token_embedding = embeddings.token_embedding.to(dtype=torch.float32)
        outputs = self.text_encoder.transformer.text_model(input_ids=tokens, output_hidden_states=True)
        hidden = outputs.hidden_states[-max(self.clip_skip, self.minimal_clip_skip)]
        if self.final_layer_norm:
            hidden = self.text_encoder.transformer.text_model.final_layer_norm(hidden)
        if self.return_pooled:
            hidden.pooled = self.text_encoder.transformer.text_projection(outputs.pooler_output)
        return hidden

    def tokenize_line(self, line: str) -> Any:
        """Chunks of 75 tokens, cut at a comma as far back as the host's setting says."""
        from modules.shared import opts  # pyright: ignore[reportMissingImports]

        backtrack = opts.comma_padding_backtrack
        chunks: list[list[tuple[int, float]]] = [[]]
        comma = -1
        for text, weight in parts_of(line):
            if text is None:
                chunks.append([])
                comma = -1
                continue
            for token in self.tokenize(text):
                chunk = chunks[-1]
                if token == self.comma_token:
                    comma = len(chunk)
                elif len(chunk) == self.chunk_length and comma >= 0 and 0 < len(chunk) - comma <= backtrack:
                    chunks.append(chunk[comma + 1 :])
                    del chunk[comma + 1 :]
                    comma = -1
                if len(chunks[-1]) == self.chunk_length:
                    chunks.append([])
                    comma = -1
                    if token == self.comma_token:
                        comma = 0
                chunks[-1].append((token, weight))
        return [self._filled(chunk) for chunk in chunks], sum(map(len, chunks))

    def _filled(self, chunk: list[tuple[int, float]]) -> Any:
        padding = [(fake.EOS, 1.0)] * (self.chunk_length + 1 - len(chunk))
        pairs = [(fake.BOS, 1.0), *chunk, *padding]
        return SimpleNamespace(tokens=[one for one, _ in pairs], multipliers=[two for _, two in pairs], fixes=[])

    def process_texts(self, texts: list[str]) -> tuple[list[list[Any]], int]:
        """The chunks of each text, and the most tokens."""
        lines = [self.tokenize_line(text) for text in texts]
        return [chunks for chunks, _ in lines], max(count for _, count in lines)

    def process_tokens(self, tokens: list[list[int]], multipliers: list[list[float]]) -> Tensor:
        """Encode one chunk of each text and weigh it."""
        ids = torch.asarray(tokens)
        if self.id_pad != self.id_end:
            for row in ids:
                row[row.tolist().index(self.id_end) + 1 :] = self.id_pad
        hidden = self.encode_with_transformers(ids)
        pooled = getattr(hidden, "pooled", None)
        hidden = self.emphasis(hidden, torch.asarray(multipliers).to(hidden))
        if pooled is not None:
            hidden.pooled = pooled
        return hidden


def parts_of(line: str) -> list[tuple[str | None, float]]:
    """Texts with their weights; None for a BREAK."""
    parts: list[tuple[str | None, float]] = []
    for index, section in enumerate(re.split(r"\s*\bBREAK\b\s*", line)):
        if index:
            parts.append((None, 1.0))
        for text, weighted, weight in re.findall(r"([^()]+)|\(([^():]+):([\d.]+)\)", section):
            parts.append((text or weighted, float(weight or 1.0)))
    return parts


COMMAS = "a (photo:1.2) of a small cat, " * 14
"""Some of its chunks end a few tokens behind a comma."""
TEXTS = ("", "a (red:1.4) cat and a (dog:0.5)", COMMAS, f"{COMMAS} BREAK a (cat:0.3), sitting BREAK a dog", "a, " * 60)


@pytest.fixture
def neo(host_options: SimpleNamespace) -> fake.ForgeModel:
    host_options.comma_padding_backtrack = 20
    return fake.ForgeModel(ClipEngine(fake.text_model()))


def given(model: Any, *texts: str, **settings: Any) -> Any:
    """Result of a generation with the script at these settings, or without it if there are none."""
    generation = fake.Generation(model)
    generation.cached_c, generation.cached_uc = [None, None, None], [None, None, None]
    if settings:
        arm(generation, list({**vars(Settings()), "enabled": True, **settings}.values()))
    return generation.setup_conds(*texts)


@pytest.mark.parametrize("backtrack", [0, 3, 20, 74])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_scheme_a1111_is_what_neo_makes_itself(
    neo: fake.ForgeModel, host_options: SimpleNamespace, text: str, backtrack: int
) -> None:
    host_options.comma_padding_backtrack = backtrack
    [theirs], [ours] = given(neo, text), given(neo, text, scheme="a1111")
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_the_comma_setting_makes_a_difference(neo: fake.ForgeModel, host_options: SimpleNamespace) -> None:
    [before] = given(neo, COMMAS)
    host_options.comma_padding_backtrack = 0
    [after] = given(neo, COMMAS)
    assert before.shape != after.shape or not torch.allclose(before, after, atol=1e-3)


def test_both_encoders_of_sdxl(host_options: SimpleNamespace) -> None:
    host_options.comma_padding_backtrack = 20
    first = ClipEngine(fake.text_model())
    second = ClipEngine(fake.text_model(1), "clip_g", pooled=True, pad=0)
    model = fake.ForgeXLModel(first, second)
    assert list(engines_of(model)) == ["clip_l", "clip_g"]
    for text in TEXTS:
        [theirs], [ours] = given(model, text), given(model, text, scheme="a1111")
        for key in ("crossattn", "vector"):
            torch.testing.assert_close(ours[key], theirs[key], atol=2e-5, rtol=0)


def test_masks_reach_neos_transformers_and_its_engine_is_left_as_it_was(neo: fake.ForgeModel) -> None:
    text = "a cat and a (dog:0.2)"
    [plain], [faded] = given(neo, text), given(neo, text, scheme="masked_blend")
    assert not torch.allclose(plain, faded, atol=1e-2)
    assert torch.equal(given(neo, text)[0], plain)
    engine = neo.text_processing_engine
    assert not {"process_texts", "process_tokens"} & set(vars(engine))
    assert engine.embeddings.fixes is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("backend.text_processing.sd_engine", "ClipEngine"),
        ("backend.text_processing.classic_engine", "ClassicTextProcessingEngine"),
    ],
)
def test_the_class_of_neos_engine_is_found_before_a_model_is_loaded(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer Neo has it in another file than Forge and the older one."""
    for one in ("backend", "backend.text_processing", module):
        monkeypatch.setitem(sys.modules, one, ModuleType(one))
    sys.modules["backend"].__dict__["__path__"] = sys.modules["backend.text_processing"].__dict__["__path__"] = []
    sys.modules[module].__dict__[name] = ClipEngine
    assert text_engine_class() is ClipEngine
