"""Prompts made from word lists by a seeded generator, for measurements on many prompts.

They have a subject, then phrases about the place, the medium, the light, the style and the quality, some with weights
in A1111's syntax. The numbers of words follow a log-normal distribution cut off at both ends, as short prompts are
common and long ones rare.
"""

from __future__ import annotations

import math
import random

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
    """Make different prompts.

    Args:
        count: Number of prompts.
        seed: Seed; the same one gives the same prompts, of which a larger ``count`` adds more at the end.

    Returns:
        The prompts, each of one line.
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
