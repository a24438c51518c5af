r"""The texts that are timed: normal and hostile ones of any length, and prompts that each program writes its own way.

A hostile text is made of what could make a parser try again and again: brackets that never close or never opened,
nesting, white space, escapes, quotes, numbers, operators.

As our encoders remember, a prompt that is timed has another first word in each round, and so has never been seen.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import lru_cache

_SCENE = (
    "a photo of an old harbour town at dusk, fishing boats with lanterns, {wet cobblestones|1.2}, a lighthouse on the "
    "cliff, gulls over the {market hall|0.7}, stacked crates, ropes, a sleeping dog by a bakery door, oil painting, "
)

TEXTS = {
    "normal": _SCENE,
    "nested brackets": "(…)",
    "nested brackets with text": "(a …)",
    "brackets never closed": "(a ",
    "brackets never opened": "a) ",
    "round and square in turn": "([",
    "crossed brackets": "(a [b) c] ",
    "white space": " \n\t",
    "escapes": "\\(a\\) ",
    "backslashes": "\\",
    "BREAK again and again": "BREAK ",
    "quotes": '"a" ',
    "quotes never closed": '"a \n',
    "weights": ":1.2) ",
    "digits": "1",
    "signs": "a+ b-- ",
    "operators never closed": "a.swap(",
    "lists of quotes": '("a", ',
}
"""Each text by name: what it repeats; with ``…`` in it, the part before is repeated, then as often the part behind."""

PLAIN = "a photo of a red fox in deep snow, oil painting, soft light"
ONE_UP = "a photo of a {red|1.4} fox in deep snow, oil painting, soft light"
FOUR_DOWN = (
    "a photo of an old harbour town at dusk, fishing {boats|0.2} with lanterns, wet cobblestones, a white "
    "{lighthouse|0.4} on the cliff, gulls over the market hall, stacked crates and ropes, a sleeping {dog|0.6} by a "
    "bakery door, warm {light|0.8} in the windows, oil painting, golden hour, deep long shadows"
)
PROMPTS = {
    "plain": PLAIN,
    "one word up": ONE_UP,
    "four words down": FOUR_DOWN,
}
"""The prompts that are encoded, by name. ``{word|weight}`` is a weighted word."""

BEGINNING = (
    "a photo of an old harbour town at dusk, fishing boats with lanterns, wet cobblestones, a white lighthouse on the "
    "cliff, gulls over the market hall, stacked crates and ropes, warm evening light"
)
"""40 tokens."""
NUM_BEHIND = 20
"""Tokens behind them in each prompt of a grid."""
NEGATIVE = "a {blurry|1.3} photo, low quality, cropped, watermark, text, harsh flash, washed out colours"
TIMED = (
    "a photo of an old harbour town at dusk, fishing boats with lanterns, wet cobblestones, a lighthouse on the cliff, "
    "[gulls over the market hall:lamps along the market hall:0.2], stacked crates, [a sleeping dog:a cat:0.5] by a "
    "bakery door, [pencil sketch:oil painting:0.8]"
)
"""Four texts, one after the other, as the WebUI reads it."""

_WEIGHTED = re.compile(r"\{(.*?)\|(.*?)\}")
_WRITTEN = {"a1111": r"(\1:\2)", "comfy": r"(\1:\2)", "compel": r"(\1)\2", "none": r"\1"}


def written(template: str, syntax: str) -> str:
    """A prompt with its weights as a syntax writes them.

    >>> written("a {red|1.4} fox", "comfy"), written("a {red|1.4} fox", "compel"), written("a {red|1.4} fox", "none")
    ('a (red:1.4) fox', 'a (red)1.4 fox', 'a red fox')
    """
    return _WEIGHTED.sub(_WRITTEN[syntax], template)


@lru_cache(maxsize=1)
def words() -> tuple[str, ...]:
    """Some thousands of English words and pieces of words that are one token each.

    >>> "story" in words(), "fishing-boat" in words()
    (True, False)
    """
    from ..encoder.tokenizer import default_tokenizer

    tokenizer = default_tokenizer()
    symbols = (tokenizer.symbol(token_id) for token_id in range(1000, 12_000))  # the ids before are shorter pieces
    found = [symbol[:-4] for symbol in symbols if re.fullmatch("[a-z]{4,8}</w>", symbol)]
    return tuple(word for word in found if len(tokenizer(word)) == 1)


def fresh(template: str, syntax: str) -> Iterator[str]:
    """A prompt that begins with ``a``, again and again, with another word in that place: as many tokens, all unseen.

    Args:
        template: The prompt.
        syntax: How its weights are written.

    Yields:
        The prompt; whoever asks anew gets the same sequence.

    >>> texts = fresh("a {red|1.4} fox", "comfy")
    >>> [next(texts), next(texts)] == [f"{word} (red:1.4) fox" for word in words()[:2]]
    True
    """
    first, _, rest = written(template, syntax).partition(" ")
    assert first == "a", template
    for word in words():
        yield f"{word} {rest}"


def typed() -> Iterator[str]:
    """A prompt of three chunks with another last word each time."""
    text = ", ".join([written(FOUR_DOWN, "none")] * 3 + [PLAIN])
    for word in words():
        yield f"{text}, {word}"


def grids(count: int) -> Iterator[list[str]]:
    """Prompts that have `BEGINNING` in common, and behind it other words each time.

    Args:
        count: Of prompts in a grid.

    Yields:
        The prompts; whoever asks anew gets the same sequence.
    """
    generator = random.Random(0)
    while True:
        yield [f"{BEGINNING} {' '.join(generator.sample(words(), NUM_BEHIND))}" for _ in range(count)]


def text_of(name: str, syntax: str, length: int) -> str:
    """One of the texts, exactly as long as asked.

    >>> text_of("nested brackets", "a1111", 8), text_of("brackets never closed", "a1111", 7)
    ('(((())))', '(a (a (')
    """
    before, nests, behind = written(TEXTS[name], syntax).partition("…")
    if not nests:
        return (before * (length // len(before) + 1))[:length]
    count = length // len(before + behind)
    return (before * count + behind * count).ljust(length)
