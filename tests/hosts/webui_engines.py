"""Our encoding with the text encoders of A1111's SDXL and SD2 in hand: the host's classes, small, with random weights.

Run by test_webui_python.py in A1111's own Python, with its checkout as working directory and its options after ours:

    python webui_engines.py PACKAGE OUTCOME [--data-dir DIR ...]

Writes what each check found: nothing, or a traceback.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

PACKAGE = "weighted_clip_webui"
TEXTS = ("a photo of a (red:1.3) cat on a (mat:0.4)", "plain", "")
LONG = ("a (photo:1.2) of a [very (small:1.4)] cat, " * 12 + "BREAK a (dog:0.7)", "a (cat:1.5)")
EMBEDDING = "a (seeded:1.3) cat"
WIDTHS = {"clip_l": 64, "clip_g": 128}
LAYERS = 3
HIDING = ({"scheme": "masked_blend"}, {"scheme": "a1111", "padding": "mask"})
"""Choices that hide words or padding, which open_clip's own classes have no way for."""
REPLACING = {"scheme": "masked_blend", "mask_method": "token"}
"""A choice that puts another word in their places, which needs none."""


def main(package: Path, outcome: Path) -> None:
    """Run every check; a failure does not stop the others."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.remove(str(Path(__file__).resolve().parent))
    from modules import initialize

    initialize.imports()
    load_package(package)
    found: dict[str, str] = {}
    with torch.no_grad():
        for name, check in list(globals().items()):
            if name.startswith("check_"):
                try:
                    check()
                    found[name] = ""
                except BaseException:
                    found[name] = traceback.format_exc()
    outcome.write_text(json.dumps(found), encoding="utf-8")


def load_package(root: Path) -> None:
    """Load our package as scripts/weighted_clip.py does."""
    spec = importlib.util.spec_from_file_location(PACKAGE, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec is not None
    assert spec.loader is not None
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])


def ours(name: str) -> Any:
    """A module of our package."""
    return importlib.import_module(f"{PACKAGE}.{name}")


# Small models of the host's classes


def make_sdxl(*, towers: tuple[str, ...] = ("clip_l", "clip_g")) -> Any:
    """A model with SDXL's text encoders, as the host has it once it has replaced their embedding layers."""
    import sgm.modules
    from modules import sd_hijack, sd_hijack_clip, sd_hijack_open_clip, sd_models_xl

    hijack = new_hijack(WIDTHS)
    embedders = []
    for tower in towers:
        if tower == "clip_l":
            wrapped = transformers_embedder()
            layer = wrapped.transformer.text_model.embeddings
            layer.token_embedding = sd_hijack.EmbeddingsWithFixes(layer.token_embedding, hijack)
            embedder = sd_hijack_clip.FrozenCLIPEmbedderForSDXLWithCustomWords(wrapped, hijack)
        else:
            wrapped = open_clip_embedder(
                sgm.modules.encoders.modules.FrozenOpenCLIPEmbedder2, return_pooled=True, legacy=False
            )
            wrapped.model.token_embedding = sd_hijack.EmbeddingsWithFixes(
                wrapped.model.token_embedding, hijack, textual_inversion_key="clip_g"
            )
            embedder = sd_hijack_open_clip.FrozenOpenCLIPEmbedder2WithCustomWords(wrapped, hijack)
        embedder.is_trainable, embedder.legacy_ucg_val, embedder.input_key = False, None, "txt"
        embedders.append(embedder)
    conditioner = new(sgm.modules.GeneralConditioner, embedders=torch.nn.ModuleList(embedders))
    model = SimpleNamespace(conditioner=conditioner, cond_stage_model=conditioner)
    model.get_learned_conditioning = partial(sd_models_xl.get_learned_conditioning, model)
    return model


def make_sd2() -> Any:
    """A model with the text encoder of Stable Diffusion 2, in the same way."""
    import ldm.modules.encoders.modules
    from modules import sd_hijack, sd_hijack_open_clip

    hijack = new_hijack({"clip_l": WIDTHS["clip_g"]})  # the host's name for the only one
    wrapped = open_clip_embedder(ldm.modules.encoders.modules.FrozenOpenCLIPEmbedder)
    wrapped.model.token_embedding = sd_hijack.EmbeddingsWithFixes(wrapped.model.token_embedding, hijack)
    stage = sd_hijack_open_clip.FrozenOpenCLIPEmbedderWithCustomWords(wrapped, hijack)
    return SimpleNamespace(cond_stage_model=stage, get_learned_conditioning=stage)


def new_hijack(widths: Mapping[str, int]) -> Any:
    """The host's holder of embeddings, with one that has vectors for every tower."""
    from modules import sd_hijack
    from modules.textual_inversion.textual_inversion import Embedding

    hijack = sd_hijack.StableDiffusionModelHijack()
    generator = torch.Generator().manual_seed(5)
    vectors = {tower: torch.randn(2, width, generator=generator) for tower, width in widths.items()}
    embedding = Embedding(vectors, "seeded")
    embedding.vectors = 2
    ids = ours("encoder.tokenizer").default_tokenizer()("seeded")
    hijack.embedding_db.word_embeddings["seeded"] = embedding
    hijack.embedding_db.ids_lookup[ids[0].id] = [([token.id for token in ids], embedding)]
    return hijack


