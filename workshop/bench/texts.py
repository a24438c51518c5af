r"""Texts for timing: normal and hostile ones of any length, and prompts in the syntax of each program.

A hostile text consists of parts that could make a parser backtrack: brackets that never close or never opened, nesting,
whitespace, escapes, quotes, numbers, operators.

Our encoders have a cache, so a timed prompt has a new first word in each round.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import lru_cache

from ...weighting.syntax import SYNTAXES

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
"""Repeated part of each text, by name; with ``…`` in it, the part before is repeated, then as often the part after."""

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
"""Prompts to encode, by name. ``{word|weight}`` is a weighted word."""

BEGINNING = (
    "a photo of an old harbour town at dusk, fishing boats with lanterns, wet cobblestones, a white lighthouse on the "
    "cliff, gulls over the market hall, stacked crates and ropes, warm evening light"
)
"""A beginning of 40 tokens."""
NUM_BEHIND = 20
"""Tokens after it in each prompt of a grid."""
NEGATIVE = "a {blurry|1.3} photo, low quality, cropped, watermark, text, harsh flash, washed out colours"
TIMED = (
    "a photo of an old harbour town at dusk, fishing boats with lanterns, wet cobblestones, a lighthouse on the cliff, "
    "[gulls over the market hall:lamps along the market hall:0.2], stacked crates, [a sleeping dog:a cat:0.5] by a "
    "bakery door, [pencil sketch:oil painting:0.8]"
)
"""Four texts in turn, as the WebUI reads it."""

_WEIGHTED = re.compile(r"\{(.*?)\|(.*?)\}")


def written(template: str, syntax: str) -> str:
    """A prompt with its weights written in a syntax, as far as it can express them.

    >>> written("a {red|1.4} fox", "comfy"), written("a {red|1.4} fox", "compel"), written("a {red|1.4} fox", "none")
    ('a (red:1.4) fox', 'a (red)1.4 fox', 'a red fox')
    """
    write = SYNTAXES[syntax].write or (lambda text, weight: iter([text]))
    return _WEIGHTED.sub(lambda match: next(write(match[1], float(match[2])), match[1]), template)


@lru_cache(maxsize=1)
def words() -> tuple[str, ...]:
    """Some thousands of English words and pieces of words that are one token each.

    >>> "story" in words(), "fishing-boat" in words()
    (True, False)
    """
    from ...encoder.tokenizer import default_tokenizer

    tokenizer = default_tokenizer()
    symbols = (tokenizer.symbol(token_id) for token_id in range(1000, 12_000))  # smaller ids are shorter pieces
    plain_words = [symbol[:-4] for symbol in symbols if re.fullmatch("[a-z]{4,8}</w>", symbol)]
    return tuple(word for word in plain_words if len(tokenizer(word)) == 1)


def fresh(template: str, syntax: str) -> Iterator[str]:
    """Yield a prompt that begins with ``a`` with ever new words in that position: as many tokens, all unseen.

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
    """Prompts, so many in a grid, that share `BEGINNING`, followed by other words; each iterator yields the same."""
    generator = random.Random(0)
    while True:
        yield [f"{BEGINNING} {' '.join(generator.sample(words(), NUM_BEHIND))}" for _ in range(count)]


def text_of(name: str, syntax: str, length: int) -> str:
    """One of the texts, with exactly the requested length.

    >>> text_of("nested brackets", "a1111", 8), text_of("brackets never closed", "a1111", 7)
    ('(((())))', '(a (a (')
    """
    before, nests, after = written(TEXTS[name], syntax).partition("…")
    if not nests:
        return (before * (length // len(before) + 1))[:length]
    count = length // len(before + after)
    return (before * count + after * count).ljust(length)
