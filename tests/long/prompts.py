"""Prompts and options drawn at random, by a seed: the same ones on every machine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from weighted_clip.weighting.options import OPTIONS
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.syntax import SYNTAXES

WORDS = (  # noqa: SIM905
    "a an the red blue old small wet golden cat dog fox bird horse whale city forest river mountain castle harbour "
    "street lamp table bowl window mirror ship rain snow fog dawn night winter photo painting sketch portrait of in on "
    "under beside with and very softly lit cinematic detailed photorealistic bokeh 35mm film grain, masterpiece, by "
    "café 東京 🐈 l'été hyperrealism volumetric pneumonoultramicroscopic antique velvet porcelain origami, steampunk"
).split()
RECENT = 40
"""Prompts that may come again while they are still remembered."""
STEPS = 8
"""Steps of a sampler, for prompts that change with the steps."""


@dataclass(frozen=True)
class Drawn:
    """A prompt."""

    text: str
    options: dict[str, Any]
    """Fields of `EncodeOptions`."""
    is_timed: bool = False
    """Whether it changes with the steps."""


def draw_prompts(seed: int, count: int) -> list[Drawn]:
    """Prompts in the order in which they are encoded.

    A quarter come again from the last few, a tenth from any earlier time; a fifth are the one before with a word more
    or with other options, as somebody types and tries them. The rest are new, some of them timed, some long.
    """
    draw = random.Random(seed)
    prompts: list[Drawn] = []
    for _ in range(count):
        kind = draw.random()
        if prompts and kind < 0.25:
            prompts.append(draw.choice(prompts[-RECENT:]))
        elif prompts and kind < 0.35:
            prompts.append(draw.choice(prompts))
        elif prompts and kind < 0.45 and not prompts[-1].is_timed:
            prompts.append(Drawn(f"{prompts[-1].text} {draw.choice(WORDS)}"[-2000:], prompts[-1].options))
        elif prompts and kind < 0.55 and not prompts[-1].is_timed:
            options = {**draw_options(draw), "syntax": prompts[-1].options["syntax"]}
            prompts.append(Drawn(prompts[-1].text, options))
        elif kind < 0.63:
            options = {**draw_options(draw), "syntax": "a1111", "chunking": "a1111"}
            prompts.append(Drawn(draw_timed(draw), options, is_timed=True))
        else:
            options = draw_options(draw)
            num_words = draw.randint(1, 14) if kind < 0.92 else draw.randint(70, 200)
            prompts.append(Drawn(draw_text(draw, options["syntax"], num_words), options))
    return prompts


MENUS = ("normalization", "chunking", "padding", "pooled", "law", "mask_method", "eos_rows")


def draw_options(draw: random.Random) -> dict[str, Any]:
    """Any choice of each option, and now and then phrases that are hidden."""
    options: dict[str, Any] = {
        "syntax": draw.choice(list(SYNTAXES)),
        "scheme": draw.choice([name for name in SCHEMES if name not in ("repeat", "negpip")]),  # which refuse some
        **{name: draw.choice(OPTIONS[name].choices) for name in MENUS},
        "comma_backtrack": draw.choice((0, 20, 74)),
        "is_causal": draw.random() > 0.04,
    }
    if draw.random() < 0.15:
        options |= {"hide": draw.choice(WORDS), "hidden_from": draw.choice(OPTIONS["hidden_from"].choices)}
        options["from_phrases"] = draw.choice(WORDS)
    return options


def draw_text(draw: random.Random, syntax: str, num_words: int) -> str:
    """Words, up to four of them with weights in a syntax."""
    words = draw.choices(WORDS, k=num_words)
    for place in draw.sample(range(num_words), min(num_words, draw.randint(0, 4))):
        words[place] = _WEIGHTED[syntax](draw, words[place])
    text = " ".join(words)
    if syntax == "compel" and draw.random() < 0.1:
        return f'("{text.replace(chr(34), "")}", "{draw.choice(WORDS)}").blend(0.7, 0.3)'
    return text


def draw_timed(draw: random.Random) -> str:
    """A prompt of the WebUI that changes with the steps."""
    one, other = draw.sample(WORDS, 2)
    change = draw.choice((f"[{one}:{other}:0.5]", f"[{one}|{other}]", f"[{one}::3]", f"[({one}:1.3):2]"))
    text = f"{draw_text(draw, 'a1111', draw.randint(1, 10))} {change} {draw_text(draw, 'a1111', draw.randint(1, 6))}"
    return f"{text} AND {draw_text(draw, 'a1111', 4)} :0.5" if draw.random() < 0.3 else text


def _weight(draw: random.Random) -> str:
    return f"{draw.choice((-0.5, 0, 0.2, 0.5, 0.8, 1.1, 1.3, 1.6)) + draw.choice((0, 0.05)):g}"


_WEIGHTED: dict[str, Callable[[random.Random, str], str]] = {
    "comfy": lambda draw, word: draw.choice((f"({word}:{_weight(draw)})", f"({word})", f"((very {word}:1.2))")),
    "a1111": lambda draw, word: draw.choice((f"({word}:{_weight(draw)})", f"(({word}))", f"[{word}]", f"{word} BREAK")),
    "compel": lambda draw, word: draw.choice((f"({word}){_weight(draw)}", f"{word}++", f"{word}-", f"({word} cat)0.4")),
    "novelai": lambda draw, word: draw.choice((f"{_weight(draw)}::{word} ::", f"{{{{{word}}}}}", f"[{word}]")),
    "none": lambda draw, word: f"({word}:{_weight(draw)})",
}
