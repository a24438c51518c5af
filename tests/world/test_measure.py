"""The measurement of weights in the small world: its prompts, its judge's answers, its folder, its tables."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.world import measure, questions
from weighted_clip.studio.world import painter as painting
from weighted_clip.studio.world.judge import things_in
from weighted_clip.studio.world.measure import Judged, Sitting, interval, judged, missing, of_point
from weighted_clip.studio.world.model import save_world
from weighted_clip.studio.world.painter import Painter
from weighted_clip.studio.world.questions import EVERY_WAY, KEPT_APART, QUESTIONS, QUICK, SEEDS, Prompt, Question, Way
from weighted_clip.studio.world.scenes import Scene, Thing, pictures
from weighted_clip.studio.world.tables import measured, of_answer, read_measured, summary, write_measured
from weighted_clip.web.pictures.weight_grid import SIDE, draw_weight_grid
from weighted_clip.weighting.options import EncodeOptions

from .worlds import random_world

RED, BLUE = Thing("red", "circle", 8, 8, 6), Thing("blue", "square", 23, 23, 6)
TWO = Question("two", "Two", (Way("comfy"), Way("masked_blend", {"scheme": "masked_blend"})), (0.0, 1.0), num_prompts=2)


@pytest.fixture(scope="module")
def painter() -> Painter:
    return Painter(random_world())


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step of Euler's method, as random weights draw nothing anyway."""
    sampled = painting.sampled
    monkeypatch.setattr(painting, "sampled", lambda *given, **more: sampled(*given, 1, **more))


# ---- prompts and answers


def test_weights_are_written_around_the_part_that_is_asked_about() -> None:
    prompt = Prompt(Scene((RED, BLUE)), 1)
    assert prompt.text(0.5) == "a red circle and (a blue square:0.5)"
    assert prompt.text(-1, "color") == "a red circle and a (blue:-1) square"
    assert prompt.text(2, "kind") == "a red circle and a blue (square:2)"


def test_every_question_has_prompts_of_different_colours_and_weighs_first_and_last_things() -> None:
    for question in (*QUESTIONS, *QUICK):
        assert {prompt.target for prompt in question.prompts} == {0, question.num_things - 1}
        for prompt in question.prompts:
            colors = [thing.color for thing in prompt.scene.things]
            assert len(set(colors)) == len(colors) == question.num_things
        assert question.prompts == question.prompts
        assert len({way.name for way in question.ways}) == len(question.ways)


def judge(*drawn: Thing, plain: tuple[Thing, ...] = (RED, BLUE), target: int = 0) -> Judged:
    shown, before = pictures([Scene(drawn), Scene(plain)])
    [things, plain_things] = things_in(torch.stack([shown, before]))
    return judged(Prompt(Scene((RED, BLUE)), target), shown, things, before, plain_things)


def test_the_judge_tells_what_a_weight_did() -> None:
    same = judge(RED, BLUE)
    assert same[:5] == (True, True, True, False, 0.0)
    assert same.sureness > 0.9
    assert same.area == judge(RED, BLUE, target=0).area > 80

    gone = judge(BLUE)
    assert gone[:5] == (False, False, True, False, 0.0)
    assert gone.area == 0
    assert judge(RED, RED._replace(x=23, y=23), target=1)[:3] == (False, False, True)

    other_kind = judge(RED._replace(kind="cross"), BLUE)
    assert other_kind[:4] == (True, False, True, False)
    crossed = judge(RED._replace(kind="square"), BLUE)
    assert crossed[:4] == (True, False, True, True)
    assert judge(RED, BLUE._replace(color="red"))[2:4] == (False, True)

    elsewhere = judge(RED, BLUE._replace(x=20))
    assert elsewhere.others
    assert 0 < elsewhere.moved < 0.2
    assert judge()[:4] == (False, False, False, False)
    assert judge().sureness == 0


