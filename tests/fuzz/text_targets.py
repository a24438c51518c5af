"""Targets that read text: each raises only documented errors and checks what must hold for any prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from weighted_clip.encoder.tokenizer import CleaningTokenize, default_tokenizer, without_surrogates
from weighted_clip.hosts.comfy.a1111.comments import text_of_comment
from weighted_clip.weighting.infotext import read_infotext
from weighted_clip.weighting.infotext.record import MAX_PROBLEMS
from weighted_clip.weighting.options import OPTIONS, EncodeOptions
from weighted_clip.weighting.phrases.words import names_in, words_of
from weighted_clip.weighting.placing.areas import read_area, read_where
from weighted_clip.weighting.placing.places import read_places
from weighted_clip.weighting.reading.convert import TARGETS, convert
from weighted_clip.weighting.reading.prompt_reader import MAX_ISSUES, read_prompt
from weighted_clip.weighting.reading.timed_view import read_standing, standing_texts, timed_view
from weighted_clip.weighting.reading.view import token_table, view
from weighted_clip.weighting.schemes.scheme import all_places
from weighted_clip.weighting.syntax import SYNTAXES, parse
from weighted_clip.weighting.text.chunks import ChunkLayout, tokens_by_part
from weighted_clip.weighting.text.embeddings import EmbeddingError
from weighted_clip.weighting.text.prompt import Break, Issue, Prompt, PromptError
from weighted_clip.weighting.text.tags import bare, read_loras, take_tags
from weighted_clip.weighting.text.weights import MAX_WEIGHT
from weighted_clip.weighting.timed.editing import edits_of, mixture_at, read_editing
from weighted_clip.weighting.timed.schedule import COUNTERS, MAX_STEPS, read_timed, schedule, split_and

from .drawing import Draw

TOKENIZE = default_tokenizer()
STEPS = (1, 2, 20, 77, 1000, MAX_STEPS)
VECTORS = {"style": 1, "a": 2, "bad hands": 3, "ha nd": 80, "embedding": 1, "猫": 1, ",": 1, "x" * 200: 1}
LAYOUTS = (ChunkLayout(), ChunkLayout(pad_id=0), ChunkLayout(length=3), ChunkLayout(length=9), ChunkLayout(length=248))
CHOICES: dict[str, Sequence[Any]] = {
    "comma_backtrack": (20, 0, 1, 74),
    **{
        name: OPTIONS[name].choices
        for name in ("syntax", "scheme", "normalization", "chunking", "padding", "eos_rows", "hidden_from", "cleaning")
    },
}


class Embeddings:
    """Some names with vectors, one that cannot be used, and one whose file has gone."""

    def names(self) -> list[str]:
        return [*VECTORS, "broken", "gone"]

    def find(self, name: str) -> list[str] | None:
        if name == "broken":
            raise EmbeddingError("The embedding “broken” cannot be used.")
        return [f"{name}[{index}]" for index in range(VECTORS[name])] if name in VECTORS else None


def syntax(data: bytes) -> None:
    draw = Draw(data)
    name, strict = draw.pick(list(SYNTAXES)), draw.flag()
    text = draw.rest()
    try:
        prompt = parse(text, name, strict=strict)
    except PromptError as error:
        assert strict
        assert str(error)
        prompt = parse(text, name)
        assert prompt.issues
    check_prompt(prompt, text)


def check_prompt(prompt: Prompt, text: str) -> None:
    """Spans tile the text, and every fragment has its weight."""
    spans = [*prompt.marks]
    for part in prompt.parts:
        if isinstance(part, Break):
            spans.append(part.span)
            assert text[slice(*part.span)] == "BREAK"
        else:
            spans += [piece.span for piece in part.pieces if piece.span.end > piece.span.start]
            # a piece is in the text, or a space that a syntax puts between words
            assert all(piece.text in (text[slice(*piece.span)], " ") for piece in part.pieces)
            assert len(part.positions) == len(part.text)
            assert isinstance(part.weight, float)
    position = 0
    for span in sorted(spans):
        assert span.start == position, (span, position)
        position = span.end
    assert position == len(text)
    check_issues(prompt.issues, len(text))


def check_issues(issues: Sequence[Issue], length: int) -> None:
    for issue in issues:
        assert issue.message
        assert 0 <= issue.span.start <= issue.span.end <= length, issue


def tags(data: bytes) -> None:
    text = Draw(data).rest()
    left, found = take_tags(text)
    assert all(text[slice(*piece.span)] == piece.text for piece in left.pieces)
    assert all(text[tag.span.start] + text[tag.span.end - 1] == "<>" for tag in found)
    assert len(left.text) + sum(tag.span.end - tag.span.start for tag in found) == len(text)
    loras, issues = read_loras(found)
    assert all(math.isfinite(lora.clip_strength) and math.isfinite(lora.model_strength) for lora in loras)
    check_issues(issues, len(text))


def timed(data: bytes) -> None:
    """Edits, alternations and ANDs through all steps, and every text read for the ruler."""
    draw = Draw(data)
    steps, counter, is_viewed = draw.pick(STEPS), draw.pick(COUNTERS), draw.flag()
    old_rule, hires = draw.flag(), draw.pick([None, 1, 20])
    text = draw.rest()
    parts = read_editing(text).parts
    ends = [0, *(part[1] if len(part) == 2 and isinstance(part[0], int) else part.span.end for part in parts)]
    assert ends == sorted(ends)
    assert ends[-1] == len(text)
    try:
        prompt = read_timed(text, steps)
        schedule(text, steps, hires_steps=hires, old_rule=old_rule)
    except ValueError as error:
        assert "too many" in str(error) or "all together" in str(error), error
        return
    assert all(abs(branch.weight) <= MAX_WEIGHT for branch in prompt.branches)
    for branch in prompt.branches:
        last_steps = [standing.last_step for standing in branch.texts]
        assert last_steps == sorted(set(last_steps))
        assert last_steps[-1] == steps
        for standing in branch.texts[:5]:
            assert all(text[slice(*piece.span)] == piece.text for piece in standing.fragment.pieces)
    check_issues(prompt.issues, len(text))
    if is_viewed and steps <= 20:
        options = EncodeOptions(syntax="a1111")
        texts = standing_texts(prompt, steps, counter)
        for read in read_standing(prompt, texts, lambda one: read_prompt(one, options, TOKENIZE))[:20]:
            assert json.dumps(timed_view(read))
            check_issues(read.read.issues, len(text))
    assert len(mixture_at(parts, 1, dict.fromkeys((edit.span for edit in edits_of(parts)), 1))[0][1]) <= len(text) + 1


def tokenizer(data: bytes) -> None:
    text = Draw(data).rest()
    tokens = TOKENIZE(text)
    assert tokens == TOKENIZE(without_surrogates(text))
    assert all(0 <= token.id < TOKENIZE.vocab_size for token in tokens)
    starts = [token.start for token in tokens]
    assert starts == sorted(starts)
    assert all(0 <= token.start <= token.end <= len(text) for token in tokens)


def reading(data: bytes) -> None:
    """`read_prompt` with every option, embeddings and odd layouts, and the two views of what it read."""
    draw = Draw(data)
    chosen = {name: draw.pick(some) for name, some in CHOICES.items()}
    flags = {name: draw.flag() for name in ("quirks", "is_causal", "strict")}
    layout, embeddings = draw.pick(LAYOUTS), draw.pick([None, Embeddings()])
    options = EncodeOptions(**chosen, **flags, hide=draw.text(40), from_phrases=draw.text(40))
    text = draw.rest()
    try:
        read = read_prompt(text, options, TOKENIZE, layout, embeddings=embeddings)
    except PromptError:
        assert options.strict
        return
    except ValueError as error:
        assert options.comma_backtrack >= layout.capacity, error
        return
    assert read.chunks
    for chunk in read.chunks:
        assert len(chunk.tokens) == layout.length
        assert chunk.num_content <= layout.capacity
        assert all(math.isfinite(token.weight) and abs(token.weight) <= MAX_WEIGHT for token in chunk.tokens)
    found = bare(text, has_comments=options.is_cleaned, has_tags=options.syntax == "a1111")
    if not found.spans:  # around what was taken out, a piece takes the gap in
        check_prompt(read.prompt, text)
    check_issues(read.issues, len(text))
    assert len(read.issues) <= MAX_ISSUES + 2
    seen = view(read)
    assert json.loads(json.dumps(seen, allow_nan=False)) == seen
    units = len(text.encode("utf-16-le", "surrogatepass")) // 2
    for chip in (chip for chunk in seen["chunks"] for chip in chunk["chips"]):
        assert 0 <= chip["start"] <= chip["end"] <= units
    assert token_table(read)


def conversion(data: bytes) -> None:
    """The result of a conversion can be read, and is the same if nothing is reported as lost."""
    draw = Draw(data)
    source, target = draw.pick(list(SYNTAXES)), draw.pick(TARGETS)
    text = draw.rest()
    result = convert(text, source, target, TOKENIZE)
    check_issues(result.issues, len(text))
    if source == target:
        assert result.text == text
        return
    loras, left = _loras(text, source)
    their_loras, written = _loras(result.text, target)
    check_prompt(parse(written, target), written)
    if any(issue.code == "not-expressible" for issue in result.issues):
        return
    ours, theirs = _tokens(left, source), _tokens(written, target)
    assert [token_id for token_id, _ in ours] == [token_id for token_id, _ in theirs], result
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6) for (_, a), (_, b) in zip(ours, theirs, strict=True))
    assert len(loras) == len(their_loras), result
    if target == "a1111":  # what was text is no command there
        assert not edits_of(read_editing(written).parts), result
        assert [part.weight_span for part in split_and(written)] == [None], result


def places(data: bytes) -> None:
    """Lines, areas and phrases as typed; each name of a prompt's words is found among them."""
    draw = Draw(data)
    line, area, phrase = draw.text(40), draw.text(20), draw.text(20)
    syntax = draw.pick(["comfy", "a1111"])
    text = draw.rest()
    for read, typed in ((read_places, line), (read_area, area), (read_where, area)):
        try:
            read(typed)
        except ValueError as error:
            assert 0 < len(str(error)) < 1000
    options = EncodeOptions(syntax=syntax, bind=phrase, hide=phrase)
    prompt = read_prompt(text, options, TOKENIZE, embeddings=Embeddings())
    words = words_of(prompt.prompt.parts, prompt.chunks, all_places(len(prompt.chunks), prompt.layout.length))
    assert set(words.rows_of(phrase)) <= set(range(len(words.rows)))
    assert all(words.numbers_of(name) for name in names_in([words]))


