"""The ruler while a prompt is typed for a text encoder other than CLIP, with a fake of the host's tokenizer.

In a real ComfyUI it is compared with what a run shows: tests/hosts/inprocess_beyond.py.
"""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.hosts.comfy import live_tokenizers
from weighted_clip.nodes.routes import ruler_nodes
from weighted_clip.web.inspection import RequestError, inspect, reader_of, request_of

from .test_by_host import Encoder

NODES = ruler_nodes(NODE_CLASS_MAPPINGS)
Z_IMAGE = "comfy.text_encoders.z_image.ZImageTokenizer"
WEIGH, ENCODE = "WeightedCLIPWeighAttention", "WeightedCLIPTextEncode"
num_made = 0


class ZImageTokenizer:
    """Words after a template; brackets are text."""

    __module__ = "comfy.text_encoders.z_image"
    llama_template = "<user> {} <end>"

    def __init__(self) -> None:
        global num_made
        num_made += 1
        self.qwen3_4b: Any = Encoder(is_weighing=False)
        self.qwen3_4b.end_token = self.qwen3_4b.pad_token = 1

    def tokenize_with_weights(self, text, return_word_ids=False, **_):
        return {"qwen3_4b": [self.qwen3_4b.pairs(self.llama_template.format(text))]}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host with that tokenizer, and one that cannot be made without a checkpoint."""
    global num_made
    num_made = 0
    live_tokenizers._tokenizer_alone.cache_clear()
    module, other = ModuleType("comfy.text_encoders.z_image"), ModuleType("comfy.text_encoders.pixart_t5")
    module.ZImageTokenizer = ZImageTokenizer
    other.PixArtTokenizer = lambda: {}["spiece_model"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setattr(
        live_tokenizers, "OF_LOADERS", {"CLIPLoader toy": Z_IMAGE, "CLIPLoader none": "comfy.no.Tokenizer"}
    )
    yield
    live_tokenizers._tokenizer_alone.cache_clear()


def shown(node: str, text: str, encoder: object = Z_IMAGE, **values: Any) -> list[dict[str, Any]]:
    asked = {"node": node, "text": text, "values": values, "encoder": encoder}
    return inspect(request_of(asked, NODES), [], reader_of(asked, NODES))["views"]


def chips(view: dict[str, Any]) -> list[tuple[str, str]]:
    return [(chip["text"], chip["note"]) for chunk in view["chunks"] for chip in chunk["chips"]]


@pytest.mark.parametrize("encoder", [Z_IMAGE, "CLIPLoader toy"])
def test_the_encoders_own_tokens_are_shown_with_their_weights(encoder: str) -> None:
    (view,) = shown(WEIGH, "a (red:1.4) cat", encoder)
    assert chips(view) == [("a", ""), ("red", "1.4"), ("cat", "")]
    assert (view["encoder"], view["notes"]) == (Z_IMAGE, ["ComfyUI's own node reads weights as text here"])
    assert view["chunks"][0]["capacity"] is None


def test_where_weights_are_left_out_it_is_said() -> None:
    (view,) = shown(ENCODE, "a (red:1.4) cat")
    assert chips(view) == [("a", ""), ("red", ""), ("cat", "")]
    assert [issue["code"] for issue in view["issues"]] == ["weights-left-out"]
    with pytest.raises(RequestError, match="“padding drop” takes a CLIP text encoder"):
        shown(ENCODE, "a cat", padding="drop")


def test_texts_of_a_timed_prompt_are_read_so_too() -> None:
    views = shown("WeightedCLIPA1111Encode", "a [cat:dog:0.5]", steps=20)
    assert [chips(view) for view in views] == [[("a", ""), ("cat", "")], [("a", ""), ("dog", "")]]
    assert {view["encoder"] for view in views} == {Z_IMAGE}


@pytest.mark.parametrize(
    ("node", "encoder"),
    [
        *((WEIGH, name) for name in ("", "CLIPLoader none", "CLIPLoader flux2", "os.system", "comfy.text_encoders")),
        (WEIGH, "comfy.text_encoders.pixart_t5.PixArtTokenizer"),  # cannot be made
        ("WeightedCLIPMaskControl", Z_IMAGE),  # takes CLIP only
    ],
)
def test_otherwise_tokens_are_clips(node: str, encoder: str) -> None:
    (view,) = shown(node, "a cat", encoder)
    assert "encoder" not in view
    assert view["chunks"][0]["capacity"] == 75
    assert num_made == 0


def test_a_tokenizer_is_made_once_and_when_it_is_asked_for() -> None:
    for text in ("a", "a cat", "a dog"):
        shown(WEIGH, text)
        shown(ENCODE, text)
    assert num_made == 1


def test_beside_a_clip_tower_a_loaders_type_says_nothing_of_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithTower(ZImageTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.clip_l = None

    WithTower.__module__, WithTower.__qualname__ = Z_IMAGE.rpartition(".")[::2]
    monkeypatch.setattr(sys.modules["comfy.text_encoders.z_image"], "ZImageTokenizer", WithTower)
    assert "encoder" in shown(WEIGH, "a cat", "CLIPLoader toy")[0]
    assert "encoder" not in shown(ENCODE, "a cat", "CLIPLoader toy")[0]
    assert "encoder" in shown(ENCODE, "a cat", Z_IMAGE)[0]  # reported by a run


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(RequestError, match=r"encoder must be a string, got \[1\]"):
        shown(WEIGH, "a cat", [1])