def test_the_judge_tells_whether_each_thing_is_in_its_half() -> None:
    assert judge(RED, BLUE)[-2:] == (True, 1.0)
    assert judge(RED._replace(x=23, y=23), BLUE._replace(x=8, y=8))[-2:] == (False, 1.0)
    assert judge(RED._replace(y=23), BLUE._replace(y=8)).placed
    assert judge(RED, BLUE._replace(kind="cross"))[-2:] == (True, 0.5)
    assert judge(RED)[-2:] == (False, 0.5)


# ---- intervals


def test_an_interval_covers_the_mean_of_what_it_was_drawn_from() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(100):
        shares = rng.beta(4, 2, (25, 1))  # each prompt its own
        found = interval((rng.random((25, 8)) < shares).tolist(), resamples=400)
        assert found.low <= found.mean <= found.high
        hits += found.low <= 4 / 6 <= found.high
    assert hits >= 88


def test_prompts_that_differ_widen_an_interval() -> None:
    together = interval([[1.0] * 8, [0.0] * 8] * 10)
    apart = interval([[1.0, 0.0] * 4] * 20)
    assert together.mean == apart.mean == 0.5
    assert together.high - together.low > 1.5 * (apart.high - apart.low)
    assert interval([[1.0] * 8] * 5) == (1.0, 1.0, 1.0)


# ---- drawing


def test_pictures_depend_on_their_text_and_seed_and_not_on_their_neighbours(painter: Painter, quickly: None) -> None:
    texts = [painter.text(caption, Way("comfy")) for caption in ("a red circle", "a (blue:0.5) square")]
    texts.append(painter.text("a (blue:2) square", Way("attention bias", how="bias")))
    texts.append(painter.text("a (blue:1.5) square", Way("repeat", {"scheme": "repeat"})))
    assert texts[3].rows.shape[1] > 77
    seeds = [[1, 2], [3, 4], [1, 2], [5, 6]]
    together = painter.pictures(texts, seeds)
    for index, (text, some) in enumerate(zip(texts, seeds, strict=True)):
        assert torch.equal(together[index], painter.pictures([text], [some])[0])
    assert not torch.equal(together[0], together[2])


def test_at_weight_1_all_schemes_with_77_rows_draw_the_same(painter: Painter, quickly: None) -> None:
    sitting = Sitting(painter, TWO)
    for way in EVERY_WAY:
        text = painter.text(sitting.prompts[0].text(1.0), way)
        assert text.bias is None and text.factor is None
        if text.rows.shape[1] == 77:
            torch.testing.assert_close(text.rows, sitting.plain_texts[0].rows, rtol=0, atol=1e-6)
    assert torch.equal(sitting.draw(Way("comfy"), 1.0), sitting.plain[0])


def test_signs_and_effects_reach_the_places_where_rows_are_read(painter: Painter) -> None:
    signed = painter.text("a (red:-1) circle", Way("negpip", {"scheme": "negpip"}))
    assert signed.factor is not None
    assert signed.factor[0].tolist() == [1, 1, -1, *[1] * 74]
    biased = painter.text("a (red:0.5) circle", Way("attention bias", how="bias"))
    assert biased.bias is not None
    assert biased.bias[0, 2] == pytest.approx(np.log(0.5))
    assert int(biased.bias.count_nonzero()) == 1
    removed = painter.text(
        "a red circle (and a blue square:0)", Way("", {"scheme": "masked_blend", "mask_method": "remove"})
    )
    assert torch.equal(removed.rows, painter.text("a red circle", Way("comfy")).rows)
    bound = painter.text("a red circle and a blue square", Way("", binds=True), ["a red circle", "a blue square"])
    assert not torch.equal(bound.rows, painter.text("a red circle and a blue square", Way("comfy")).rows)


# ---- the folder


def test_cutoff_reads_phrases_between_commas(painter: Painter) -> None:
    prompt = "a red circle and a blue square"
    phrases = ["a red circle", "a blue square"]
    [cutoff] = [way for way in KEPT_APART if way.name == "Cutoff"]
    text = painter.text(prompt, cutoff, phrases)
    options = EncodeOptions(bind_hide="cutoff", bind_words="red, blue")
    expected = painter.encoders(prompt.replace(" and", ","), options=options).hidden
    torch.testing.assert_close(text.rows, expected)
    assert not torch.allclose(text.rows, painter.encoders(prompt.replace(" and", ",")).hidden)


