"""The comparison of positions on long captions: its captions, the longer towers, and the table, at a tiny scale."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from weighted_clip.encoder.config import POSITIONS, Positions
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.training.new_text import new_text_model
from weighted_clip.workshop.bench.long_captions import LONG, QUICK, Words, block, longer, make_block
from weighted_clip.workshop.bench.page import table_rows
from weighted_clip.world.shapes import Shape, split

from ..libraries import library

LEARNED, HELD = split()


def told(ids: list[int]) -> str:
    """A caption in words again."""
    texts = [", then ", *(shape.caption for shape in (*LEARNED, *HELD))]
    tokens = {token.id: text[token.start : token.end] for text in texts for token in default_tokenizer()(text)}
    names = sorted(tokens)
    return " ".join(tokens[names[one]] for one in ids).replace(" ,", ",")


@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_the_last_clause_of_a_caption_tells_of_the_picture(count: int) -> None:
    words, rng = Words(), random.Random(0)
    for target in HELD[:20]:
        ids = words.caption(target, HELD, count, rng)
        caption = told(ids)
        assert len(default_tokenizer()(caption)) == len(ids)  # read at once, it has the same tokens
        clauses = caption.split(", then ")
        assert clauses[-1] == target.caption
        assert len(clauses) == count
        assert target.caption not in clauses[:-1]
        assert all(Shape(*clause.split(" ", 4)[1:]) in HELD for clause in clauses)


def test_captions_for_training_fit_into_77_positions() -> None:
    words, rng = Words(), random.Random(0)
    lengths = [len(words.caption(shape, LEARNED, rng.randint(1, 7), rng, 77)) for shape in LEARNED]
    assert max(lengths) <= 75
    assert max(lengths) >= 65
    measured = [len(words.caption(shape, HELD, 20, rng)) for shape in HELD]
    assert min(measured) > 150
    assert max(measured) <= LONG - 2


@pytest.mark.parametrize("positions", POSITIONS)
def test_longer_towers_read_short_captions_as_before(positions: Positions) -> None:
    """The first 20 positions of a stretched table are those from before, and all rotary ones."""
    words = Words()
    model = new_text_model(replace(words.config, positions=positions), 0)
    long = longer(model)
    assert long.config.context_length == LONG
    ids = torch.full((1, 248), 3)
    assert long(ids).hidden.shape == (1, 248, 128)
    length = 20 if positions == "learned" else 77
    torch.testing.assert_close(long(ids[:, :length]).hidden, model(ids[:, :length]).hidden, atol=0, rtol=0)


def test_the_table_has_a_row_for_each_way_of_reading() -> None:
    library("accelerate")
    lines: list[str] = []
    rows = list(table_rows(make_block(QUICK, lines.append)))
    assert [row["Positions"] for row in rows] == ["learned"] * 3 + ["rotary"] * 3
    assert all("".join(row.values()).count("%") == 5 for row in rows)
    assert len(lines) == 7


def test_several_seeds_are_shown_by_their_mean_and_spread() -> None:
    rows = [("rotary", "all", [share] * 5) for share in (0.2, 0.4)]
    found = block(rows, replace(QUICK, seeds=(0, 1)), 1.0, "- a machine")
    (row,) = table_rows(found)
    assert list(row.values()) == ["rotary", "all", *["30.0% (20.0% to 40.0%)"] * 5]
    assert "for each of 2 seeds" in found
