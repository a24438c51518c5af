r"""The texts that are timed: normal and hostile ones of any length, and prompts that each program writes its own way.

A hostile text is made of what could make a parser try again and again: brackets that never close or never opened,
nesting, white space, escapes, quotes, numbers, operators.
"""

from __future__ import annotations

import re

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

_WEIGHTED = re.compile(r"\{(.*?)\|(.*?)\}")
_WRITTEN = {"a1111": r"(\1:\2)", "comfy": r"(\1:\2)", "compel": r"(\1)\2", "none": r"\1"}


def written(template: str, syntax: str) -> str:
    """A prompt with its weights as a syntax writes them.

    >>> written("a {red|1.4} fox", "comfy"), written("a {red|1.4} fox", "compel"), written("a {red|1.4} fox", "none")
    ('a (red:1.4) fox', 'a (red)1.4 fox', 'a red fox')
    """
    return _WEIGHTED.sub(_WRITTEN[syntax], template)


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