def test_some_questions_are_asked_alone(tmp_path: Path, quickly: None, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "world.safetensors"
    save_world(random_world(), file, {})
    given = ["world", "measure", str(file), "--out", str(tmp_path / "out"), "--prompts", "2", "--seeds", "1"]
    assert main([*given, "--only", "apart", "--only", "three apart"]) == 0
    named = {path.name.partition(" as always")[0] for path in (tmp_path / "out" / "points").glob("*as always*")}
    assert named == {"apart", "three apart"}
    capsys.readouterr()
    assert main([*given, "--only", "colour"]) == 1
    assert "--only 'colour': there are the questions phrase, color, kind," in capsys.readouterr().err


def test_what_is_there_is_not_drawn_again(
    painter: Painter, tmp_path: Path, quickly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing(tmp_path, [TWO]) == 4 * 2 * SEEDS
    told: list[int] = []
    points = measure.measure(painter, tmp_path, [TWO], {"steps": 0}, told.append)
    assert told == [2 * SEEDS] * 4
    assert missing(tmp_path, [TWO]) == 0
    again = tmp_path / "two comfy 0.json"
    again.unlink()
    told.clear()
    assert measure.measure(painter, tmp_path, [TWO], {"steps": 0}, told.append) == points
    assert told == [2 * SEEDS]
    monkeypatch.setattr(Sitting, "draw", None)
    assert measure.measure(painter, tmp_path, [TWO], {"steps": 0}) == points


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda stored: stored.update(recipe={"steps": 1}), "of another world or another measurement"),
        (lambda stored: stored.update(prompts=["a red circle"]), "of another world or another measurement"),
        (lambda stored: stored.update(guidance=5.0), "of another world or another measurement"),
        (lambda stored: stored["judged"].pop(), "of another world or another measurement"),
        (lambda stored: stored["judged"][0].pop(), "of another world or another measurement"),
        (lambda stored: stored["judged"][0][0].append(1), "cannot be read"),
        (lambda stored: stored.pop("judged"), "cannot be read"),
    ],
)
def test_other_points_are_refused_in_words(
    painter: Painter, tmp_path: Path, quickly: None, change: Any, message: str
) -> None:
    measure.measure(painter, tmp_path, [TWO], {"steps": 0})
    path = tmp_path / "two comfy 0.json"
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=message):
        measure.measure(painter, tmp_path, [TWO], {"steps": 0})
    for text in ("[" * 100_000, "", "[]"):
        path.write_text(text)
        with pytest.raises(ValueError, match="cannot be read"):
            measure.measure(painter, tmp_path, [TWO], {"steps": 0})


