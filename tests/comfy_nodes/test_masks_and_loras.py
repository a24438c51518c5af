"""Words hidden and phrases bound by the nodes, dropped padding, and LoRAs from the prompt, on a fake host."""

import json
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from weighted_clip.hosts.comfy.clip.clip import encode_texts
from weighted_clip.hosts.comfy.clip.weighted_rows import weight_text
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.schemes import SCHEMES

from .fake_comfy import FakeClip, Transformer, encode, install, load_tiny, native, node, rows

TEXT = "a red cat and a dog"


def control(clip=None, **inputs) -> dict:
    return encode("MaskControl", clip, TEXT, **inputs)


def test_with_nothing_hidden_it_is_the_plain_encoding() -> None:
    assert torch.equal(control()["result"][0][0][0], rows(FakeClip(), TEXT))


@pytest.mark.parametrize(
    "inputs",
    [
        {"hide": "red"},
        {"hide": "red", "hidden_from": "padding rows only"},
        {"hide": "red", "hidden_from": "the phrases below", "from_phrases": "dog"},
        {"hide": "red", "padding": "mask"},
        {"hide": "red", "padding": "drop"},
        {"causal": False},
        {"hide": "dog", "causal": False},
    ],
)
@pytest.mark.parametrize("is_native", [False, True])
def test_every_choice_is_the_native_encoders(inputs: dict, is_native: bool) -> None:
    ((hidden, _),), picture, _ = control(load_tiny() if is_native else None, **inputs)["result"]
    options = {("is_causal" if name == "causal" else name): value for name, value in inputs.items()}
    torch.testing.assert_close(hidden, native(TEXT, **options), rtol=0, atol=1e-5)
    assert picture.ndim == 4
    assert picture.shape[-1] == 3


def test_the_picture_shows_the_mask() -> None:
    pictures = [control(**inputs)["result"][1] for inputs in ({}, {"hide": "red"}, {"causal": False})]
    assert not torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_a_phrase_that_is_not_there_is_a_problem() -> None:
    result = control(hide="bird")
    assert "“bird” is not in the prompt" in result["ui"]["text"][0]
    assert "“bird” is not in the prompt" in result["result"][2]


@pytest.mark.parametrize("towers", [("clip_l",), ("clip_l", "clip_g")])
def test_dropped_padding_shortens_every_tower_alike(towers: tuple[str, ...]) -> None:
    clip = FakeClip(towers=towers)
    hidden = rows(clip, TEXT, padding="drop")
    assert hidden.shape == (1, 8, 64 * len(towers))
    assert torch.equal(hidden, rows(clip, TEXT)[:, :8])


# ---- bound phrases


@pytest.mark.parametrize("is_native", [False, True])
def test_bound_phrases_are_the_native_encoders(is_native: bool) -> None:
    text, phrases = "a (red:0.5) cat and a blue dog", "red cat\nblue dog"
    inputs = {"rest": "alone", "strength": 0.5, "scheme": "masked_blend"}
    clip = load_tiny() if is_native else None
    ((hidden, _),), picture, report = encode("BindPhrases", clip, text, phrases=phrases, **inputs)["result"]
    expected = native(text, bind=phrases, bind_rest="alone", bind_strength=0.5, scheme="masked_blend")
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    assert picture.shape[0] == 1
    assert "6 encodings" in report  # of 8, as the second phrase and the rest do not see what fades


