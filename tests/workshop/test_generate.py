"""Generated files are as the code makes them now; ``python workshop generate`` writes them anew."""

from pathlib import Path

import pytest
from weighted_clip.weighting.options import OPTIONS
from weighted_clip.workshop import generate
from weighted_clip.workshop.pictures import docs_pictures, help_pictures, thumbnails

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", generate.MADE)
def test_generated_files_are_current(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generate.MADE[name](), "run: python workshop generate"


def test_pictures_that_are_drawn_are_of_templates_and_pages() -> None:
    templates = {path.stem for path in (ROOT / generate.TEMPLATES).glob("*.json")}
    assert templates >= thumbnails.PICTURES.keys()
    for folder, drawn in (("web/comfyui/docs/images", help_pictures.PICTURES), ("docs/images", docs_pictures.PICTURES)):
        assert drawn.keys() <= {path.stem for path in (ROOT / folder).glob("*.png")}


def test_a_table_is_found_by_its_head() -> None:
    with pytest.raises(ValueError, match=r"no table has the head \| A \|"):
        generate.with_table("| B |\n| - |\n", ["A"], [])


def test_a_text_without_translation_is_english_and_so_is_a_value_that_a_menu_lacks() -> None:
    scheme = {"name": "scheme", "tooltip": OPTIONS["scheme"].tooltip}
    english = {"description": "A node.", "inputs": {"scheme": scheme}, "outputs": {"0": {"name": "x"}}}
    found = generate.translated(
        english,
        {"inputs": {"scheme": {"name": "方案", "tooltip": "权重如何起作用。comfy：移动行。"}}},
    )
    assert (found["description"], found["outputs"]) == ("A node.", english["outputs"])
    assert found["inputs"]["scheme"]["name"] == "方案"
    tooltip = found["inputs"]["scheme"]["tooltip"]
    assert tooltip.startswith("权重如何起作用。comfy：移动行。\na1111: Scales")
    assert tooltip.count("comfy：") == 1 and "comfy: " not in tooltip and "\nlpw: As" in tooltip


def test_words_that_would_put_a_translation_out_of_the_locale_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {**OPTIONS["syntax"].said, "braces": "{word|1.2} sets."}
    monkeypatch.setitem(OPTIONS, "syntax", OPTIONS["syntax"]._replace(said=said))
    english = {"inputs": {"syntax": {"tooltip": "How weights are written.\nbraces: {word|1.2} sets."}}, "outputs": {}}
    with pytest.raises(ValueError, match="without any of @"):
        generate.translated(english, {"inputs": {"syntax": {"tooltip": "权重的写法。"}}})


def test_permanent_names_only_grow() -> None:
    kept = {"inputs": {"text": "STRING", "scheme": ["comfy", "a1111"]}, "outputs": ["CONDITIONING"]}
    more = {
        "inputs": {"text": "STRING", "scheme": ["comfy", "new", "a1111"], "seed": "INT"},
        "outputs": ["CONDITIONING", "STRING"],
    }
    assert generate.is_grown(kept, kept) and generate.is_grown(more, kept)
    moved = {"scheme": kept["inputs"]["scheme"], "text": "STRING"}
    for now in (
        None,
        {**kept, "inputs": moved},
        {**kept, "inputs": {**moved, "scheme": ["comfy"]}},
        {**kept, "inputs": {"seed": "INT", **kept["inputs"]}},
        {**kept, "inputs": {**kept["inputs"], "scheme": ["a1111", "comfy"]}},
        {**kept, "inputs": {**kept["inputs"], "text": "FLOAT"}},
        {**kept, "outputs": ["STRING", "CONDITIONING"]},
        {**kept, "outputs": []},
    ):
        assert not generate.is_grown(now, kept), now
