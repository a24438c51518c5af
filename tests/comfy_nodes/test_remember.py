"""The node Remember Encodings on a fake host: what is encoded again, and what never is given when it is old."""

import logging
from copy import copy

import pytest
import torch

from .fake_comfy import FakeClip, Patcher, Tower, encode, node, remembering, rows


@pytest.fixture
def encoded(monkeypatch):
    """The chunks that the host is given, as they come; cleared by the reader."""
    chunks: list = []
    prepare = Tower.process_tokens
    monkeypatch.setattr(
        Tower, "process_tokens", lambda self, tokens, device: chunks.extend(tokens) or prepare(self, tokens, device)
    )
    return chunks


def count(encoded: list) -> int:
    number = len(encoded)
    encoded.clear()
    return number


def test_only_what_is_new_is_encoded(encoded) -> None:
    clip = remembering()
    plain = FakeClip(clip.cond_stage_model)
    long = ", ".join(["a red fox in deep snow"] * 20)
    for text, number in (
        ("a (red:1.3) cat", 2),
        ("a (red:1.5) cat", 0),
        ("a (red:1.5) dog", 1),
        (f"{long} (end:1.2)", 2),
        (f"{long} (fin:1.2)", 1),
        ("a (red:0.5) cat", 0),
    ):
        result = rows(clip, text)
        assert count(encoded) == number, text
        assert torch.equal(result, rows(plain, text))
        encoded.clear()
    rows(clip, "a (red:0.5) cat", scheme="masked_blend")
    assert count(encoded) == 1  # the one in which red is hidden
    rows(clip.clone(), "a (red:0.3) cat", scheme="masked_blend")
    assert count(encoded) == 0


def test_what_is_remembered_under_a_mask_is_found_under_that_mask_alone(encoded) -> None:
    clip = remembering()
    plain = FakeClip(clip.cond_stage_model)
    for options in ({"padding": "mask"}, {"padding": "attend"}, {"padding": "mask EOS too"}, {"padding": "mask"}):
        assert torch.equal(rows(clip, "a cat", **options), rows(plain, "a cat", **options))


def test_nothing_old_is_given_after_a_change(encoded) -> None:
    clip = remembering()
    text = "a (embedding:known:1.2) cat"
    tower = clip.cond_stage_model.clip_l

    def as_without_memory() -> None:
        assert torch.equal(rows(clip, text), rows(FakeClip(clip.cond_stage_model), text))

    as_without_memory()
    before = rows(clip, text)
    with torch.no_grad():
        tower.transformer.text_model.encoder.layers.layers[0].mlp.fc1.weight.mul_(2)
    as_without_memory()
    tower.transformer.text_model.encoder.layers.layers[0].mlp.fc2.weight.data.mul_(2)
    as_without_memory()
    tower.layer, tower.layer_idx = "hidden", -2
    as_without_memory()
    tower.layer_norm_hidden_state = False
    as_without_memory()
    tower.return_projected_pooled = True
    as_without_memory()
    import comfy.sd1_clip as sd1_clip

    sd1_clip.load_embed = lambda name, *rest: torch.full((2, 64), 0.7)
    as_without_memory()
    assert not torch.equal(rows(clip, text), before)

    encoded.clear()
    lora = clip.clone()
    lora.patcher.patches_uuid = "a LoRA"  # of a partly loaded model, whose weights stay as they are
    rows(lora, text)
    assert count(encoded) == 2
    other = clip.clone()
    path = "clip_l.transformer.text_model.encoder"
    other.patcher.object_patches[path] = copy(clip.cond_stage_model.get_submodule(path))
    rows(other, text)
    assert count(encoded) == 2
    rows(other, text)
    assert count(encoded) == 0


def test_what_acts_on_calls_of_modules_is_seen(encoded) -> None:
    clip = remembering()
    text_model = clip.cond_stage_model.clip_l.transformer.text_model
    layer = text_model.encoder.layers.layers[0].mlp

    def numbers() -> torch.Tensor:
        expected = rows(FakeClip(clip.cond_stage_model, Patcher(clip.cond_stage_model)), "a (red:1.3) cat")
        assert torch.equal(rows(clip, "a (red:1.3) cat"), expected)
        return expected

    plain = numbers()
    handle = layer.register_forward_hook(lambda module, given, result: result * 2)
    assert not torch.equal(numbers(), plain)
    handle.remove()
    assert torch.equal(numbers(), plain)
    forward = layer.forward
    layer.forward = lambda *given: forward(*given) * 3
    assert not torch.equal(numbers(), plain)
    del layer.forward

    encoded.clear()
    bypassed = clip.clone()
    bypassed.patcher.injections = {"bypass_lora": [object()]}  # as the stock node Load LoRA (Bypass) does
    bypassed.clone = lambda: bypassed
    rows(bypassed, "a (red:1.3) cat")
    assert count(encoded) == 2


def test_nothing_is_remembered_under_hooks_or_in_no_bytes(encoded) -> None:
    clip = remembering()
    hooked = FakeClip(clip.cond_stage_model, clip.patcher)
    hooked.patcher.forced_hooks = object()
    clip.clone = hooked.clone = lambda: hooked
    for _ in range(2):
        rows(clip, "a (red:1.3) cat")
        assert count(encoded) == 2
    encode("A1111Encode", hooked, "a [cat|dog|cow] by the sea", steps=8)
    assert count(encoded) == 3
    off = remembering(mebibytes=0)
    for _ in range(2):
        rows(off, "a (red:1.3) cat")
        assert count(encoded) == 2


def test_weights_that_cannot_be_compared_are_not_remembered(encoded, monkeypatch, caplog) -> None:
    def unreadable(module):
        raise RuntimeError("no numbers here")

    monkeypatch.setattr("weighted_clip.hosts.comfy.models.cache.state_of", unreadable)
    clip = remembering()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            rows(clip, "a (red:1.3) cat")
            assert count(encoded) == 2
    assert "no numbers here" in caplog.text


def test_the_texts_of_a_timed_prompt_are_encoded_together(encoded, monkeypatch) -> None:
    calls: list[int] = []
    prepare = Tower.process_tokens
    monkeypatch.setattr(
        Tower, "process_tokens", lambda self, tokens, device: calls.append(len(tokens)) or prepare(self, tokens, device)
    )
    text = "a [cat|dog|cow] by the sea"
    clip = remembering()
    together = encode("A1111Encode", clip, text, steps=8)["result"][0]
    assert calls == [3]
    alone = encode("A1111Encode", FakeClip(clip.cond_stage_model), text, steps=8)["result"][0]
    assert calls == [3, 1, 1, 1]
    assert len(together) == len(alone)
    for (one, about), (other, its_about) in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
        assert about["start_percent"] == its_about["start_percent"]


def test_a_clip_without_clip_is_refused(encoded) -> None:
    with pytest.raises(ValueError, match="clip input is None"):
        node("Remember").remember(None, 64)


def test_a_patcher_without_attachments_encodes_as_ever(encoded, monkeypatch) -> None:
    monkeypatch.delattr(Patcher, "get_attachment")
    rows(FakeClip(), "a (red:1.3) cat")
    assert count(encoded) == 2