@pytest.mark.parametrize(
    ("inputs", "options", "told"),
    [
        (
            {"phrases": "red cat\nblue dog", "hide": "these words", "words": "red, blue"},
            {"bind": "red cat\nblue dog", "bind_hide": "these words", "bind_words": "red\nblue"},
            "clip_l: comfy, 2 phrases kept apart in 3 passes, 4 encodings",
        ),
        (
            {"phrases": "", "hide": "cutoff", "words": "red\nblue", "strength": 0.5, "rest": "alone"},
            {"bind_hide": "cutoff", "bind_words": "red\nblue", "bind_strength": 0.5, "bind_rest": "alone"},
            "clip_l: comfy, 2 phrases kept apart in 4 passes, 5 encodings",
        ),
    ],
)
def test_words_and_cutoff_are_the_native_encoders(
    inputs: dict[str, object], options: dict[str, object], told: str
) -> None:
    text = "a (red:1.3) cat, a blue dog"
    if inputs["hide"] == "these words":
        inputs = {**inputs, "phrases": "red cat\nblue dog"}
    ((hidden, _),), _, report = encode("BindPhrases", text=text, **inputs)["result"]
    torch.testing.assert_close(hidden, native(text, scheme="comfy", **options), rtol=0, atol=1e-5)
    assert told in report


@pytest.mark.parametrize("hide", ["whole phrases", "these words"])
def test_a_phrase_that_is_not_there_is_named_and_the_others_are_bound(hide: str) -> None:
    phrases, words = "red cat\nblue dog", "red\nblue"
    inputs = {"text": "a red cat, a blue dog", "phrases": phrases, "hide": hide, "words": words}
    ((bound, _),), _, _ = encode("BindPhrases", **inputs)["result"]
    more = {"phrases": f"{phrases}\na fox", "words": f"{words}\ngreen" if hide == "these words" else words}
    ((hidden, _),), _, report = encode("BindPhrases", **{**inputs, **more})["result"]
    assert torch.equal(hidden, bound)
    assert "“a fox”" in report
    assert ("“green”" in report) == (hide == "these words")


def test_without_the_new_inputs_whole_phrases_are_hidden() -> None:
    """As a workflow has it that was saved before they were there."""
    text, phrases = "a red cat and a blue dog", "red cat\nblue dog"
    given = {"rest": "full", "strength": 1.0, "syntax": "comfy", "scheme": "comfy", "padding": "attend"}
    ((hidden, _),), _, _ = node("BindPhrases").encode(FakeClip(), text, phrases=phrases, **given)["result"]
    torch.testing.assert_close(hidden, native(text, scheme="comfy", bind=phrases), rtol=0, atol=1e-5)


def never(*_: object, **__: object) -> None:
    pytest.fail("the encoder is called")


def test_a_refused_text_is_refused_before_others_are_encoded(monkeypatch) -> None:
    monkeypatch.setattr(Transformer, "forward", never)
    with pytest.raises(ValueError, match="“red cat” is not in the prompt"):
        encode_texts(FakeClip(), ["a red cat", "a blue dog"], EncodeOptions(bind="red cat"))
    two = FakeClip(towers=("clip_l", "clip_g"))
    texts = {"clip_l": "a (cat:-1)", "clip_g": "a big (cat:-1)"}
    with pytest.raises(ValueError, match="same rows of clip_l and clip_g"):
        encode_texts(two, ["a", texts], EncodeOptions(scheme="negpip"))
    for how in ("negpip", "bias"):
        with pytest.raises(ValueError, match=r"does not take \.and and \.blend"):
            weight_text(two, '("a cat", "a dog").and()', EncodeOptions(syntax="compel"), how)


