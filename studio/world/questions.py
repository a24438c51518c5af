"""Questions that are put to the small worlds: their prompts, ways of weighting and placing them, and weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...weighting.attention import WAYS
from ...weighting.padding import PADDINGS
from ...weighting.schemes import SCHEMES
from .model import (
    World,
)
from .scenes import KINDS, TEXTURES, Scene, random_scene
from .watched_maps import (
    COARSE,
    EARLY,
    FINE,
    LATE,
    Selection,
)

WEIGHTS = (-1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
FEW_WEIGHTS = (0.0, 0.5, 1.0, 1.5)
SEEDS = 8
"""Pictures of each prompt at each weight, at most."""


class Places(NamedTuple):
    """Places of the things, in their order."""

    of: str
    """Parts of a text that have them: ``phrases`` of the caption, by Place Phrase; ``regions``, each thing's words read
    alone, by Regional Prompt; or ``predictions``, by Conditioning (Set Mask)."""
    areas: tuple[str, ...] = ("left half", "right half")
    """Areas; together they fill the picture."""
    until: float = 1.0
    """Part of the steps after which the caption is read everywhere."""
    blend: bool = False
    """Whether all regions are read everywhere in every second block, where text and picture share an attention."""


class Way(NamedTuple):
    """A way of weighting, or of placing."""

    name: str
    options: Mapping[str, Any] = {}
    """Fields of `EncodeOptions`."""
    how: str = ""
    """Attention Weights's way, for weights that act in the U-Net."""
    binds: bool = False
    """Whether the phrases of the prompt are bound."""
    places: Places | None = None
    """Places of the things; the weight is that of their phrases inside."""
    maps: Selection | None = None
    """Word maps that are compared with the things, instead of judging the pictures."""


class Question(NamedTuple):
    """Prompts and weights by which ways are compared."""

    name: str
    title: str
    ways: tuple[Way, ...]
    weights: tuple[float, ...] = FEW_WEIGHTS
    part: str = "phrase"
    """Part of a thing's words that is weighted: ``phrase``, ``color`` or ``kind``; none where things are placed."""
    num_things: int = 2
    num_prompts: int = 13
    """Prompts, of ``num_seeds`` pictures each."""
    num_seeds: int = SEEDS
    answers: tuple[str, ...] = ("present", "right", "others", "leaked", "sureness", "moved", "area")
    """Names of the answers that are told."""
    kinds: tuple[str, ...] = KINDS
    """Kinds of its things."""
    num_skipped: int = 0
    """First prompts that are left out."""
    sitting: Callable[[Any, Question], Any] | None = None
    """Makes and judges its pictures; None for `Sitting`."""

    @property
    def prompts(self) -> list[Prompt]:
        """Prompts about things of different colours; the weighted one is the first, and every other time the last."""
        rng = random.Random(f"{self.num_things}/prompts")
        choices = {"colors_differ": True, "kinds": self.kinds}
        scenes = [random_scene(rng, self.num_things, **choices) for _ in range(self.num_skipped + self.num_prompts)]
        prompts = [Prompt(scene, -(index % 2) % self.num_things) for index, scene in enumerate(scenes)]
        return prompts[self.num_skipped :]


class Prompt(NamedTuple):
    """A scene, and the number of the thing in it whose words are weighted."""

    scene: Scene
    target: int

    def text(self, weight: float = 1.0, part: str = "phrase") -> str:
        """The caption with a weight, in ComfyUI's syntax."""
        if not part:
            return self.scene.caption
        phrases = [thing.phrase for thing in self.scene.things]
        thing = self.scene.things[self.target]
        word = getattr(thing, part)
        phrases[self.target] = thing.phrase.replace(word, f"({word}:{weight:g})")
        return " and ".join(phrases)


