"""Tokens, weights and rows that Forge's own T5 engine makes of prompts, compared with those that our strip shows.

Run by test_webui_t5.py in Forge's own Python, with its checkout as working directory:

    python forge_t5_tokens.py PACKAGE PROMPTS OUTCOME --always-cpu

The tokenizers are those that Forge carries for its models; there is no text encoder, which nothing here needs.

Writes what differs, by tokenizer and emphasis mode; how many prompts were read; places that are not the letters of
their token; and what becomes of BREAK.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from webui_engines import load_package, ours

TOKENIZERS = {
    "Flux.1 dev": ("black-forest-labs/FLUX.1-dev/tokenizer_2", 256),
    "Flux.1 schnell": ("black-forest-labs/FLUX.1-schnell/tokenizer_2", 256),
    "Chroma": ("Chroma/tokenizer", 1),
    "Stable Diffusion 3": ("stabilityai/stable-diffusion-3-medium-diffusers/tokenizer_3", 256),
}
"""Folders of tokenizers, with the fewest rows in that model."""
EMPHASES = ("Original", "No norm", "Ignore", "None")
MAX_TOLD = 5


def main(package: Path, prompts: Path, outcome: Path) -> None:
    """Compare, and write what was found."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.remove(str(Path(__file__).resolve().parent))
    from modules import initialize

    initialize.imports()
    load_package(package)
    texts: list[str] = json.loads(prompts.read_text(encoding="utf-8"))
    found: dict[str, Any] = {"different": {}, "misplaced": [], "num_prompts": len(texts), "num_placed": 0}
    for name in TOKENIZERS:
        engine = make_engine(name)
        for emphasis in EMPHASES if name == "Flux.1 dev" else EMPHASES[:1]:
            different = [text for text in texts if host_chunks(engine, text, emphasis) != our_chunks(engine, text)]
            found["different"][f"{name}, {emphasis}"] = different[:MAX_TOLD]
        for text in filter(str.isascii, texts):
            for piece, written in placed_pieces(engine, text):
                found["num_placed"] += 1
                is_there = piece in (written, written.replace("\\", ""))  # a token may go over an escaped letter
                found["misplaced"] += [] if is_there else [(text, piece, written)]
    found["misplaced"] = found["misplaced"][:MAX_TOLD]
    outcome.write_text(json.dumps({**found, "breaks": breaks()}), encoding="utf-8")


def make_engine(name: str) -> Any:
    """Forge's engine round the tokenizer of a model."""
    from backend.text_processing.t5_engine import T5TextProcessingEngine
    from transformers import PreTrainedTokenizerFast, T5TokenizerFast

    folder, least = Path("backend/huggingface", TOKENIZERS[name][0]), TOKENIZERS[name][1]
    try:
        tokenizer = T5TokenizerFast.from_pretrained(folder)
    except (
        ImportError
    ):  # that of Stable Diffusion 3 is made anew from sentencepiece's file, for which protobuf may be old
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), unk_token="<unk>")
    return T5TextProcessingEngine(SimpleNamespace(transformer=None), tokenizer, min_length=least)


def host_chunks(engine: Any, text: str, emphasis: str) -> Any:
    """Ids and weights of each chunk of a text, without its padding, and the rows of the longest, by the host."""
    from backend.text_processing import emphasis as emphases
    from modules.shared import opts

    opts.data["emphasis"] = emphasis
    engine.emphasis = emphases.get_current_option(emphasis)()
    chunks, _ = engine.tokenize_line(text)
    contents = []
    for chunk in chunks:
        ids, weights = chunk.tokens, chunk.multipliers
        while ids and ids[-1] == engine.id_pad and len(ids) > 1:
            ids, weights = ids[:-1], weights[:-1]
        contents.append((ids, weights))
    return contents, max(len(chunk.tokens) for chunk in chunks)


def our_chunks(engine: Any, text: str) -> Any:
    """The same as our strip reads it."""
    read = our_reading(engine, text)
    contents = [([token.id for token in one.tokens[1:]], list(one.weights[1:])) for one in read.chunks]
    return contents, max(engine.min_length, *(len(ids) for ids, _ in contents))


def our_reading(engine: Any, text: str) -> Any:
    """A text as our strip reads it, with the script switched off."""
    options = ours("hosts.webui.engines").as_emphasized(ours("hosts.webui.settings").Settings().options())
    return ours("hosts.webui.t5").T5(engine, is_joined=False).read(text, options)


def placed_pieces(engine: Any, text: str) -> Iterator[tuple[str, str]]:
    """Each token of a text as the tokenizer writes it, and what stands at its place, both without spaces.

    Left out are tokens that are only the space before a word, which stand with its first letter, and unknown letters.
    """
    for chunk in our_reading(engine, text).chunks:
        for token in chunk.content:
            piece = engine.tokenizer.convert_ids_to_tokens(token.id).replace("▁", "")
            if piece and piece != "<unk>":
                yield piece, text[slice(*token.at)]


def breaks() -> dict[str, Any]:
    """Words that a picture reads of prompts with BREAK, by model and text."""
    from backend.diffusion_engine.flux import Flux
    from backend.diffusion_engine.sd35 import StableDiffusion3
    from modules import prompt_parser
    from modules.shared import opts

    opts.data["emphasis"] = "Original"
    opts.data["sd3_enable_t5"] = True
    engine = make_engine("Flux.1 dev")
    engine.encode_with_transformers = lambda tokens: tokens.unsqueeze(-1).float()
    engine.emphasis = SimpleNamespace(name="Original")
    clip = lambda texts: (torch.zeros(len(texts), 77, 1), torch.zeros(len(texts), 1))  # noqa: E731
    objects = SimpleNamespace(clip=SimpleNamespace(patcher=None))
    found: dict[str, Any] = {}
    for kind in (Flux, StableDiffusion3):
        model = kind.__new__(kind)
        vars(model).update(
            **{"forge_objects": objects, "use_distilled_cfg_scale": False, "text_processing_engine_t5": engine},
            **{"text_processing_engine_l": clip, "text_processing_engine_g": clip},
        )
        for text in ("a cat BREAK a dog", "a [cat:fox:0.5] BREAK a dog"):
            found[f"{kind.__name__}: {text}"] = sampled_words(engine, model, prompt_parser, text)
    return found


def sampled_words(engine: Any, model: Any, prompt_parser: Any, text: str) -> Any:
    """Words of each text that is sampled in turn, or the class of an error."""
    from backend import memory_management

    memory_management.load_model_gpu = lambda patcher: None
    prompts = prompt_parser.SdConditioning([text])
    try:
        (schedule,) = prompt_parser.get_learned_conditioning(model, prompts, 4)
    except Exception as error:
        return type(error).__name__
    rows = [part.cond["crossattn"][..., 0].long().tolist() for part in schedule]
    return [engine.tokenizer.decode([one for one in ids if one > 1]) for ids in rows]


if __name__ == "__main__":
    arguments = [Path(argument) for argument in sys.argv[1:4]]
    del sys.argv[1:4]
    main(*arguments)
