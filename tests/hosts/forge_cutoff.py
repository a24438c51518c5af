"""Results of the extension sd-webui-cutoff on Forge's own text engine, compared with our binding as Cutoff.

Run by test_webui_python.py in Forge's own Python, with its checkout as working directory:

    python forge_cutoff.py PACKAGE CUTOFF OUTCOME --always-cpu --data-dir DIR

The extension's script is loaded from its checkout, CUTOFF, and does all of its work itself. It is made for A1111 and
hooks into a module that Forge does not have, so three things replace A1111's: the names of ``ldm`` that it imports and
does not use here, the name of A1111's class of text encoders, and a module of that class round Forge's engine.

Writes for each prompt the largest difference and the largest change that Cutoff makes, both relative to the largest
number; or the message with which ours refuses it.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from webui_engines import draw, load_package, ours

LDM = {
    "ldm.modules.diffusionmodules.openaimodel": ("TimestepEmbedSequential", "ResBlock"),
    "ldm.modules.attention": (
        *("SpatialTransformer", "BasicTransformerBlock", "CrossAttention", "MemoryEfficientCrossAttention"),
    ),
}
"""Imports of the extension from A1111's U-Net, which it does not use."""
COLORS = ("light blue", "red", "blue", "supercalifragilistic", "Red", "off-white")
THINGS = (
    "cat",
    "shoes",
    "a dog's bowl",
    "reddish hair",
    "a cute girl",
    "3 toy cars",
    "T-shirt",
    "café",
    "猫",
    "redhead",
)
FIXED = (
    "a cute girl, white shirt with green tie, red shoes, blue hair, yellow eyes, pink skirt",
    "red, blue,red cat , a blue-eyed dog,",
    "a red cat, a blue dog BREAK a red bird, blue sky",
    "a red cat \\(blue\\), a blue dog, red,, blue, a red bird",
    "no colour at all, red",
    "",
    "red hair!,  3d \\(cosplay\\)",
    "hair!,  a red 3d \\(cosplay\\)",
    "\\(red\\),, a blue dog.,\\(blue cat\\), red!,",
    ",,red,, blue,,,",
)
ENDINGS = ("", "", "!", ".", "?!", "...", "\\)", "!\\)", "'s", ",")
GLUE = (",", ", ", ",,", ",  ", " ,, ", ",.", ".,", "!,", "\\),", ",\\(", " ,", "，")
"""Text between two parts: punctuation that makes one token with a comma, or several commas."""
WEIGHTED = "a (red:1.3) cat, [blue] dog, (a green bird, red sky:0.7)"


def main(package: Path, cutoff: Path, outcome: Path) -> None:
    """Compare, and write what was found."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.remove(str(Path(__file__).resolve().parent))
    from modules import initialize

    initialize.imports()
    load_package(package)
    extension = load_extension(cutoff)
    engine = make_engine()
    generator = random.Random(0)
    found: dict[str, Any] = {}
    texts = [*FIXED, *(random_prompt(generator) for _ in range(24)), *(glued_prompt(generator) for _ in range(60))]
    for text in texts:
        for strong, strength in ((False, 0.5), (True, 0.5), (False, 1.0), (True, 0.3)):
            found[f"{strong} {strength} {text}"] = compared(
                engine, extension, text, strong=strong, strength=strength, scheme=generator.choice(("a1111", "comfy"))
            )
    found["weighted"] = compared(
        engine, extension, WEIGHTED, strong=False, strength=0.5, scheme="a1111_no_norm", emphasis="No norm"
    )
    outcome.write_text(json.dumps(found), encoding="utf-8")


def random_prompt(generator: random.Random) -> str:
    """Parts between commas, sometimes enough for a second chunk; the extension takes 2^n steps for n coloured ones."""
    parts = [" ".join(generator.choice(some) for some in (COLORS, THINGS)) for _ in range(generator.randint(1, 6))]
    parts += [generator.choice(THINGS) for _ in range(generator.choice((0, 2, 25)))]
    generator.shuffle(parts)
    return generator.choice((", ", ",", " , ")).join(parts)


def glued_prompt(generator: random.Random) -> str:
    """Parts with punctuation glued to the commas between them."""
    text = generator.choice(("", "", ",", "\\(", ",,"))
    for _ in range(generator.randint(2, 6)):
        thing = generator.choice(THINGS)
        thing = thing if generator.random() < 0.3 else f"{generator.choice(COLORS)} {thing}"
        text += thing + generator.choice(ENDINGS) + generator.choice(GLUE)
    return text


def load_extension(folder: Path) -> Any:
    """The extension's script, and what it wants of A1111."""
    for name in ("ldm", "ldm.modules", "ldm.modules.diffusionmodules", *LDM):
        sys.modules[name] = ModuleType(name)
    for name, classes in LDM.items():
        vars(sys.modules[name]).update({one: type(one, (), {}) for one in classes})
    vars(importlib.import_module("modules.sd_hijack_clip"))["FrozenCLIPEmbedderWithCustomWordsBase"] = Embedder
    scripts = sys.modules["scripts"] = ModuleType("scripts")
    scripts.__path__ = [str(folder / "scripts")]
    return importlib.import_module("scripts.cutoff")