def transformers_embedder() -> Any:
    """sgm's ``FrozenCLIPEmbedder`` on transformers' CLIP, as in SDXL: the hidden states before the last layer."""
    import sgm.modules
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    width = WIDTHS["clip_l"]
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2, "projection_dim": width}
    transformer = CLIPTextModel(CLIPTextConfig(**sizes, num_hidden_layers=LAYERS)).eval()
    draw(transformer)
    return new(
        sgm.modules.encoders.modules.FrozenCLIPEmbedder,
        tokenizer=CLIPTokenizer.from_pretrained("openai/clip-vit-large-patch14"),
        transformer=transformer,
        **{"device": "cpu", "max_length": 77, "layer": "hidden", "layer_idx": LAYERS - 1, "return_pooled": False},
    )


def open_clip_embedder(kind: Any, **choices: Any) -> Any:
    """sgm's or ldm's embedder on open_clip's CLIP, as in SDXL and SD2."""
    from open_clip.model import CLIP

    width = WIDTHS["clip_g"]
    vision = {"layers": 1, "width": 64, "image_size": 32, "patch_size": 32}
    model = CLIP(width, vision, {"width": width, "heads": 2, "layers": LAYERS}).eval()
    del model.visual
    draw(model)
    settings = {"device": "cpu", "max_length": 77, "layer": "penultimate", "layer_idx": 1}
    return new(kind, model=model, **settings, **choices)


def new(kind: Any, **attributes: Any) -> Any:
    """An object of a class of the host, without its downloads."""
    made = kind.__new__(kind)
    torch.nn.Module.__init__(made)
    for name, value in attributes.items():
        try:
            setattr(made, name, value)
        except AttributeError:  # a property, such as sgm's
            setattr(made, f"_{name}", value)
    return made


def draw(module: torch.nn.Module) -> None:
    """Give a module random weights from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(module.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        gain = 1 if parameter.dim() == 1 and name.endswith("weight") else 0
        scale = 0.2 if parameter.dim() < 2 or "embedding" in name else parameter.shape[-1] ** -0.5
        parameter.data.copy_(gain + scale * values)


# What is asked of them


def stock(model: Any, texts: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The host's result for texts."""
    from modules.prompt_parser import SdConditioning

    cond = model.get_learned_conditioning(SdConditioning(texts, width=64, height=64))
    cond = cond if isinstance(cond, Mapping) else {"crossattn": cond}
    return {name: tensor.clone() for name, tensor in cond.items()}


def weighted(model: Any, texts: tuple[str, ...], **choices: Any) -> dict[str, torch.Tensor]:
    """Our result for texts."""
    engines = ours("hosts.webui.engines").engines_of(model)
    options = ours("weighting.options").EncodeOptions(**{"syntax": "a1111", "quirks": True, **choices})
    with ours("hosts.webui.conditioning").swapped(engines, options):
        return stock(model, texts)


def difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest; infinite if they do not match."""
    if one.keys() != other.keys() or any(one[name].shape != other[name].shape for name in one):
        return float("inf")
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def compare_with_stock(model: Any) -> None:
    """See that our a1111 equals the host's, that others do not, and that nothing is left behind."""
    for texts in (TEXTS, LONG, (EMBEDDING,)):
        before = stock(model, texts)
        assert all(tensor.isfinite().all() for tensor in before.values())
        assert before["crossattn"].abs().mean() > 0.1
        assert difference(weighted(model, texts, scheme="a1111"), before) <= 1e-5
        other = weighted(model, texts, scheme="comfy")
        assert 0.01 < difference(other, before) < float("inf")
        assert difference(stock(model, texts), before) == 0
    assert difference(stock(model, (EMBEDDING,)), stock(model, ("a (cat:1.3) cat",))) > 0.01


def compare_refusal(model: Any) -> None:
    """See that what hides words is refused in words where it cannot be done, and leaves nothing."""
    before = stock(model, TEXTS)
    for choices in HIDING:
        try:
            weighted(model, TEXTS, **choices)
        except ours("hosts.webui.engines").WebUIError as error:
            assert "open_clip" in str(error), error
        else:
            raise AssertionError(f"{choices} was not refused")
        assert difference(stock(model, TEXTS), before) == 0
    assert 0.01 < difference(weighted(model, TEXTS, **REPLACING), before) < float("inf")
    assert difference(stock(model, TEXTS), before) == 0


def check_sdxl_a1111_equals_stock() -> None:
    compare_with_stock(make_sdxl())


def check_sdxl_refiner_a1111_equals_stock() -> None:
    compare_with_stock(make_sdxl(towers=("clip_g",)))


def check_sd2_a1111_equals_stock() -> None:
    compare_with_stock(make_sd2())


def check_sdxl_refuses_what_open_clip_cannot_do() -> None:
    compare_refusal(make_sdxl())


def check_sd2_refuses_what_open_clip_cannot_do() -> None:
    compare_refusal(make_sd2())


def check_sdxl_hides_words_from_its_first_encoder_alone() -> None:
    model = make_sdxl(towers=("clip_l",))
    before = stock(model, TEXTS)
    assert 0.01 < difference(weighted(model, TEXTS, scheme="masked_blend"), before) < float("inf")
    assert difference(weighted(model, TEXTS[1:], scheme="masked_blend"), stock(model, TEXTS[1:])) <= 1e-5
    assert difference(stock(model, TEXTS), before) == 0


if __name__ == "__main__":
    arguments = [Path(argument) for argument in sys.argv[1:3]]
    del sys.argv[1:3]
    main(*arguments)