def test_points_written_before_guidance_was_told_are_of_guidance_3(
    painter: Painter, tmp_path: Path, quickly: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = measure.measure(painter, tmp_path, [TWO], {"steps": 0})
    for path in tmp_path.iterdir():
        stored = json.loads(path.read_text())
        assert stored.pop("guidance") == 3.0
        path.write_text(json.dumps(stored))
    assert measure.measure(painter, tmp_path, [TWO], {"steps": 0}) == points
    monkeypatch.setattr(painter, "guidance", 5.0)
    with pytest.raises(ValueError, match="of another world or another measurement"):
        measure.measure(painter, tmp_path, [TWO], {"steps": 0})


# ---- tables


def points_of(question: Question, shares: dict[float, float]) -> measure.Points:
    rng = random.Random(0)
    return {
        (question.name, way.name, weight): [
            [Judged(rng.random() < share, True, weight < 1.5, False, 0.1, 0.9, 90, True, 1.0) for _ in range(SEEDS)]
            for _ in range(25)
        ]
        for way in question.ways
        for weight, share in shares.items()
    }


def test_tables_tell_when_it_fades_and_what_breaks() -> None:
    shares = {0.0: 0.0, 0.5: 0.25, 1.0: 0.75, 1.25: 0.8, 1.5: 0.9, 2.0: 1.0}
    question = TWO._replace(weights=tuple(shares))
    points = points_of(question, shares)
    found_all = measured(points, [question])
    told = of_answer(found_all, question, "present")
    assert told.head == ("Two: its colour is there", "0", "0.5", "1", "1.25", "1.5", "2")
    found = of_point(points["two", "comfy", 0.5], "present")
    assert told.rows[0][2] == f"{100 * found.mean:.0f} ({100 * found.low:.0f}–{100 * found.high:.0f})"
    [comfy, _] = summary(found_all, question).rows
    half = 0.5 + 0.5 * (0.5 - found.mean) / (of_point(points["two", "comfy", 1.0], "present").mean - found.mean)
    assert comfy == ("`comfy`", "0", f"{half:.2f}", "0", "1.5", "—")
    assert told.markdown().splitlines()[1] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert len({len(line) for line in told.lines()}) <= 2


def test_means_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = measured(points_of(TWO, {0.0: 0.25, 1.0: 1 / 3}), [TWO])
    write_measured(found, tmp_path / "means.csv")
    again = read_measured(tmp_path / "means.csv")
    assert len(found) == 2 * 2 * len(TWO.answers)
    assert again.keys() == found.keys()
    for key, value in found.items():
        assert again[key] == pytest.approx(value, rel=1e-3)


def test_a_grid_has_a_row_for_each_seed_and_a_column_for_each_weight() -> None:
    one = Image.new("RGB", (32, 32), "red")
    small = draw_weight_grid("a cat", ["0", "1"], {"comfy": [[one, one]]})
    large = draw_weight_grid("a cat", ["0", "1"], {"comfy": [[one, one]] * 2, "a1111": [[one, one]]})
    assert large.height - small.height > 2 * SIDE
    assert small.getpixel((small.width - 40, small.height - 40)) == (255, 0, 0)
    with pytest.raises(ValueError, match="must have 2 pictures"):
        draw_weight_grid("a cat", ["0", "1"], {"comfy": [[one]]})


# ---- the command


def test_the_command_prints_its_table_and_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quickly: None
) -> None:
    monkeypatch.setattr(questions, "QUICK", (TWO._replace(weights=(0.0, 1.0, 1.5)),))
    save_world(random_world(), tmp_path / "world.safetensors", {"steps": 0})
    given = ["world", "measure", str(tmp_path), "--quick", "--out", str(tmp_path / "out")]
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "96 pictures to draw" in told
    assert "`masked_blend`" in told
    page = (tmp_path / "out" / "tables.md").read_text()
    assert page.count("\n| `masked_blend` |") == 8
    assert main(given) == 0
    assert "to draw" not in capsys.readouterr().out
    assert (tmp_path / "out" / "tables.md").read_text() == page
    with Image.open(tmp_path / "out" / "two-grid.png") as picture:
        assert picture.width > 3 * SIDE
    fewer = ["--prompts", "1", "--out", str(tmp_path / "fewer"), "--seeds"]
    assert main([*given[:4], *fewer, "3"]) == 0
    assert "18 pictures to draw" in capsys.readouterr().out
    assert main([*given[:4], *fewer, "9"]) == 1
    assert "--seeds must be from 1 to 8" in capsys.readouterr().err
    for guidance, message in (("nan", "--guidance must be a number, got nan"), ("1e39", "choose a lower --guidance")):
        assert main([*given[:4], "--out", str(tmp_path / guidance), "--prompts", "1", "--guidance", guidance]) == 1
        assert message in capsys.readouterr().err
    assert main([*given, "--guidance", "2"]) == 1
    assert "of another world or another measurement" in capsys.readouterr().err
    (tmp_path / "out" / "points" / "two comfy 0.json").write_text("{}")
    assert main(given) == 1
    assert "two comfy 0.json cannot be read" in capsys.readouterr().err
