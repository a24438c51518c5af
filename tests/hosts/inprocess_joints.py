"""Checks of AND_PERP, AND_SALT and AND_TOPK: each guided prediction by neutral-prompt's formulas, from single prompts.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import torch
from inprocess import apart, compares, main, note, refusal, stock
from inprocess_timed import Bench, encode_timed, sample, sigmas_of
from served_clip import served

JOINS = {"joins": "neutral-prompt"}
SCALE = 7.0


def perpendicular(normal: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """By the paper: what is left of a vector without its projection."""
    return vector - normal * (normal * vector).sum() / (normal * normal).sum()


@compares("AND_PERP, AND_TOPK and AND_SALT: guidance, by hand from each prompt, relative to the largest", limit=5e-5)
def check_joined_prompts_guide_as_by_neutral_prompt() -> None:
    bench = Bench()
    sigmas = sigmas_of(bench.model, "karras", 3)
    texts = ("a cat", " a (red:1.3) dog", " mist")
    one, two, three = (
        sample(bench.model, [[bench.encodings.of(text), {}]], bench.negative, sigmas, cfg=2.0)[0] for text in texts
    )
    base = one.unguided
    cat, dog, mist = (each.positive - base for each in (one, two, three))
    least = dog.abs().flatten().sort().values[int(dog.numel() * 0.95) - 1]
    shares = torch.stack([each.abs().flatten().softmax(0).view_as(cat) for each in (cat, dog, mist)]).argmax(0)
    for prompt, cfg, expected in (
        ("a cat AND_PERP a (red:1.3) dog:-0.7", SCALE, cat - 0.7 * perpendicular(cat, dog)),
        ("a cat AND_TOPK a (red:1.3) dog:2", SCALE, cat + 2 * torch.where(dog.abs() >= least, dog, 0.0)),
        (
            "a cat AND_SALT a (red:1.3) dog AND_SALT mist:0.5",
            SCALE,
            cat + (shares == 1) * (dog - cat) + 0.5 * (shares == 2) * (mist - cat),
        ),
        (
            "a cat AND a (red:1.3) dog:0.5 AND_PERP mist",
            SCALE * 1.5,
            (both := cat + dog / 2) + perpendicular(both, mist),
        ),
        (
            "a cat AND_PERP [ a (red:1.3) dog AND mist]:0.5",
            SCALE,
            cat + 0.5 * perpendicular(cat, dog + mist),
        ),
    ):
        positive = encode_timed(bench.clip, prompt, sigmas=sigmas, **JOINS)
        call = sample(bench.model, positive, bench.negative, sigmas, cfg=cfg)[0]
        by_hand = base + SCALE * expected
        note(apart(call.guided, by_hand) / float(by_hand.abs().max()))


@compares("AND_PERP at CFG 1 and over the steps, by Weighted CLIP and by A1111/Forge Prompt", limit=1e-6)
def check_every_way_gives_the_same_predictions() -> None:
    bench = Bench()
    sigmas = sigmas_of(bench.model, "normal", 4)
    prompt = "a [cat:dog:2] AND_PERP mist:-1"
    by_node = encode_timed(bench.clip, prompt, steps=4, **JOINS)
    choices = {"syntax": "a1111", "scheme": "a1111", "chunking": "a1111", "timed": True, "steps": 4, **JOINS}
    by_clip = stock(served(bench.clip, **choices), prompt)
    assert len(by_node) == len(by_clip) == 3
    for cfg in (1.0, 7.0):
        calls = [sample(bench.model, each, bench.negative, sigmas, cfg=cfg) for each in (by_node, by_clip)]
        assert len(calls[0]) == 4
        for one, other in zip(*calls, strict=True):
            note(apart(one.guided, other.guided))
        assert not torch.equal(calls[0][0].guided, calls[0][0].unguided)


@compares(
    "Comments left out by Weighted CLIP and by A1111/Forge Prompt: rows with those of the prompt alone", limit=1e-6
)
def check_comments_are_left_out_before_words_join() -> None:
    bench = Bench()
    prompt, commented = "a cat AND_PERP mist:-1", "a cat // AND [x:y:2]\n AND_PERP /* AND_SALT */ mist:-1"
    choices = {"syntax": "a1111", "scheme": "a1111", "chunking": "a1111", "timed": True, "steps": 4, **JOINS}
    for encode in (
        lambda text, **more: encode_timed(bench.clip, text, steps=4, **JOINS, **more),
        lambda text, **more: stock(served(bench.clip, **choices, **more), text),
    ):
        plain, left = encode(prompt), encode(commented, comments="//")
        assert len(plain) == len(left) == 2 and len(encode(commented)) > 2
        for (rows, _), (expected, _) in zip(left, plain, strict=True):
            note(apart(rows, expected))


def host_hooks() -> object:
    """A group of hooks of the host without ours, as another node may set."""
    import comfy.hooks

    return comfy.hooks.HookGroup()


def check_what_cannot_be_joined_is_refused_and_nothing_is_left_behind() -> None:
    bench = Bench()
    sigmas = sigmas_of(bench.model, "normal", 2)
    joined = encode_timed(bench.clip, "a cat AND_PERP mist", steps=2, **JOINS)
    plain = stock(bench.clip, "a cat")
    before = sample(bench.model, plain, bench.negative, sigmas)
    sample(bench.model, joined, bench.negative, sigmas)
    after = sample(bench.model, plain, bench.negative, sigmas)
    assert all(torch.equal(one.guided, other.guided) for one, other in zip(before, after, strict=True))
    for positive, negative, message in (
        ([*joined, *plain], bench.negative, "cannot be combined with another"),
        (joined, joined, "take them out of the negative"),
        ([[rows, {**values, "hooks": host_hooks()}] for rows, values in joined], bench.negative, "would be lost"),
    ):
        assert message in refusal(lambda given=(positive, negative): sample(bench.model, *given, sigmas))


if __name__ == "__main__":
    main(globals())
