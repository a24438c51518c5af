"""Texts that ``bench`` times: their tokens, what they have in common, their lengths and weights."""

from __future__ import annotations

import pytest
from weighted_clip.encoder.prefix import LEAST_SHARED, num_shared
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt
from weighted_clip.workshop.bench.encoding import SYNTAXES, timed
from weighted_clip.workshop.bench.scale import QUICK
from weighted_clip.workshop.bench.texts import (
    BEGINNING,
    FOUR_DOWN,
    NEGATIVE,
    PROMPTS,
    TEXTS,
    fresh,
    grids,
    text_of,
    typed,
    words,
    written,
)
from weighted_clip.workshop.bench.timing import native
from weighted_clip.workshop.bench.timing import ours as our_run


@pytest.mark.parametrize("template", [*PROMPTS.values(), NEGATIVE])
def test_a_fresh_prompt_has_as_many_tokens_and_nothing_in_common(template: str) -> None:
    tokenize = default_tokenizer()
    usual = [token.id for token in tokenize(written(template, "none"))]
    texts = fresh(template, "none")
    found = [[token.id for token in tokenize(next(texts))] for _ in range(200)]
    assert all(ids[1:] == usual[1:] for ids in found)
    assert len({ids[0] for ids in found}) == 200
    assert len(words()) > 1000


def test_only_the_empty_prompt_of_a_fresh_prompt_is_remembered() -> None:
    encoder = native(QUICK.model())
    asked: list[int] = []
    run_of = encoder._run
    encoder._run = lambda ids, *rest, **named: asked.append(len(ids)) or run_of(ids, *rest, **named)
    run = our_run(encoder, fresh(PROMPTS["one word up"], "comfy"))
    assert [run().shape for _ in range(3)] == [(1, 77, 64)] * 3
    assert asked == [2, 1, 1]  # the prompt and the empty one, then the prompt
    remembered = encoder.encodings.keys()
    keys = [key for _, key in remembered]
    assert max(num_shared(one, other) for one in keys for other in keys if one != other) < LEAST_SHARED


def test_a_typed_prompt_has_three_chunks_and_another_last_word() -> None:
    texts = typed()
    one, other = (read_prompt(next(texts), EncodeOptions(), default_tokenizer()).chunks for _ in range(2))
    assert len(one) == 3
    assert one[:2] == other[:2]
    ids = list(zip(one[2].ids, other[2].ids, strict=True))
    assert [place for place, (this, that) in enumerate(ids) if this != that] == [one[2].num_content]


def test_prompts_of_a_grid_have_their_beginning_in_common() -> None:
    tokenize = default_tokenizer()
    assert len(tokenize(BEGINNING)) == 40
    rounds = grids(3)
    found = [[[token.id for token in tokenize(text)] for text in next(rounds)] for _ in range(2)]
    assert {len(ids) for grid in found for ids in grid} == {60}
    assert len({tuple(ids[:40]) for grid in found for ids in grid}) == 1
    assert len({tuple(ids) for grid in found for ids in grid}) == 6
    assert next(grids(3)) == next(grids(3))


def test_a_timed_prompt_has_four_texts() -> None:
    texts = timed()
    one, other = next(texts), next(texts)
    assert len(set(one)) == len(one) == len(other) == 4
    assert not set(one) & set(other)
    assert all(len(read_prompt(text, EncodeOptions(syntax="a1111"), default_tokenizer()).chunks) == 1 for text in one)


@pytest.mark.parametrize("length", [300, 10_000])
@pytest.mark.parametrize("name", TEXTS)
def test_texts_have_the_length_they_claim(name: str, length: int) -> None:
    assert all(len(text_of(name, syntax, length)) == length for syntax in SYNTAXES)


@pytest.mark.parametrize("syntax", ["comfy", "compel"])
def test_prompts_carry_the_weights_they_claim(syntax: str) -> None:
    def weights(name: str) -> list[float]:
        read = read_prompt(written(PROMPTS[name], syntax), EncodeOptions(syntax=syntax), default_tokenizer())
        assert len(read.chunks) == 1
        return [fragment.weight for fragment in read.prompt.fragments if fragment.weight != 1.0]

    assert weights("plain") == []
    assert weights("one word up") == [1.4]
    assert weights("four words down") == [0.2, 0.4, 0.6, 0.8]
    assert len(default_tokenizer()(written(FOUR_DOWN, "none"))) == 60
