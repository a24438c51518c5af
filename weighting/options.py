"""All options for encoding a prompt.

Each is declared once, with what nodes, command line, lab and WebUI say of it; see ``encoder/option.py``. Choices that
belong to a table of rules, such as `SCHEMES`, are listed there.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..encoder.option import Option, check_options, option, options_in
from .attention import WAYS, way_of
from .chunking import CHUNKINGS
from .normalization import NORMALIZATIONS
from .padding import PADDINGS
from .schemes import SCHEMES
from .schemes.blend import EMPHASES
from .schemes.repeat import FINEST_STEPS
from .syntax import SYNTAXES, syntax_of
from .text.tags import COMMENT_MARKS
from .timed.glides import GLIDES
from .timed.joining import JOINS

AS_HOST = "as the WebUI"
"""Choice of weights beyond CLIP as the WebUI has them."""
WAY_TEXTS = {
    "bias": "how much the picture attends to a word",
    "value": "how much it takes from a word",
    "krea2": "as KJNodes does in Krea 2",
}
CHUNKING_TEXTS = {
    "as syntax": "as the program of that syntax does",
    "a1111": "at 75 tokens or the last comma",
    "comfy segment": "between weighted parts",
    "comfy word": "between words",
    "compel sentences": "after a sentence, phrase or word",
    "compel phrases": "after a phrase or word",
    "compel words": "after a word",
    "compel brutal": "at 75 tokens, even within a word",
    "compel truncate": "tokens past 75 are dropped",
}


@dataclass(frozen=True)
class EncodeOptions:
    """All options for encoding a prompt.

    Raises:
        ValueError: If a choice is not allowed (the message lists the choices), or a number is out of range.
    """

    syntax: str = option(
        "comfy",
        "Syntax",
        "How weights are written.",
        help="how weights are written (%(default)s)",
        choices={name: syntax.summary.rstrip(".") for name, syntax in SYNTAXES.items()},
    )
    scheme: str = option(
        "comfy",
        "Scheme",
        "What a weight does.",
        help="what a weight does (%(default)s)",
        choices={name: scheme.short for name, scheme in SCHEMES.items()},
    )
    normalization: str = option("none", "Normalization", "How the weights are adjusted first.", choices=NORMALIZATIONS)
    chunking: str = option(
        "as syntax",
        "Chunking",
        "Where prompts over 75 tokens are cut.",
        choices={name: CHUNKING_TEXTS.get(name, "") for name in ("as syntax", *CHUNKINGS)},
    )
    padding: str = option("attend", "Padding", "How padding is treated.", choices=PADDINGS)
    pooled: str = option(
        "unweighted",
        text="The pooled vector, which SDXL uses and SD 1.5 does not.",
        choices={
            "unweighted": "",  # the first chunk's; under lerp_last the last one's
            "weighted": "schemes that blend encodings, such as masked_blend, blend it the same way",
            "raw text": "of the text as typed, as the compel library does",  # weights and brackets too, in one chunk
        },
    )
    law: str = option(
        "nested",
        "Law",
        "How several faded words share the result.",
        help="masked_blend: how faded words share the result",
        choices={
            "nested": "a word at 0 is gone, whatever the others weigh",
            "compel": "as the compel library: two words at 0 keep half each",
        },
    )
    mask_method: str = option(
        "attention",
        "Mask method",
        "How a faded word is removed.",
        help="masked_blend: how a faded word is removed",
        choices={
            "attention": "hidden from all tokens",
            "token": "replaced by the filler",
            "remove": "deleted; what follows moves up",
        },
    )
    filler: str = option(
        "+",
        text="With mask_method token: what replaces a faded token. Exactly one token, such as +",
        help="masked_blend, method token: replaces a faded token (%(default)s)",
    )
    comma_backtrack: int = option(
        20,
        text="When a chunk is full, cut at a comma at most this many tokens back. 0: cut at 75 tokens exactly.",
        help="for chunking a1111, in tokens (%(default)s)",
        metavar="N",
    )
    eos_rows: str = option(
        "own",
        text="State used for each chunk's EOS row.",
        help="state used for the EOS rows of long prompts",
        choices={
            "own": "its own",
            "first": "the first chunk's, compel's COPY_FIRST_CLS_TOKEN",
            "mean": "the mean of all chunks', compel's MERGE_CLS_TOKENS",
        },
    )
    quirks: bool = option(
        False,
        text="Chunk rule a1111: follow the program even where it loses an embedding's vectors.",
        help="chunking a1111: reproduce the WebUI's faults too",
    )
    hide: str = option(
        "",
        "Hide phrases",
        "Phrases of the prompt that other words cannot see, one per line. Case and weights do not matter.",
        is_lines=True,
    )
    hidden_from: str = option(
        "everything",
        "Hidden from",
        "Which tokens cannot see them.",
        choices={
            "everything": "no token sees them, not even themselves",
            "the phrases below": "only those phrases do not see them",
            "padding rows only": "only the rows after the prompt do not see them; the U-Net reads those rows too",
        },
    )
    from_phrases: str = option(
        "",
        "Hidden from these phrases",
        "With the phrases below: the phrases that cannot see the hidden ones, one per line.",
        is_lines=True,
    )
    is_causal: bool = option(
        True,
        text="On: a token sees only what comes before it, as CLIP was trained. Off: a token sees its whole chunk. CLIP "
        "never learned that, so expect odd pictures.",
    )
    bind: str = option(
        "",
        "Keep apart",
        "Phrases to keep apart, one per line. Case and weights do not matter.",
        help="keep it apart from the others; give it for each",
        is_lines=True,
        metavar="PHRASE",
    )
    bind_rest: str = option(
        "full",
        "All other words",
        "What all other words have read.",
        choices={"full": "every phrase, as always", "alone": "none of the phrases"},
    )
    bind_strength: float = option(
        1.0,
        "Strength",
        "How far apart: 1 fully, 0.5 halfway from the usual encoding as in Cutoff, 0 not at all.",
        help="how far apart, 0 to 1 (1)",
        minimum=0.0,
        maximum=1.0,
        step=0.05,
        metavar="S",
    )
    bind_hide: str = option(
        "whole phrases",
        "They hide from each other",
        "What the phrases hide from each other.",
        help="what phrases hide (%(default)s)",
        choices={
            "whole phrases": "all of their words",
            "these words": "only the words below",
            "cutoff": "as the extension Cutoff: phrases are the parts between commas, and _ replaces the words below",
        },
    )
    bind_words: str = option(
        "",
        "These words",
        "With hide at these words or cutoff: the words to hide, one per line or between commas, such as red.",
        help="--bind-hide these words, cutoff: hide it",
        is_lines=True,
        metavar="WORD",
    )
    binds_some: bool = option(
        False,
        text="Bind the phrases that occur in the text and report the missing ones, instead of refusing the prompt.",
    )
    cleaning: str = option(
        "as Forge",
        "Cleaning",
        "With syntax a1111: how the text is cleaned first.",
        help="syntax a1111: comments and curly quotes (%(default)s)",
        choices={
            "as Forge": "comments from # to the end of a line go, curly quotes become straight, &amp; becomes &",
            "none": "the text stays as it is",
        },
    )
    has_tags: bool = option(
        True, text="Remove tags such as <lora:name:0.8> in syntaxes that have them. Off: they are text."
    )
    finest_step: str = option(
        "auto",
        "Finest step",
        "With scheme repeat: the number of steps from weight 0 to 1. A row can only be repeated a whole number of "
        "times; more steps mean more rows and slower sampling.",
        help="repeat: steps from 0 to 1 (%(default)s)",
        choices=FINEST_STEPS,
    )
    strength: float = option(
        1.0, text="Scheme negpip: scale of the weights, each of which becomes 1 + strength (weight - 1)."
    )
    above_one: str = option(
        "as ComfyUI",
        "Above 1",
        "With scheme masked_blend: what weights above 1 do.",
        choices={
            "as ComfyUI": "they act as in the scheme comfy",
            "as the WebUI": "they act on the blended rows by the WebUI's own emphasis",
        },
    )
    emphasis: str = option(
        "Original", text="With above_one as the WebUI: the WebUI's Emphasis mode.", choices=tuple(EMPHASES)
    )
    strict: bool = option(
        False,
        text="Refuse what the program of that syntax refuses, instead of reporting a problem.",
        help="refuse what the program of that syntax refuses",
    )
    comments: str = option(
        "as syntax",
        "Comments",
        "What is left out as a comment.",
        help="what is a comment (%(default)s)",
        choices={
            "as syntax": "with syntax a1111 what cleaning says; otherwise nothing",
            "#": "from # to the end of a line",
            "//": "from // to the end of a line, and /* this */, as on ComfyUI's page",
            "# and //": "all of these",
        },
    )

    def __post_init__(self) -> None:
        check_options(self, OPTIONS)

    @property
    def comment_marks(self) -> tuple[str, ...]:
        """Marks of comments, which are left out."""
        has_mark = {"#": self.is_cleaned or self.comments.startswith("#"), "//": self.comments.endswith("//")}
        return tuple(mark for mark in COMMENT_MARKS if has_mark[mark])

    @property
    def binds(self) -> bool:
        """Whether phrases are bound."""
        what = self.bind_words if self.bind_hide == "cutoff" else self.bind
        return bool(what.strip()) and self.bind_strength > 0

    @property
    def drops_padding(self) -> bool:
        """Whether rows of padding are left out of the result."""
        return self.padding == "drop" or not SCHEMES[self.scheme].is_padded

    @property
    def is_cleaned(self) -> bool:
        """Whether comments are removed and text is repaired, including where the WebUI reads other syntaxes."""
        is_webui = syntax_of(self.syntax).is_cleaned or (self.syntax, self.chunking) == ("none", "a1111")
        return (is_webui or self.quirks) and self.cleaning == "as Forge"


OPTIONS: dict[str, Option] = options_in(EncodeOptions)
"""Declaration of each option, by name."""


@dataclass(frozen=True)
class PlaceOptions:
    """Options for sampling an image with an encoded prompt, for hosts without nodes."""

    places: str = option(
        "",
        "Places",
        "One phrase per line and where it acts: red cat: left half; also when and how much: red cat: left half, 0-0.4, "
        "outside 0.2",
        is_lines=True,
    )
    word_maps: bool = option(
        False, "Word maps", "Add a grid to the gallery that shows where each word was read. The picture stays the same."
    )
    attention: str = option(
        AS_HOST,
        "Beyond CLIP",
        "What weights do in Flux, Chroma and Stable Diffusion 3.5, where few schemes act.",
        choices={
            AS_HOST: "what they do without this script; in Flux the schemes compel and lpw act",
            **{rule: WAY_TEXTS.get(rule, "") for rule in WAYS if not SCHEMES[way_of(rule).scheme].is_weighing},
        },
    )
    attention_strength: float = option(
        1.0,
        "Strength of weights",
        "Each becomes 1 + strength (weight - 1).",
        minimum=0.0,
        maximum=2.0,
        step=0.05,
    )

    glides: str = option(
        GLIDES[0],
        "Glides",
        "Whether [cat:dog:0.2,0.8] goes from the one to the other over these parts of the steps, and (cat:0.5,1.5) "
        "from one weight to another.",
        choices={"off": "brackets and text, as in A1111", "prompt-fusion": "as in that extension"},
    )
    joins: str = option(
        JOINS[0],
        "Joins",
        "Whether AND_PERP, AND_SALT and AND_TOPK join prompts as AND does, and square brackets hold several.",
        choices={"AND": "no: they are text", "neutral-prompt": "as in that extension"},
    )

    def __post_init__(self) -> None:
        check_options(self, PLACE_OPTIONS)


PLACE_OPTIONS: dict[str, Option] = options_in(PlaceOptions)
"""Declaration of each of them, by name."""
