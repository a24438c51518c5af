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

AS_HOST = "as the WebUI"
"""Choice of weights beyond CLIP as the WebUI has them."""


@dataclass(frozen=True)
class EncodeOptions:
    """All options for encoding a prompt.

    Raises:
        ValueError: If a choice is not allowed (the message lists the choices), or a number is out of range.
    """

    syntax: str = option(
        "comfy",
        "Syntax",
        "How weights are written",
        help="how weights are written (%(default)s)",
        choices={name: syntax.summary for name, syntax in SYNTAXES.items()},
        called={name: syntax.summary.rstrip(".") for name, syntax in SYNTAXES.items()},
    )
    scheme: str = option(
        "comfy",
        "Scheme",
        "What a weight does",
        help="what a weight does (%(default)s)",
        choices={name: scheme.summary for name, scheme in SCHEMES.items()},
        called={name: scheme.short for name, scheme in SCHEMES.items()},
    )
    normalization: str = option(
        "none",
        "Normalization",
        "Changes the weights first",
        choices=NORMALIZATIONS,
        called={
            "none": "weights stay as typed",
            "mean": "shifted until they average 1",
            "length": "long words count no more than short",
            "length+mean": "first length, then mean",
        },
    )
    chunking: str = option(
        "as syntax",
        "Chunking",
        "Where long prompts are cut",
        "Where prompts over 75 tokens are cut. as syntax: as the program of that syntax does. a1111: at 75 tokens or "
        "the last comma. comfy segment, comfy word: between weighted segments, or between words.",
        choices=("as syntax", *CHUNKINGS),
        called={
            "as syntax": "as the program of that syntax",
            "a1111": "at 75 tokens or the last comma",
            "comfy segment": "between weighted parts",
            "comfy word": "between words",
            "compel sentences": "after a sentence, phrase or word",
            "compel phrases": "after a phrase or word",
            "compel words": "after a word",
            "compel brutal": "at 75 tokens, also in a word",
            "compel truncate": "what is over 75 tokens goes",
        },
    )
    padding: str = option(
        "attend",
        "Padding",
        "What becomes of it",
        "What the text encoder may see of the padding after a short prompt.",
        help="what becomes of padding",
        choices=PADDINGS,
        called={
            "attend": "words see it, as always",
            "mask": "no word sees it",
            "mask EOS too": "nor the end token",
            "drop": "the picture does not see it",
            "clean": "an empty prompt's in its place",
            "clean EOS too": "and in the end token's",
        },
    )
    pooled: str = option(
        "unweighted",
        tooltip="The pooled vector, which SDXL uses and SD 1.5 does not.",
        choices={
            "unweighted": "",  # that of the first chunk, under lerp_last of the last
            "weighted": "schemes that blend encodings, such as masked_blend, blend it the same way.",
            "raw text": "of the text as typed, as the compel library does.",  # weights and brackets too, in one chunk
        },
    )
    law: str = option(
        "nested",
        "Law",
        "How several faded words share the result",
        help="masked_blend: how faded words share the result",
        choices={
            "nested": "a word at 0 is gone, whatever the others weigh.",
            "compel": "as the compel library; two words at 0 each survive by half.",
        },
        called={"nested": "a word at 0 is gone", "compel": "two words at 0 each stay by half"},
    )
    mask_method: str = option(
        "attention",
        "Mask method",
        "What absent means",
        "What an absent word is.",
        help="masked_blend: what absent is",
        choices={
            "attention": "hidden from all tokens.",
            "token": "replaced by the filler.",
            "remove": "deleted, what follows moves up.",
        },
        called={
            "attention": "no word can see it",
            "token": "another token in its place",
            "remove": "the prompt without it",
        },
    )
    filler: str = option(
        "+",
        tooltip="With mask_method token: what stands in for an absent token. Exactly one token, such as +",
        help="masked_blend, method token: stands in for an absent token (%(default)s)",
    )
    comma_backtrack: int = option(
        20,
        tooltip="When a chunk is full, cut at a comma at most this many tokens back. 0: cut at 75 tokens exactly.",
        help="for chunking a1111, in tokens (%(default)s)",
        metavar="N",
    )
    eos_rows: str = option(
        "own",
        tooltip="What stands in the row of each chunk's first EOS.",
        help="what stands in the EOS rows of long prompts",
        choices={
            "own": "its own state.",
            "first": "the first chunk's, compel's COPY_FIRST_CLS_TOKEN.",
            "mean": "the mean of all, compel's MERGE_CLS_TOKENS.",
        },
    )
    quirks: bool = option(
        False,
        tooltip="Chunk rule a1111: follow the program even where that loses an embedding's vectors.",
        help="chunking a1111: reproduce the WebUI where it is wrong",
    )
    hide: str = option(
        "",
        "Hide phrases",
        "One per line: these words stay, but others do not see them; then more choices appear",
        "Phrases of the prompt to hide, one per line, in any case and whatever their weight.",
        is_lines=True,
    )
    hidden_from: str = option(
        "everything",
        "Hidden from",
        "Who shall not see them",
        "Who may not see them.",
        choices={
            "everything": "no token, not even themselves.",
            "the phrases below": "only those.",
            "padding rows only": "the rows behind the prompt, which the U-Net reads too.",
        },
        called={
            "everything": "no word sees them",
            "the phrases below": "only those do not see them",
            "padding rows only": "only what stands behind the prompt",
        },
    )
    from_phrases: str = option(
        "",
        "Hidden from these phrases",
        "One a line",
        "With the phrases below: the ones that may not see the hidden phrases, one per line.",
        is_lines=True,
    )
    is_causal: bool = option(
        True,
        tooltip="On: a token sees only what comes before it, as CLIP was trained. Off: all of its chunk. CLIP never "
        "learned that, so expect odd pictures.",
    )
    bind: str = option(
        "",
        "Keep apart",
        "Phrases that shall not mix, one per line; then more choices appear",
        "Phrases of the prompt to keep apart, one per line, in any case and whatever their weight.",
        help="keep it apart from the others; give it for each",
        is_lines=True,
        metavar="PHRASE",
    )
    bind_rest: str = option(
        "full",
        "All other words",
        "What they have read",
        "What all other words have read.",
        help="what all other words have read",
        choices={"full": "every phrase, as always.", "alone": "none of them."},
        called={"full": "have read every phrase, as always", "alone": "have read none of them"},
    )
    bind_strength: float = option(
        1.0,
        "Strength",
        "1: wholly apart; 0: not at all; Cutoff has 0.5",
        "1: the phrases are kept apart. 0.5: half way from the usual encoding. 0: not at all.",
        help="how far apart, 0 to 1 (1)",
        least=0.0,
        most=1.0,
        step=0.05,
        metavar="S",
    )
    bind_hide: str = option(
        "whole phrases",
        "They hide from each other",
        "What of them",
        "What phrases hide from each other.",
        help="what phrases hide (%(default)s)",
        choices={
            "whole phrases": "all of their words.",
            "these words": "only those of the words below that are in them.",
            "cutoff": "as the extension Cutoff; phrases are then the parts between commas, and _ replaces the words "
            "below. Its own strength is 0.5.",
        },
        called={
            "whole phrases": "all of their words",
            "these words": "only the words below",
            "cutoff": "as the extension: only the words below count",
        },
    )
    bind_words: str = option(
        "",
        "These words",
        "One a line, such as red",
        "With hide at these words or cutoff: the words to hide, one per line or between commas, such as red.",
        help="--bind-hide these words, cutoff: hide it",
        is_lines=True,
        metavar="WORD",
    )
    binds_some: bool = option(
        False,
        tooltip="Bind the phrases that occur in the text and report the missing ones, instead of refusing the prompt.",
    )
    cleaning: str = option(
        "as Forge",
        "Cleaning",
        "a1111: comments, quotes",
        "With syntax a1111:",
        help="syntax a1111: comments and curly quotes (%(default)s)",
        choices={
            "as Forge": "# starts a comment to the end of its line, curly quotes become straight ones, &amp; becomes "
            "&.",
            "none": "the text stays as it is.",
        },
        called={"as Forge": "comments go, curly quotes become straight", "none": "the text stays as it is"},
    )
    has_tags: bool = option(
        True, tooltip="Remove tags such as <lora:name:0.8> in syntaxes that have them. Off: they are text."
    )
    finest_step: str = option(
        "auto",
        "Finest step",
        "Steps of a weight from 0 to 1",
        "With scheme repeat: how many steps there are from weight 0 to 1, because a row can only be repeated a whole "
        "number of times. auto: the fewest that fit the weights. 1: whole weights only. More steps mean more rows and "
        "slower sampling.",
        help="repeat: steps from 0 to 1 (%(default)s)",
        choices=FINEST_STEPS,
        called={
            "auto": "the fewest that fit the weights",
            "1": "0, 1, 2 …",
            "2": "0, 0.5, 1 …",
            "4": "0, 0.25, 0.5 …",
            "8": "0, 0.125, 0.25 …",
            "10": "0, 0.1, 0.2 …",
        },
    )
    strength: float = option(
        1.0, tooltip="Scheme negpip: scale of weights, each of which becomes 1 + strength (weight - 1)."
    )
    above_one: str = option(
        "as ComfyUI",
        "Above 1",
        "What weights above 1 do",
        "With scheme masked_blend: what weights above 1 do.",
        choices={
            "as ComfyUI": "they act as in the scheme comfy.",
            "as the WebUI": "they act on the blended rows by the WebUI's own emphasis.",
        },
        called={"as ComfyUI": "stronger words as in ComfyUI", "as the WebUI": "stronger words as without this script"},
    )
    emphasis: str = option(
        "Original", tooltip="With above_one as the WebUI: its setting Emphasis mode.", choices=EMPHASES
    )
    strict: bool = option(
        False,
        tooltip="Refuse what the program of that syntax refuses, instead of reporting a problem.",
        help="refuse what the program of that syntax refuses",
    )

    def __post_init__(self) -> None:
        check_options(self, OPTIONS)

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
        "One phrase per line and where it acts: red cat: left half. Also when and how much: red cat: left half, 0-0.4, "
        "outside 0.2",
        is_lines=True,
    )
    word_maps: bool = option(
        False, "Word maps", "Add a grid to the gallery that shows where each word was read; the picture stays the same"
    )
    attention: str = option(
        AS_HOST,
        "Beyond CLIP",
        "What weights do in Flux, Chroma and Stable Diffusion 3.5, where the scheme cannot act",
        choices={
            AS_HOST: "what they do without this script.",
            **{way: "" for way in WAYS if not SCHEMES[way_of(way).scheme].is_weighing},
        },
        called={
            AS_HOST: "what they do without this script",
            "bias": "how much the picture attends to a word",
            "value": "how much it takes of it",
            "krea2": "as KJNodes does in Krea 2",
        },
    )
    attention_strength: float = option(
        1.0,
        "Strength of weights",
        "Each becomes 1 + strength (weight - 1)",
        least=0.0,
        most=2.0,
        step=0.05,
    )

    def __post_init__(self) -> None:
        check_options(self, PLACE_OPTIONS)


PLACE_OPTIONS: dict[str, Option] = options_in(PlaceOptions)
"""Declaration of each of them, by name."""