class Embedder(torch.nn.Module):
    """Forge's engine under the names that A1111's text encoders have."""

    def __init__(self, engine: Any) -> None:
        super().__init__()
        self.engine = engine
        self.wrapped = SimpleNamespace(tokenizer=engine.tokenizer)
        self.hijack = SimpleNamespace(embedding_db=engine.embeddings)
        self.id_start, self.id_end, self.tokenize = engine.id_start, engine.id_end, engine.tokenize

    def forward(self, texts: list[str]) -> torch.Tensor:
        """The host's result for texts."""
        return self.engine(texts)


def make_engine() -> Any:
    """Forge's engine round a small CLIP with random weights from a fixed seed."""
    from backend.text_processing.classic_engine import ClassicTextProcessingEngine
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    width = 128
    sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_attention_heads": 2, "projection_dim": width}
    model = CLIPTextModel(CLIPTextConfig(**sizes, num_hidden_layers=4)).eval()
    draw(model)
    folder = next(Path("backend", "huggingface").rglob("stable-diffusion-v1-5")) / "tokenizer"
    return ClassicTextProcessingEngine(
        SimpleNamespace(transformer=model), CLIPTokenizer.from_pretrained(folder), embedding_expected_shape=width
    )


def compared(
    engine: Any, extension: Any, text: str, *, strong: bool, strength: float, scheme: str, emphasis: str = "Original"
) -> tuple[float, float] | str:
    """Difference of ours from Cutoff, and of Cutoff from the plain encoding; or why ours refuses the prompt."""
    from modules import shared

    shared.opts.data["emphasis"] = emphasis
    words = [word for word in COLORS if is_in(word, text)]
    plain = engine([text])
    theirs = with_cutoff(engine, extension, text, words, strong=strong, strength=strength)
    try:
        measured = with_ours(engine, text, words, strong=strong, strength=strength, scheme=scheme)
    except ValueError as error:
        return str(error)
    scale = float(theirs.abs().max())
    difference, change = (float((one - theirs).abs().max()) / scale for one in (measured, plain))
    return difference, change


def is_in(word: str, text: str) -> bool:
    """Whether a word is in a text, bounded by anything but letters and digits."""
    return any(
        not (text[:at][-1:].isalnum() or text[at + len(word) :][:1].isalnum())
        for at in range(len(text))
        if text.startswith(word, at)
    )


def with_cutoff(
    engine: Any, extension: Any, text: str, words: list[str], *, strong: bool, strength: float
) -> torch.Tensor:
    """The extension's result for a text: its script, and then the host's call of the text encoder."""
    embedder = Embedder(engine)
    model = SimpleNamespace(model=SimpleNamespace(diffusion_model=0), first_stage_model=0, cond_stage_model=embedder)
    p = SimpleNamespace(
        sd_model=model, negative_prompt="none", all_negative_prompts=["none"], extra_generation_params={}
    )
    script = extension.Script()
    script.process(p, True, ", ".join(words), strength, True, strong, "", "Lerp", False)
    try:
        return embedder([text])
    finally:
        script.process(p, False, "", 0, True, False, "", "Lerp", False)


def with_ours(engine: Any, text: str, words: list[str], *, strong: bool, strength: float, scheme: str) -> torch.Tensor:
    """Our result in the WebUI."""
    model = SimpleNamespace(text_processing_engine=engine)
    choices = {"bind_hide": "cutoff", "bind_words": "\n".join(words), "bind_rest": "alone" if strong else "full"}
    options = ours("weighting.options").EncodeOptions(
        syntax="a1111", scheme=scheme, quirks=True, cleaning="none", bind_strength=strength, **choices
    )
    with ours("hosts.webui.conditioning").swapped(ours("hosts.webui.engines").engines_of(model), options):
        return engine([text])


if __name__ == "__main__":
    with torch.no_grad():
        arguments = [Path(argument) for argument in sys.argv[1:4]]
        del sys.argv[1:4]
        main(*arguments)