def _loras(text: str, name: str) -> tuple[list[Any], str]:
    """The LoRAs that a program finds in a prompt, and what is left of it."""
    if name == "a1111":
        found = bare(text, has_comments=True, has_tags=True)
        return read_loras(found.tags)[0], found.fragment.text
    return list(parse(text, name).loras), text


def _tokens(text: str, name: str) -> list[tuple[object, float]]:
    tokenize = CleaningTokenize(TOKENIZE) if name == "a1111" else TOKENIZE
    return [(token.id, token.weight) for part in tokens_by_part(parse(text, name), tokenize) for token in part or ()]


INFOTEXT_WORDS = (
    *(
        "Steps: 20",
        "Sampler: Euler a",
        "Seed: 7",
        "Size: 8x8",
        "width: 8",
        "height: 8",
        "cfgScale: 7",
        "a",
        "猫",
        "(red:1.2)",
    ),
    *(
        ", ",
        "\n",
        "\r\n",
        ". ",
        ": ",
        ":",
        '"',
        "\\",
        "Negative prompt: ",
        "Prompt: ",
        "Template: ",
        "Negative Template: ",
    ),
    *(
        "Civitai resources: ",
        "Hashes: ",
        "[1, 2]",
        '{"a": [',
        "}",
        "]",
        "Dream",
        "k_euler_karras",
        "x" * 70,
        "\x00",
        "：",
    ),
)
JSON_KEYS = (
    *(
        "prompt",
        "negative_prompt",
        "uc",
        "c",
        "steps",
        "seed",
        "cfgScale",
        "sampler",
        "items",
        "meta",
        "image",
        "model",
    ),
    *("Software", "Comment", "Description", "Dream", "sui_image_params", "positive_prompt", "clip_skip", "performance"),
    *("resolution", "width", "height", "num_inference_steps", "use_stable_diffusion_model", "class_type", "inputs"),
    *("positive", "text", "model_weights", "resources"),
)


