"""Prompts encoded together are as alone, equal encodings are made once, calls are bounded; plans hold no tensor."""

import weakref
from typing import Any

import pytest
import torch
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting import encoders as door
from weighted_clip.weighting.encoders import Encoders, TooManyEncodings
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import plan_prompt
from weighted_clip.weighting.plan import Variant
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT, close_chunk

from ..door import encode_prompt, encode_prompts
from .tiny import READERS, TINY, read

LONG = ", ".join(["a red fox in deep snow"] * 20)


class Counting:
    """An encoder that counts its calls and their chunks."""

    def __init__(self) -> None:
        self.chunks: list[int] = []

    def __call__(self, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        self.chunks.append(len(ids))
        return TINY(ids, mask, is_causal=is_causal)


def assert_as_alone(reads: list[ReadPrompt]) -> list[int]:
    """The calls it took."""
    counting = Counting()
    together = encode_prompts(reads, counting)
    for result, one in zip(together, reads, strict=True):
        alone = encode_prompt(one, TINY)
        torch.testing.assert_close(result.hidden, alone.hidden, atol=1e-5, rtol=0)
        torch.testing.assert_close(result.pooled, alone.pooled, atol=1e-5, rtol=0)
        assert result.read == alone.read
        assert result.num_encodings == alone.num_encodings
    return counting.chunks


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_in_one_call(scheme: str) -> None:
    reads = [read(text, scheme=scheme) for text in ("a (red:1.3) fox", "a (red:0.4) fox", "plain", f"(a:0.7) {LONG}")]
    assert len(assert_as_alone(reads)) == 1


def test_one_call_for_prompts_with_different_masks_and_schemes() -> None:
    reads = [
        read("a fox", scheme="comfy"),
        read("a (red:0.5) fox", scheme="masked_blend"),
        read("a fox", padding="mask"),
        read("a red fox in snow", hide="red", hidden_from="the phrases below", from_phrases="fox"),
    ]
    assert len(assert_as_alone(reads)) == 1


@pytest.mark.parametrize("text", ['("a (red)1.4 fox").and(0.5)', '("a (red)1.4 fox", "a dog").blend(2, 1)'])
@pytest.mark.parametrize("scheme", [name for name, scheme in SCHEMES.items() if scheme.in_columns])
def test_a_text_that_no_column_holds_is_the_same_in_the_webui(text: str, scheme: str) -> None:
    encoders = Encoders({"clip_l": READERS["clip_l"]}, {"clip_l": TINY})
    options = EncodeOptions(syntax="compel", scheme=scheme)
    [together], [alone] = (way([text], options).run() for way in (encoders.prepare_together, encoders.prepare))
    torch.testing.assert_close(together.hidden, alone.hidden, atol=1e-5, rtol=0)


def test_causal_and_other_encodings_do_not_mix() -> None:
    assert len(assert_as_alone([read("a fox"), read("a dog"), read("a fox", is_causal=False)])) == 2


def test_sections_are_known_beforehand() -> None:
    texts = ['("a fox", "a dog").blend(0.3, 0.7)', '("a cat", "a cow").and()', "plain (red)1.3"]
    calls = assert_as_alone([read(text, syntax="compel", scheme="compel", pooled="raw text") for text in texts])
    assert calls == [9]  # five prompts, the empty one, and three raw texts


WORDS = " ".join(f"(word{number}:{1.01 + number / 1000:.3f})" for number in range(120))
FADED = " ".join(f"(word{number}:{number / 1000:.3f})" for number in range(120))


def test_equal_encodings_are_made_once_and_known_beforehand() -> None:
    reads = [read(WORDS, scheme="comfy++")]
    num_chunks = len(reads[0].chunks)
    assert num_chunks > 1
    counting = Counting()
    [encoded] = encode_prompts(reads, counting, max_chunks=7)
    # the prompt, and for each word the one chunk that contains it
    assert sum(counting.chunks) == encoded.num_encodings == num_chunks + 120
    assert max(counting.chunks) == 7
    one_call = Counting()
    [expected] = encode_prompts(reads, one_call, max_chunks=10_000)
    assert len(one_call.chunks) == 1
    torch.testing.assert_close(encoded.hidden, expected.hidden, atol=1e-5, rtol=0)


class Weighed(Counting):
    """Watches how much of what it gave is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def __call__(self, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        encoding = super().__call__(ids, mask, is_causal=is_causal)
        storage = encoding.hidden.untyped_storage()
        self.alive = [ref for ref in self.alive if ref() is not None] + [weakref.ref(storage)]
        self.most = max(self.most, len(self.alive))
        return encoding


@pytest.mark.parametrize(("text", "scheme"), [(WORDS, "comfy++"), (FADED, "masked_blend"), (FADED, "compel")])
def test_results_are_folded_and_let_go(text: str, scheme: str) -> None:
    weighed = Weighed()
    one = read(text, scheme=scheme)
    encode_prompts([one], weighed, max_chunks=4)
    assert len(weighed.chunks) > 30
    assert weighed.most <= len(one.chunks) + 2, "of each chunk one answer may be held, and the last call's"


def test_a_hosts_own_call_is_made_just_so() -> None:
    """All chunks of the prompt, equal ones too, and the empty one; nothing else, whatever the size of calls."""
    given: list[list[tuple[int, ...]]] = []

    def spy(ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        given.append([tuple(chunk) for chunk in ids])
        return TINY(ids, mask, is_causal=is_causal)

    text = "a cat BREAK a cat BREAK a (dog:0.5) BREAK (much:1.2)"
    one = read(text, syntax="a1111", scheme="masked_blend")
    other = read("a cat (twice:1.3)", syntax="a1111", scheme="comfy")
    encode_prompts([one, other], spy, max_chunks=2, keeps_calls=True)
    empty = close_chunk([], CLIP_L_LAYOUT).ids
    assert given[0] == [*(chunk.ids for chunk in one.chunks), empty]
    assert given[0][0] == given[0][1]
    assert given[-1] == [other.chunks[0].ids, empty]
    # the only other question is the chunk without the dog, whose mask is another
    assert given[1:-1] == [[one.chunks[2].ids]]


def test_between_calls_it_can_be_ended() -> None:
    counting = Counting()

    def check() -> None:
        if len(counting.chunks) == 3:
            raise KeyboardInterrupt

    encoders = Encoders({"tower": READERS["clip_l"]}, {"tower": counting}, max_chunks=4)
    with pytest.raises(KeyboardInterrupt):
        encoders.prepare([WORDS], scheme="comfy++").run(check)
    assert counting.chunks == [4, 4, 4]


def test_a_plan_can_be_carried_out_again() -> None:
    counting = Counting()
    encoders = Encoders({"tower": READERS["clip_l"]}, max_chunks=4)
    prepared = encoders.prepare(["a (red:0.5) fox", "a dog"], scheme="masked_blend")
    first, second = (prepared.run_tower("tower", counting) for _ in range(2))
    assert counting.chunks == [3, 3]
    assert all(torch.equal(one.hidden, other.hidden) for one, other in zip(first, second, strict=True))


def test_too_many_encodings_are_refused_before_any_is_made(monkeypatch) -> None:
    encoders = Encoders({"tower": READERS["clip_l"]}, max_encodings=100)
    with pytest.raises(TooManyEncodings, match=r"more than 100 different encodings.*WEIGHTED_CLIP_MAX_ENCODINGS"):
        encoders.prepare([WORDS], scheme="comfy++")
    assert encoders.prepare([WORDS], scheme="comfy").num_encodings < 10
    monkeypatch.setenv("WEIGHTED_CLIP_MAX_ENCODINGS", "50")
    assert Encoders({}).max_encodings == 50
    monkeypatch.setenv("WEIGHTED_CLIP_MAX_ENCODINGS", "many")
    with pytest.raises(ValueError, match="WEIGHTED_CLIP_MAX_ENCODINGS=many"):
        Encoders({})


def test_no_prompts_ask_nothing() -> None:
    assert assert_as_alone([]) == []


def test_a_wrong_filler_is_refused() -> None:
    with pytest.raises(ValueError, match="filler"):
        encode_prompts([read("a fox"), read("a fox", filler="two words")], Counting())


# --- plans


PROMPT = 'a (red:1.3) cat, (a:0.4) (dog:-0.5) and "x" ' * 12


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_plan_is_made_without_tensors_and_modules(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("a plan was to be made without tensors")

    prompt = read(PROMPT, scheme=scheme, padding="mask", hide="dog")
    for owner, name in ((torch.nn.Module, "__call__"), (torch, "tensor"), (torch, "zeros"), (torch, "ones")):
        monkeypatch.setattr(owner, name, refuse)
    plan = plan_prompt(prompt, default_tokenizer())
    variants = list(plan.variants())
    assert all(isinstance(variant, Variant) and variant.title for variant in variants)
    assert variants[0].chunks[0].ids == prompt.chunks[0].ids


def test_sixteen_texts_are_read_and_planned_sixteen_times(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def counted(one, tokenize):
        planned.append(one.prompt.source)
        return plan_prompt(one, tokenize)

    monkeypatch.setattr(door, "plan_prompt", counted)
    texts = [f"a (red:1.{number}) cat" for number in range(16)]
    prepared = Encoders({"clip_l": READERS["clip_l"]}).prepare(texts, EncodeOptions(scheme="masked_blend"))
    assert prepared.num_encodings == 2  # the same tokens all of them, and the empty prompt
    assert planned == texts
