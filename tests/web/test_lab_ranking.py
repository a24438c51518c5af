"""The lab's tab for pictures, and the weights that it can take while it runs."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
import torch
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.files.tensor_file import CheckpointError
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.lab.model import LabError
from weighted_clip.web.lab.native import Settings, Shelf, file_model, random_model
from weighted_clip.web.lab.ranking import MAX_PICTURES, MAX_TEXTS, SOFTMAX, RankingLab
from weighted_clip.weighting.options import EncodeOptions

from ..transformers_clip import Reference
from .conftest import SMALL, VISION, save_clip, save_pictures
from .lab_in_browser import LabPage

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=3, mlp_dim=128)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip") / "whole.safetensors")


@pytest.fixture
def ranking(weights: Path) -> RankingLab:
    model = file_model(weights, Settings())
    return RankingLab(lambda: model)


def ids_of(text: str) -> list[int]:
    ids = [49406, *(token.id for token in default_tokenizer()(text))]
    return ids + [49407] * (77 - len(ids))


def number(text: str) -> float:
    return float(text.removesuffix(" %").replace("−", "-").replace("<", "")) / (100 if "%" in text else 1)


@pytest.mark.parametrize("softmax", SOFTMAX)
def test_pictures_are_ranked_and_compared_as_by_transformers(
    ranking: RankingLab, weights: Path, tmp_path: Path, softmax: str
) -> None:
    paths = save_pictures(tmp_path)
    texts = ["a red cat", "a dog", "something else"]
    reference = Reference(weights, SMALL, VISION)
    images, vectors = reference.features(reference.pixels(paths), [ids_of(text) for text in texts])
    cosines = vectors @ images.T
    scaled = cosines * torch.tensor(4.0).exp()
    expected = {"cosines": cosines, "over texts": scaled.softmax(0), "over pictures": scaled.softmax(1)}[softmax]
    markup = unescape(
        ranking.rank([*map(str, paths)], "a dog\n\n something else ", softmax, "a (red:1.4) cat", "a1111")
    )
    order = cosines[0].argsort(descending=True).tolist()
    sheet = re.findall(r"<figcaption>([0-9]). ([-0-9.]+) (\w+).png</figcaption>", markup)
    assert [(int(rank), name) for rank, _, name in sheet] == [(i, paths[k].stem) for i, k in enumerate(order, 1)]
    assert [float(score) for _, score, _ in sheet] == pytest.approx(cosines[0, order].tolist(), abs=6e-5)
    rows = re.findall(r"<th scope='row'>(\w+).png</th>(.*?)</tr>", markup)
    assert [name for name, _ in rows] == [paths[k].stem for k in order]
    for index, (_, cells) in zip(order, rows, strict=True):
        values = [number(one) for one in re.findall(r"<td [^>]*>([^<]+)</td>", cells.replace("><0", ">0"))]
        assert values == pytest.approx(expected[:, index].tolist(), abs=6e-3 if softmax != "cosines" else 6e-4)
    assert "Prompt, at 3: Similarity has no weights" in markup
    assert "3 pictures" in markup


def test_what_cannot_be_ranked_is_said(ranking: RankingLab, weights: Path, tmp_path: Path) -> None:
    paths = [str(path) for path in save_pictures(tmp_path)]
    (tmp_path / "text.png").write_text("no picture")
    some = ranking.rank([*paths, str(tmp_path / "text.png")], "", "cosines", "a <b>", "none")
    assert "text.png: no image of a kind that is read" in some
    assert "3 pictures" in some
    assert "<b>" not in some
    assert str(tmp_path) not in some
    for given, told in (
        ((None, "", "cosines", "a", "none"), "Choose pictures first"),
        (([], "", "cosines", "a", "none"), "Choose pictures first"),
        ((paths * MAX_PICTURES, "", "cosines", "a", "none"), f"at most {MAX_PICTURES} are ranked"),
        ((paths, "x\n" * MAX_TEXTS, "cosines", "a", "none"), f"at most {MAX_TEXTS - 1} are compared"),
        ((paths, "", "cosines", "a" * 30_000, "none"), "longer than 20,000 characters"),
        ((paths, "", "no such", "a", "none"), "choose among cosines, over texts, over pictures"),
        ((paths, "", "cosines", "a", "no such"), "and a syntax"),
        (([str(tmp_path / "text.png")], "", "cosines", "a", "none"), "no image of a kind that is read"),
    ):
        assert told in ranking.rank(*given)
    random = random_model(Settings(), config=CONFIG)
    assert "Random weights would rank pictures at random" in RankingLab(lambda: random).rank(
        paths, "", "cosines", "a", "none"
    )
    half = file_model(save_clip(tmp_path / "half.safetensors", is_whole=False), Settings())
    assert "Pictures cannot be compared: " in RankingLab(lambda: half).rank(paths, "", "cosines", "a", "none")
    assert "Pictures cannot be compared: " in RankingLab(lambda: half).rank(None, "", "cosines", "a", "none")


# --- weights


def test_weights_are_chosen_by_name_and_dropped(weights: Path, tmp_path: Path) -> None:
    other = save_clip(tmp_path / "other.safetensors", CONFIG, is_whole=False)
    first = random_model(Settings(), config=CONFIG)
    shelf = Shelf(first, "random weights", Settings(), {"clip/whole.safetensors": weights})
    assert shelf.names == ["random weights", "clip/whole.safetensors"]
    assert shelf.source() is first
    shelf.choose("clip/whole.safetensors")
    assert shelf.source().title.startswith("whole.safetensors (")
    shelf.drop(other)
    assert shelf.name == "other.safetensors (dropped)"
    assert shelf.names == ["other.safetensors (dropped)", "random weights", "clip/whole.safetensors"]
    assert shelf.source().encode("a cat", EncodeOptions())["clip_l"].hidden.shape == (1, 77, 64)
    shelf.choose("random weights")
    assert shelf.source() is first
    shelf.choose("other.safetensors (dropped)")
    assert shelf.source().title.startswith("other.safetensors")


def test_a_file_that_cannot_be_used_changes_nothing_and_goes(tmp_path: Path) -> None:
    shelf = Shelf(random_model(Settings(), config=CONFIG), "random weights", Settings(), {})
    before = shelf.source()
    bad = tmp_path / "bad.safetensors"
    bad.write_bytes(b"no such file at all")
    with pytest.raises(CheckpointError, match=r"bad\.safetensors"):
        shelf.drop(bad)
    assert not bad.exists()
    pickle = tmp_path / "model.ckpt"
    pickle.write_bytes(b"")
    with pytest.raises(LabError, match=r"model\.ckpt: weights are read from \.safetensors files alone"):
        shelf.drop(pickle)
    with pytest.raises(LabError, match="no weights named 'x'; there are random weights"):
        shelf.choose("x")
    assert (shelf.source(), shelf.name, shelf.names) == (before, "random weights", ["random weights"])


def test_only_the_last_dropped_file_is_kept(tmp_path: Path) -> None:
    shelf = Shelf(random_model(Settings(), config=CONFIG), "random weights", Settings(), {})
    one, two = (save_clip(tmp_path / f"{name}.safetensors", CONFIG, is_whole=False) for name in ("one", "two"))
    shelf.drop(one)
    shelf.drop(two)
    assert (one.exists(), two.exists()) == (False, True)
    assert shelf.names == ["two.safetensors (dropped)", "random weights"]


# --- in a browser


def test_pictures_are_dropped_ranked_and_their_texts_kept(lab: LabPage, tmp_path: Path, small_lab: str) -> None:
    lab.open_part("Pictures")
    lab.give_files("pictures", save_pictures(tmp_path))
    lab.fill_new("other_texts", "a green thing")
    lab.click("rank")
    shown = lab.wait_for_text("ranked", "3 pictures")
    assert "a green thing" in shown
    assert len(lab.wait_for_pictures("ranked", 3)) == 3
    lab.tab.wait("return decodeURIComponent(location.hash).includes('a green thing')")
    lab.tab.open("about:blank")
    lab.open(small_lab)
    lab.open_part("Pictures")
    lab.wait_for_value("other_texts", "a green thing")


def test_weights_are_chosen_and_dropped_on_the_page(lab: LabPage, tmp_path: Path) -> None:
    lab.tab.run("document.querySelector('#weighted_clip_other_weights button').click()")
    lab.tab.wait("return !!document.querySelector('#weighted_clip_weights input')?.offsetParent")
    lab.choose("weights", "clip/text.safetensors")
    lab.wait_for_text("model", "text.safetensors")
    lab.give_files("dropped_weights", [save_clip(tmp_path / "mine.safetensors", CONFIG)])
    lab.wait_for_text("model", "mine.safetensors")
    lab.wait_for_text("weights_told", "Weights: mine.safetensors")
    lab.open_part("Attention")
    lab.wait_for_text("attention", "layer 1 of 3")
    lab.choose("weights", "clip/small.safetensors")
    lab.wait_for_text("attention", "layer 1 of 2")
    lab.wait_for_text("model", "small.safetensors")