JOINT_HOWS = tuple(name for name, way in WAYS.items() if not SCHEMES[way.scheme].is_weighing)
"""Ways of Attention Weights in the joint world."""
EVERY_WAY = (
    *(Way(name, {"scheme": name}) for name in SCHEMES),
    *(Way(f"attention {how}", how=how) for how in WAYS),
)
"""Every scheme, and every way of Attention Weights."""
_NAMED = {way.name: way for way in EVERY_WAY}
FEW_WAYS = tuple(_NAMED[name] for name in ("comfy", "compel", "masked_blend", "attention bias"))
SOME_WAYS = (*FEW_WAYS, _NAMED["a1111"], _NAMED["attention value"])
"""Ways in charts, grids and smaller tables."""
ABSENCES = tuple(
    Way(f"{law} {method}", {"scheme": "masked_blend", "law": law, "mask_method": method})
    for law in ("nested", "compel")
    for method in ("attention", "token", "remove")
)
KEPT_APART = (
    Way("as always"),
    Way("bind", binds=True),
    Way("bind, rest alone", {"bind_rest": "alone"}, binds=True),
    Way("bind, colours alone", {"bind_hide": "these words"}, binds=True),
    Way("Cutoff", {"bind_hide": "cutoff"}, binds=True),
)
PHRASES, REGIONS = Places("phrases"), Places("regions")
PLACED_PADDINGS = ("attend", "drop", "clean EOS too")
CHANGED: Mapping[str, Mapping[str, Any]] = {
    "soft edges": {"areas": ("left half ~0.25", "right half ~0.25")},
    "first 40 %": {"until": 0.4},
}
"""Other places, by name."""
PLACED_ANSWERS = ("placed", "present", "kinds")
WORDS_OF = {"color": "colour", "kind": "kind", "article": "a"}
"""Names of the words whose maps are compared, by part of the phrase."""
SELECTED: Mapping[str, Mapping[str, str]] = {
    "all": {},
    "8 by 8": {"layers": FINE},
    "4 by 4": {"layers": COARSE},
    "first half": {"steps": EARLY},
    "second half": {"steps": LATE},
}
"""Layers, by their cells, or steps whose maps are compared."""
# questions of both worlds, whose ways differ
_PLACED = Question(
    "places",
    "Each phrase placed in its half, by its weight inside",
    (),
    (1.0, 2.0, 4.0, 10.0),
    "",
    num_prompts=38,
    answers=PLACED_ANSWERS,
)
_IN_HALVES = Question(
    "regions", "Prompts of their own in each half", (), (1.0,), "", num_prompts=38, answers=PLACED_ANSWERS
)
_MAPPED = Question(
    "maps",
    "Maps of words",
    (),
    (1.0,),
    "",
    num_prompts=38,
    answers=("favoured", "inside", "covered", "distance", "blank"),
)
_MAPPED_BY_WEIGHT = Question("maps weighted", "A colour word by its weight", (), part="color", answers=("read",))
QUESTIONS = (
    Question("phrase", "A whole phrase of two", EVERY_WAY, WEIGHTS, num_prompts=25),
    Question("color", "A colour word", SOME_WAYS, part="color"),
    Question("kind", "A kind word", SOME_WAYS, part="kind"),
    Question("one", "The only phrase", SOME_WAYS, num_things=1),
    Question("three", "A phrase of three", SOME_WAYS, num_things=3),
    Question("absence", "masked_blend: law and mask method", ABSENCES),
    Question("padding", "Padding", tuple(Way(name, {"padding": name}) for name in PADDINGS)),
    Question(
        "apart",
        "Phrases kept apart, and causality",
        (*KEPT_APART, Way("not causal", {"is_causal": False})),
        (1.0,),
        num_prompts=25,
    ),
    *(
        Question(
            f"{name} apart",
            f"{name.title()} phrases kept apart",
            KEPT_APART,
            (1.0,),
            num_things=number,
            answers=("present", "kinds", "leaked"),
        )
        for name, number in (("three", 3), ("four", 4))
    ),
    _PLACED._replace(
        ways=(
            *(Way(f"padding {name}", {"padding": name}, places=PHRASES) for name in PLACED_PADDINGS),
            *(Way(name, {"padding": "drop"}, places=PHRASES._replace(**changed)) for name, changed in CHANGED.items()),
        )
    ),
    _IN_HALVES._replace(
        ways=(
            *(Way(f"nothing, {name}", {"padding": name}) for name in PLACED_PADDINGS),
            *(Way(f"regions, {name}", {"padding": name}, places=REGIONS) for name in PLACED_PADDINGS),
            *(
                Way(f"regions, drop, {name}", {"padding": "drop"}, places=REGIONS._replace(**changed))
                for name, changed in CHANGED.items()
            ),
            *(Way(f"Set Mask, {name}", {"padding": name}, places=Places("predictions")) for name in PLACED_PADDINGS),
        )
    ),
    _MAPPED._replace(
        ways=tuple(
            Way(f"{name}, {said}", maps=Selection(part, **chosen))
            for part, name in WORDS_OF.items()
            for said, chosen in SELECTED.items()
        )
    ),
    Question(
        "maps apart",
        "Maps of words that are kept apart",
        tuple(
            way._replace(name=f"{name}, {way.name}", maps=Selection(part))
            for way in (
                *KEPT_APART[:2],
                Way("padding drop", {"padding": "drop"}),
                Way("placed, drop", {"padding": "drop"}, places=PHRASES),
                Way("regions, drop", {"padding": "drop"}, places=REGIONS),
            )
            for part, name in WORDS_OF.items()
            if part != "article"
        ),
        (4.0,),
        "",
        num_prompts=38,
        answers=("favoured", "inside", "covered", "distance", "own_half"),
    ),
    _MAPPED_BY_WEIGHT._replace(
        ways=tuple(
            way._replace(maps=Selection("color")) for way in (_NAMED["comfy"], *(way for way in SOME_WAYS if way.how))
        )
    ),
)
"""The whole measurement."""
QUICK = (Question("quick", "A whole phrase of two", FEW_WAYS, num_prompts=6),)
"""A table within two minutes."""
JOINT_WAYS = (
    Way("rows as of T5", {"scheme": "comfy"}),
    Way("rows scaled", {"scheme": "scaled"}),
    *(_NAMED[f"attention {how}"] for how in JOINT_HOWS),
)
"""Every way of weighting in the joint world."""
FEW_JOINT_WAYS = tuple(way for way in JOINT_WAYS if way.name in ("rows as of T5", "attention bias", "attention value"))
_JOINT_CHANGED: Mapping[str, Mapping[str, Any]] = {"all": {}, **CHANGED}
JOINT_QUESTIONS = tuple(
    question._replace(kinds=tuple(TEXTURES))
    for question in (
        Question("phrase", "A whole phrase of two", JOINT_WAYS, WEIGHTS, num_prompts=25),
        Question("color", "A colour word", FEW_JOINT_WAYS, part="color"),
        Question("kind", "A texture word", FEW_JOINT_WAYS, part="kind"),
        Question("one", "The only phrase", FEW_JOINT_WAYS, num_things=1),
        Question("three", "A phrase of three", FEW_JOINT_WAYS, num_things=3),
        _PLACED._replace(
            ways=tuple(Way(name, places=PHRASES._replace(**changed)) for name, changed in _JOINT_CHANGED.items())
        ),
        _IN_HALVES._replace(
            ways=(
                Way("nothing"),
                *(
                    Way(f"regions, {name}", places=REGIONS._replace(**changed))
                    for name, changed in {**_JOINT_CHANGED, "every other block": {"blend": True}}.items()
                ),
                Way("Set Mask", places=Places("predictions")),
            )
        ),
        _MAPPED._replace(
            ways=tuple(
                Way(f"{name}, {said}", maps=Selection(part, **chosen))
                for part, name in {**WORDS_OF, "kind": "texture"}.items()
                for said, chosen in SELECTED.items()
                if "layers" not in chosen
            )
        ),
        _MAPPED_BY_WEIGHT._replace(ways=tuple(way._replace(maps=Selection("color")) for way in FEW_JOINT_WAYS)),
    )
)
"""The whole measurement in the joint world."""
JOINT_QUICK = (Question("quick", "A whole phrase of two", FEW_JOINT_WAYS, num_prompts=6, kinds=tuple(TEXTURES)),)


def questions_of(
    world: World, *, is_quick: bool, max_prompts: int | None = None, num_seeds: int = SEEDS
) -> tuple[Question, ...]:
    """The measurement of a kind of world, with at most so many prompts of each question, and pictures of each."""
    questions = {"unet": (QUESTIONS, QUICK), "joint": (JOINT_QUESTIONS, JOINT_QUICK)}[world.name][is_quick]
    return limited(questions, max_prompts, num_seeds)


def limited(questions: Sequence[Question], max_prompts: int | None, num_seeds: int) -> tuple[Question, ...]:
    """Questions with at most so many prompts of each, and pictures of each prompt."""
    return tuple(
        question._replace(
            num_prompts=min(question.num_prompts, max_prompts or question.num_prompts), num_seeds=num_seeds
        )
        for question in questions
    )
