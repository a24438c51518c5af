r"""Texts for timing: normal and hostile ones of any length, and prompts in the syntax of each program.

A hostile text consists of parts that could make a parser backtrack: brackets that never close or never opened, nesting,
whitespace, escapes, quotes, numbers, operators.

Our encoders have a cache, so a timed prompt has a new first word in each round.
"""

from __future__ import annotations

import math
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
    return _WEIGHTED.sub(lambda found: next(write(found[1], float(found[2])), found[1]), template)


@lru_cache(maxsize=1)
def words() -> tuple[str, ...]:
    """Some thousands of English words and pieces of words that are one token each.

    >>> "story" in words(), "fishing-boat" in words()
    (True, False)
    """
    from ...encoder.tokenizer import default_tokenizer

    tokenizer = default_tokenizer()
    symbols = (tokenizer.symbol(token_id) for token_id in range(1000, 12_000))  # smaller ids are shorter pieces
    found = [symbol[:-4] for symbol in symbols if re.fullmatch("[a-z]{4,8}</w>", symbol)]
    return tuple(word for word in found if len(tokenizer(word)) == 1)


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
    before, nests, behind = written(TEXTS[name], syntax).partition("…")
    if not nests:
        return (before * (length // len(before) + 1))[:length]
    count = length // len(before + behind)
    return (before * count + behind * count).ljust(length)


# ---- made prompts

FEWEST_WORDS, MOST_WORDS = 5, 60
MEDIAN_WORDS = 18
SPREAD = 0.8
"""Standard deviation of the logarithm of the number of words."""
PHRASE_FIRST = 0.4
"""Share of prompts in which a phrase comes before the subject."""
WEIGHTED_PROMPTS = 0.25
"""Share of prompts in which a phrase can have a weight."""
WEIGHTED_PHRASES = 0.3
"""Share of phrases of such prompts that have one."""
WEIGHTS = ("({}:1.1)", "({}:1.2)", "({}:1.3)", "({}:1.4)", "({}:0.8)", "({}:0.6)", "({})", "(({}))", "[{}]")

OPENINGS = (
    *[""] * 30,
    *("a", "the", "two", "an old", "a small", "a tiny", "a giant", "a lonely", "a painting of a"),
    *("a photo of a", "portrait of a", "close-up photo of a", "a drawing of a", "concept art of a", "a sketch of a"),
    *("an oil painting of a", "a watercolor of a", "film still of a", "wide shot of a", "a statue of a"),
)
KINDS = (
    *("red", "white", "golden", "wooden", "glass", "sleeping", "laughing", "armored", "robotic", "elegant", "furry"),
    *("ancient", "abandoned", "flying", "medieval", "futuristic", "painted", "smiling", "wounded", "hooded", "masked"),
    *("transparent", "mechanical", "beautiful", "weathered", "silver", "velvet", "young", "elderly", "winged"),
)
SUBJECTS = (
    *("fox", "cat", "dog", "owl", "raven", "horse", "dragon", "whale", "jellyfish", "octopus", "bear", "turtle"),
    *("woman", "man", "girl", "boy", "knight", "wizard", "astronaut", "fisherman", "baker", "queen", "samurai"),
    *("robot", "android", "spaceship", "submarine", "sailing ship", "steam train", "motorcycle", "bicycle"),
    *("castle", "lighthouse", "cathedral", "library", "greenhouse", "treehouse", "cottage", "tower", "bridge"),
    *("market hall", "harbour town", "mountain village", "floating city", "teapot", "pocket watch", "violin"),
    *("bowl of cherries", "bunch of peonies", "chess board", "old map", "paper lantern", "mushroom house"),
)
PLACES = (
    *("in deep snow", "in the rain", "on a cliff above the sea", "by a bakery door", "in a field of lavender"),
    *("in a narrow street", "on the moon", "under water", "in a birch forest", "at the edge of a desert", "on a roof"),
    *("in front of a stormy sky", "among ruins", "in an empty theatre", "at a night market", "in a flooded hall"),
    *("on a wooden table", "beside a frozen lake", "in a crowded train station", "between tall grass", "in space"),
    *("holding a lantern", "reading a letter", "wearing a long coat", "looking at the viewer", "playing the cello"),
)
PHRASES = (
    # medium
    *("oil painting", "watercolor on paper", "gouache", "charcoal drawing", "pencil sketch", "ink and wash", "linocut"),
    *("woodblock print", "fresco", "pastel", "35mm film photograph", "polaroid", "tilt-shift photograph", "etching"),
    *("digital painting", "3d render", "low poly model", "pixel art", "stained glass", "embroidery", "clay figurine"),
    # light
    *("golden hour", "soft light", "moonlight", "candlelight", "rim lighting", "volumetric light", "neon signs"),
    *("overcast sky", "warm light in the windows", "harsh flash", "long shadows", "backlit", "studio lighting"),
    *("light rays through the trees", "morning mist", "northern lights", "dramatic lighting", "low key"),
    # style
    *("art nouveau", "baroque", "bauhaus poster", "cyberpunk", "steampunk", "film noir", "impressionism", "ukiyo-e"),
    *("minimalist", "surrealism", "retro futurism", "gothic", "rococo", "solarpunk", "children's book illustration"),
    *("vintage travel poster", "dark fantasy", "comic book style", "isometric", "art deco", "brutalist architecture"),
    # picture
    *("shallow depth of field", "wide angle", "85mm lens", "bird's eye view", "rule of thirds", "symmetrical"),
    *("muted colors", "vivid colors", "black and white", "teal and orange", "pastel colors", "film grain", "bokeh"),
    *("fog over the hills", "cherry blossoms", "wet cobblestones", "stacked crates", "gulls in the sky", "fireflies"),
    *("ornate frame", "autumn leaves", "a distant lighthouse", "reflections on the water", "smoke and sparks"),
    # quality
    *("highly detailed", "intricate details", "sharp focus", "masterpiece", "best quality", "8k", "award winning"),
    *("trending", "professional", "hyper realistic", "ultra wide shot", "elegant composition", "high contrast"),
)


def made_prompts(count: int, seed: int = 0) -> list[str]:
    """Make different prompts of one line from word lists; of the same seed, a larger ``count`` adds more at the end.

    They have a subject, then phrases about the place, the medium, the light, the style and the quality, some with
    weights in A1111's syntax. The numbers of words follow a log-normal distribution cut off at both ends, as short
    prompts are common and long ones rare.
    """
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        found[_prompt(generator)] = None
    return list(found)


def _prompt(generator: random.Random) -> str:
    num_words = _num_words(generator)
    first = [generator.choice(PHRASES)] if generator.random() < PHRASE_FIRST else []
    subject = " ".join(generator.choice(words) for words in (OPENINGS, KINDS, SUBJECTS)).strip()
    if generator.random() < 0.6:
        subject += f" {generator.choice(PLACES)}"
    phrases: list[str] = []
    for phrase in (*first, subject, *(one for one in generator.sample(PHRASES, len(PHRASES)) if one not in first)):
        words = phrase.split()[:num_words]
        phrases.append(" ".join(words))
        num_words -= len(words)
        if not num_words:
            break
    if generator.random() < WEIGHTED_PROMPTS:
        phrases = [_weighted(phrase, generator) for phrase in phrases]
    return ", ".join(phrases)


def _num_words(generator: random.Random) -> int:
    while True:
        number = round(generator.lognormvariate(math.log(MEDIAN_WORDS), SPREAD))
        if FEWEST_WORDS <= number <= MOST_WORDS:
            return number


def _weighted(phrase: str, generator: random.Random) -> str:
    return generator.choice(WEIGHTS).format(phrase) if generator.random() < WEIGHTED_PHRASES else phrase