def generation_data(data: bytes) -> None:
    """Texts, JSON and comments as generation data: all is read, and what is said of it is short."""
    draw = Draw(data)
    kind = draw.number(3)
    if kind == 0:
        text = "".join(draw.pick(INFOTEXT_WORDS) for _ in range(draw.number(60))) + draw.rest()
    elif kind == 1:
        text = json.dumps({draw.pick(JSON_KEYS): draw.value() for _ in range(draw.number(8))})
    elif kind == 2:
        nodes = {str(i): {"class_type": draw.value(), "inputs": _inputs(draw)} for i in range(draw.number(4))}
        text = json.dumps(nodes)
    else:
        text = text_of_comment(
            draw.pick((b"", b"UNICODE\0", b"ASCII\0\0\0", b"JIS\0\0\0\0\0")) + draw.rest().encode("utf-8", "replace")
        )
    read = read_infotext(text)
    assert all(isinstance(value, str) for pair in read.settings.items() for value in pair)
    assert len(read.prompt) + len(read.negative) <= len(text)
    assert len(read.problems) <= MAX_PROBLEMS + 1
    assert all(0 < len(problem) < 1000 for problem in read.problems)
    if read.settings and not read.prompt.strip():
        assert any("prompt is empty" in problem for problem in read.problems)


def _inputs(draw: Draw) -> dict[str, Any]:
    names = (
        "steps",
        "seed",
        "positive",
        "negative",
        "text",
        "conditioning",
        "ckpt_name",
        "width",
        "height",
        "batch_size",
    )
    return {draw.pick(names): draw.pick(([str(draw.number(4)), 0], draw.value())) for _ in range(draw.number(6))}


assert set(CHOICES) <= {field.name for field in fields(EncodeOptions)}
TEXT_TARGETS = {
    "syntax": syntax,
    "tags": tags,
    "timed": timed,
    "tokenizer": tokenizer,
    "reading": reading,
    "conversion": conversion,
    "generation data": generation_data,
    "places": places,
}