@pytest.mark.parametrize("binding", [{}, {"phrases": "red cat\nblue dog", "rest": "alone"}], ids=["", "bound"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_call_follows_an_interrupt(scheme: str, binding: dict[str, str], monkeypatch) -> None:
    """The host is asked before each call, of every pass and every tower."""
    events: list[str] = []

    def interrupt() -> None:
        events.append("asked")
        if events.count("asked") - 1 == last:
            raise InterruptedError

    def forward(self: object, *_: object, embeds: torch.Tensor, **__: object) -> tuple[torch.Tensor, ...]:
        events.append("call")
        rows = torch.ones_like(embeds)
        return rows, rows, rows[:, 0], rows[:, 0]

    monkeypatch.setattr(Transformer, "forward", forward)
    monkeypatch.setattr("weighted_clip.hosts.comfy.clip.clip.MAX_CHUNKS_CPU", 1)
    monkeypatch.setattr(sys.modules["comfy.model_management"], "throw_exception_if_processing_interrupted", interrupt)
    inputs = {**binding, "scheme": scheme, "padding": "clean"}
    clip = FakeClip(towers=("clip_l", "clip_g"))
    last = -1
    encode("BindPhrases", clip, "a (red:0.5) cat, a (blue:1.2) dog", **inputs)
    whole = list(events)
    assert whole == ["asked", "call"] * (len(whole) // 2) and len(whole) >= 4
    for last in range(len(whole) // 2):
        events.clear()
        with pytest.raises(InterruptedError):
            encode("BindPhrases", clip, "a (red:0.5) cat, a (blue:1.2) dog", **inputs)
        assert events == [*whole[: 2 * last], "asked"]


def test_the_picture_shows_every_pass() -> None:
    """In rows of four; of the passes beyond the sixteenth it says how many they are."""
    names = ["cat", "dog", "bird", "mat", "bowl", "house", "red", "blue", "green"]

    def height_of(count: int) -> int:
        text, phrases = ", ".join(names[:count]), "\n".join(names[:count])
        return encode("BindPhrases", text=text, phrases=phrases)["result"][1].shape[1]

    few, more = height_of(3), height_of(4)
    assert more > 1.7 * few


# ---- LoRAs

FILES = {"loras": {name: name for name in ("ink.safetensors", "sub/Paint.safetensors", "a/twice.pt", "b/twice.pt")}}


def load(text: str) -> dict:
    return node("LoadPromptLoras").load([], [], text)


@pytest.mark.parametrize(
    ("text", "model", "clip", "bare"),
    [
        ("a cat", [], [], "a cat"),
        ("a <lora:ink:0.8> cat", [("ink.safetensors", 0.8)], [("ink.safetensors", 0.8)], "a  cat"),
        ("<lora:ink.safetensors:1>", [("ink.safetensors", 1.0)], [("ink.safetensors", 1.0)], ""),
        ("<lora:sub/Paint:1:2>", [("sub/Paint.safetensors", 2.0)], [("sub/Paint.safetensors", 1.0)], ""),
        ("<lora:paint:1>", [("sub/Paint.safetensors", 1.0)], [("sub/Paint.safetensors", 1.0)], ""),
        (
            "<lora:ink:1><lora:Paint:0.5>",
            [("ink.safetensors", 1.0), ("sub/Paint.safetensors", 0.5)],
            [("ink.safetensors", 1.0), ("sub/Paint.safetensors", 0.5)],
            "",
        ),
    ],
)
def test_loras_are_found_and_loaded_in_order(monkeypatch, text: str, model: list, clip: list, bare: str) -> None:
    install(monkeypatch, FILES)
    result = load(text)
    assert result["result"][:3] == (model, clip, bare)
    assert result["ui"]["text"] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<lora:gone:1> a", "There is no LoRA “gone”"),
        ("<lora:../ink:1> a", "There is no LoRA “../ink”"),
        ("<lora:twice:1> a", "Several LoRAs are called “twice”: a/twice.pt, b/twice.pt. The first is taken."),
        ("<lora:ink:much> a", "is no number such as 0.8"),
        ("<hypernet:ink:1> a", "Only LoRAs can be loaded here"),
    ],
)
def test_what_cannot_be_loaded_is_a_problem_and_no_crash(monkeypatch, text: str, message: str) -> None:
    install(monkeypatch, FILES)
    result = load(text)
    assert message in result["ui"]["text"][0]
    assert message in result["result"][3]
    assert result["result"][2] == " a"


@pytest.mark.parametrize("inputs", [{"name": "A1111Encode"}, {"syntax": "a1111"}])
def test_tags_are_not_encoded(inputs: dict) -> None:
    given = {"name": "TextEncode", **inputs}
    tagged = encode(text="a <lora:ink:0.8>(red:1.2) cat", **given)
    assert torch.equal(tagged["result"][0][0][0], rows(FakeClip(), "a (red:1.2) cat", **given))
    assert "“ink” at 0.8" in tagged["ui"]["text"][0]


@pytest.mark.parametrize("loras", ["as A1111", "in time"])
def test_a_lora_in_a_comment_is_not_loaded(monkeypatch, loras: str) -> None:
    text = "a cat # <lora:ink:1>\nin a bowl"
    install(monkeypatch, FILES)
    load = partial(node("LoadPromptLoras").load, [], [], text, loras=loras)
    model, _, bare, report = load()["result"]
    assert (model, bare) == ([], "a cat \nin a bowl")
    assert "is a comment" in report
    model, _, bare, _ = load(cleaning="none")["result"]
    assert (model, bare) == ([("ink.safetensors", 1.0)], "a cat # \nin a bowl")


def test_a_lora_that_never_changes_is_loaded_as_ever(monkeypatch) -> None:
    install(monkeypatch, FILES)
    load = node("LoadPromptLoras").load
    for text, strength in (("<lora:ink:0.8> a", 0.8), ("<lora:ink:0.3@0.5> a", 0.3), ("[<lora:ink:2>:0] a", 2.0)):
        model, _, _, report = load([], [], text, loras="in time")["result"]
        assert model == [("ink.safetensors", strength)]
        assert "steps" not in report
    result = load([], [], "<lora:ink:0@0,1@1> a")
    assert result["result"][0] == [("ink.safetensors", 1.0)]
    assert "changes with the steps only where loras is “in time”" in result["ui"]["text"][0]


def test_where_a_lora_alone_changes_the_report_says_how_steps_are_timed(monkeypatch) -> None:
    install(monkeypatch, FILES)
    report = encode("A1111Encode", text="a [<lora:gone:1>:10]", loras="in time")["result"][1]
    assert "20 steps, assumed to be of equal length" in report


@pytest.mark.parametrize("name", ["A1111Encode", "LoadPromptLoras"])
def test_loras_in_time_that_cannot_be_are_refused_in_words(monkeypatch, name: str) -> None:
    clip = load_tiny()
    install(monkeypatch, FILES)
    run = partial(node(name).load, None) if name == "LoadPromptLoras" else partial(encode, name)
    text = "a [<lora:ink:1>:<lora:gone:1>:0.5]"
    with pytest.raises(ValueError, match=r"Our native encoder takes no LoRA \(“ink”\): connect its loader's second"):
        run(clip=clip, text=text, loras="in time")
    with pytest.raises(ValueError, match=r"loras must be one of: as A1111, in time.*; got 'always'"):
        run(clip=FakeClip(), text=text, loras="always")


def graph(slot: int) -> dict:
    return {"7": {"inputs": {"text": TEXT}}, "8": {"inputs": {"images": ["7", slot], "width": 64}}}


@pytest.mark.parametrize("name", ["MaskControl", "BindPhrases"])
def test_masks_are_drawn_where_the_graph_asks_for_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, *others = (
        encode(name, None, TEXT, prompt=prompt, unique_id="7")["result"] for prompt in (graph(1), graph(0), None)
    )
    assert torch.equal(drawn[1], others[1][1]) and drawn[1].shape[1] > 100  # where nobody knows the graph
    assert others[0][1].shape == (1, 1, 1, 3)
    assert torch.equal(drawn[0][0][0], others[0][0][0][0])
    changed = set()
    for prompt in (graph(1), graph(0)):
        queue = SimpleNamespace(currently_running={3: (0, "id", prompt, {})})
        server = SimpleNamespace(PromptServer=SimpleNamespace(instance=SimpleNamespace(prompt_queue=queue)))
        monkeypatch.setitem(sys.modules, "server", server)
        changed.add(json.dumps(node(name).IS_CHANGED(text=TEXT, unique_id="7")))
    assert len(changed) == 2
