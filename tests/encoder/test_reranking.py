"""Features within a memory budget, the order of scores, texts as vectors, and a CLIP that learns to find pictures."""

import math
import os
import random
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Semaphore
from threading import enumerate as enumerate_threads

import pytest
import torch
from PIL import Image
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.images import (
    MAX_BATCH,
    MEMORY_BUDGET,
    best,
    bytes_per_image,
    fixed_bytes,
    image_features,
    preprocess,
)
from weighted_clip.encoder.models.clip import FullClip
from weighted_clip.encoder.models.config import VisionConfig
from weighted_clip.encoder.similarity import similarity
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.reading.features import TextFeatures, text_features
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT

from ..patience import SECONDS
from .trained_clip import NUM_READ, TEXT, chunk_of, picture_of, split

VISION = VisionConfig(image_size=28, hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128, projection_dim=64)
EACH = bytes_per_image(VISION, 4, 28, 28)
FIXED = fixed_bytes(VISION, 4)


@pytest.fixture(scope="module")
def clip() -> FullClip:
    """Random weights."""
    return FullClip(seeded_text_model(TEXT), seeded_vision_model(VISION))


def pictures(count: int, side: int = 28, seed: int = 0) -> list[Image.Image]:
    rng = random.Random(seed)
    return [Image.frombytes("RGB", (side, side), rng.randbytes(3 * side * side)) for _ in range(count)]


# --- the order of scores


def test_of_equal_scores_the_earlier_comes_first() -> None:
    scores = [0.5, 0.7, 0.5, 0.7, 0.1] * 40
    order = best(scores, len(scores))
    assert order == sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    assert best([1.0] * 500, 500) == list(range(500))


def test_nan_is_lowest_and_infinity_highest() -> None:
    assert best([math.nan, -1.0, math.inf, 0.3, math.nan], 5) == [2, 3, 1, 0, 4]
    assert best(torch.tensor([math.nan, -0.2, 0.1]), 1) == [2]


@pytest.mark.parametrize(("keep", "expected"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 0]), (99, [1, 2, 0])])
def test_keep_is_at_most_all(keep: int, expected: list[int]) -> None:
    assert best([0.1, 0.9, 0.4], keep) == expected
    assert best([], keep) == []


def test_keeping_none_is_refused() -> None:
    with pytest.raises(ValueError, match="keep must be at least 1, got 0"):
        best([0.1], 0)


# --- features within a budget


@pytest.mark.parametrize(
    ("budget", "sizes"),
    [(0, [1] * 7), (EACH, [1] * 7), (2 * EACH - 1, [1] * 7), (3 * EACH, [3, 3, 1]), (100 * EACH, [7])],
)
@pytest.mark.parametrize("are_tensors", [False, True])
def test_batches_are_as_large_as_the_budget_allows(
    clip: FullClip, budget: int, sizes: list[int], are_tensors: bool
) -> None:
    images = torch.rand(7, 28, 28, 3) if are_tensors else pictures(7)
    done: list[int] = []
    features = image_features(clip, images, memory_budget=FIXED + budget, on_progress=done.append)
    assert [after - before for before, after in zip([0, *done], done, strict=False)] == sizes
    assert features.shape == (7, 64)


def test_no_batch_is_larger_than_the_limit(clip: FullClip) -> None:
    done: list[int] = []
    image_features(clip, pictures(MAX_BATCH + 1), memory_budget=10**12, on_progress=done.append)
    assert done == [MAX_BATCH, MAX_BATCH + 1]


def test_large_images_of_a_host_count_as_large(clip: FullClip) -> None:
    """As they are made smaller together."""
    done: list[int] = []
    image_features(clip, torch.rand(4, 96, 200, 3), memory_budget=FIXED + 10 * EACH, on_progress=done.append)
    assert done == [1, 2, 3, 4]
    assert bytes_per_image(VISION, 4, 96, 200) > 5 * EACH


@pytest.mark.parametrize("crop", ["center", "letterbox", "stretch"])
def test_the_batch_size_changes_nothing(clip: FullClip, crop: str) -> None:
    images = [picture.resize((30 + 5 * n, 90 - 3 * n)) for n, picture in enumerate(pictures(9))]
    together = image_features(clip, images, crop)
    for budget in (0, 2 * EACH, 5 * EACH):
        found = image_features(clip, iter(images), crop, memory_budget=FIXED + budget)
        torch.testing.assert_close(found, together, rtol=0, atol=1e-6)
    one_by_one = torch.cat([clip.image_features(preprocess(image, 28, crop)) for image in images])
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=1e-6)
    torch.testing.assert_close(together.norm(dim=-1), torch.ones(9))


def test_no_images_give_no_features(clip: FullClip) -> None:
    assert image_features(clip, []).shape == (0, 64)
    assert image_features(clip, torch.zeros(0, 8, 8, 3)).shape == (0, 64)


def test_other_things_than_images_are_refused(clip: FullClip) -> None:
    with pytest.raises(ValueError, match=r"images must be float \[images, height, width.*got float32 \[2, 8, 8\]"):
        image_features(clip, torch.zeros(2, 8, 8))
    with pytest.raises(ValueError, match="images must be PIL images or a float tensor, got str"):
        image_features(clip, ["cat.png"])


def test_images_are_fetched_while_earlier_ones_are_encoded_and_let_go(clip: FullClip) -> None:
    seen: list[weakref.ref[Image.Image]] = []
    fetched = Semaphore(0)

    def images() -> Iterator[Image.Image]:
        for _ in range(8):
            image = Image.new("RGB", (60, 40))
            seen.append(weakref.ref(image))
            fetched.release()
            yield image
            del image
            # the last one may still be bound to a name where it was made smaller
            assert sum(reference() is not None for reference in seen) <= 1

    def on_progress(done: int) -> None:
        assert len(seen) <= done + 3
        if done == 3:  # all of the next batch comes while this one is still at work
            assert all(fetched.acquire(timeout=SECONDS) for _ in range(6))

    assert len(image_features(clip, images(), memory_budget=FIXED + 3 * EACH, on_progress=on_progress)) == 8


def test_what_the_callback_raises_ends_the_work(clip: FullClip) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    images = iter(pictures(60))
    with pytest.raises(KeyboardInterrupt):
        image_features(clip, images, memory_budget=FIXED + 2 * EACH, on_progress=stop)
    assert not [thread for thread in enumerate_threads() if thread.name.startswith("weighted-clip-images")]
    assert len(list(images)) >= 60 - 4


def test_an_error_of_an_image_comes_where_the_image_does(clip: FullClip) -> None:
    def images() -> Iterator[Image.Image]:
        yield from pictures(3)
        raise OSError("the disk is gone")

    done: list[int] = []
    with pytest.raises(OSError, match="the disk is gone"):
        image_features(clip, images(), memory_budget=FIXED + EACH, on_progress=done.append)
    assert done == [1, 2, 3]


MEASURE = """
import re, runpy, sys
from pathlib import Path

runpy.run_path(sys.argv[1] + "/__main__.py")["load_package"]()
from PIL import Image
from weighted_clip.encoder.files.checkpoint import seeded_vision_model
from weighted_clip.encoder.models.config import VisionConfig
from weighted_clip.encoder.models.clip import FullClip
from weighted_clip.encoder.images import bytes_per_image, fixed_bytes, image_features

def memory(name):
    found = re.search(rf"{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024

config = VisionConfig(hidden_dim=256, num_heads=4, num_layers=2, mlp_dim=1024, projection_dim=64)
clip = FullClip(None, seeded_vision_model(config))
images = lambda count: (Image.new("RGB", (512, 512), (n, 0, 0)) for n in range(count))
image_features(clip, images(1))  # what the libraries need once
for budget in map(int, sys.argv[2:]):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    done = []
    image_features(clip, images(32), memory_budget=budget, on_progress=done.append)
    print(memory("VmHWM") - before, done[0], bytes_per_image(config, 4, 224, 224), fixed_bytes(config, 4))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux, to measure the peak of memory")
def test_the_peak_of_memory_is_within_the_budget() -> None:
    """32 images of 512 x 512 in a process of its own: resident memory, which has torch's and Pillow's in it."""
    budget = 48 * 1024**2
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", MEASURE, str(root), str(budget), str(MEMORY_BUDGET)]
    # glibc: what is freed goes back at once, so that what is held back for later does not count
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": str(2**18)}
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    (peak, batch, each, fixed), (peak_of_all, all_at_once, _, _) = (
        map(int, line.split()) for line in printed.splitlines()
    )
    assert batch == (budget - fixed) // each
    assert 4 < batch < 16
    assert peak <= budget
    assert all_at_once == 32
    assert peak_of_all > budget  # so the measure would have seen it
    assert peak_of_all <= fixed + 32 * each  # and the estimate is no less than what is used


# --- a text as a vector


def features_of(clip: FullClip, text: str, syntax: str = "none") -> TextFeatures:
    return text_features(text, syntax, default_tokenizer(), CLIP_L_LAYOUT, clip.text_features)


def vector_of(clip: FullClip, ids: list[int]) -> Tensor:
    """``[p]``, of length 1, of one chunk made by hand."""
    bos, eos = 49406, 49407
    chunk = [bos, *ids, eos, *[eos] * (75 - len(ids))]
    with torch.no_grad():
        projected = clip.text(torch.tensor([chunk])).projected
    assert projected is not None
    return projected[0] / projected[0].norm()


def ids_of(text: str) -> list[int]:
    return [token_id for token_id, _, _ in default_tokenizer()(text)]


@pytest.mark.parametrize("text", ["", "a red cat", "猫", "word " * 75])
def test_a_text_that_fits_has_clips_own_vector(clip: FullClip, text: str) -> None:
    found = features_of(clip, text)
    torch.testing.assert_close(found.vector, vector_of(clip, ids_of(text)), rtol=0, atol=1e-6)
    assert found.read.issues == ()


@pytest.mark.parametrize("count", [76, 100, 150, 161])
def test_parts_of_a_long_text_count_by_their_tokens(clip: FullClip, count: int) -> None:
    ids = ids_of(" ".join(["cat", "dog", "tree", "lake"][n % 4] for n in range(count)))
    assert len(ids) == count
    parts = [ids[start : start + 75] for start in range(0, count, 75)]
    total = sum(len(part) * vector_of(clip, part).double() for part in parts)
    found = features_of(clip, " ".join(["cat", "dog", "tree", "lake"][n % 4] for n in range(count)))
    torch.testing.assert_close(found.vector.double(), total / total.norm(), rtol=0, atol=1e-6)
    assert found.vector.norm().item() == pytest.approx(1, abs=1e-6)
    [issue] = found.read.issues
    assert issue.message == f"CLIP reads 75 tokens at once: the {len(parts)} parts of this text are averaged."


@pytest.mark.parametrize(
    ("text", "syntax", "plain"),
    [
        ("a (red:1.4) cat", "a1111", "a red cat"),
        ("a (red:1.4) cat", "comfy", "a red cat"),
        ("a red++ cat", "compel", "a red cat"),
    ],
)
def test_weights_are_left_out_and_told(clip: FullClip, text: str, syntax: str, plain: str) -> None:
    found = features_of(clip, text, syntax)
    torch.testing.assert_close(found.vector, vector_of(clip, ids_of(plain)), rtol=0, atol=1e-6)
    [issue] = found.read.issues
    assert issue.message == "Similarity has no weights: they are left out."
    assert text[issue.span.start : issue.span.end] == "red"


def test_without_a_syntax_brackets_are_text(clip: FullClip) -> None:
    text = r"a (red:1.4) [cat] BREAK \(x\)"
    found = features_of(clip, text)
    torch.testing.assert_close(found.vector, vector_of(clip, ids_of(text)), rtol=0, atol=1e-6)
    assert found.read.issues == ()


def test_an_unknown_syntax_is_refused(clip: FullClip) -> None:
    with pytest.raises(ValueError, match="'markdown'"):
        features_of(clip, "a", "markdown")


# --- a CLIP that has learned


@pytest.fixture(scope="module")
def learned(trained_clip: FullClip) -> FullClip:
    return trained_clip


@pytest.fixture(scope="module")
def drawn() -> list[Image.Image]:
    """A picture of each held-out caption, drawn at another size than those that were learned."""
    rng = random.Random(2)
    return [picture_of(shape, rng, 128) for shape in split()[1]]


def test_no_caption_is_in_both_parts() -> None:
    train, held_out = ({shape.caption for shape in part} for part in split())
    assert (len(train), len(held_out)) == (476, 64)
    assert not train & held_out


def test_training_on_fewer_positions_is_the_same(clip: FullClip) -> None:
    ids = torch.tensor([chunk_of(shape.caption).plain_ids for shape in split()[1]])
    assert ids.shape == (64, 77)
    assert (ids[:, NUM_READ - 1 :] == TEXT.eos_id).all()
    with torch.no_grad():
        cut, whole = clip.text(ids[:, :NUM_READ]).projected, clip.text(ids).projected
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-5)


@pytest.mark.long
def test_pictures_and_captions_that_were_not_learned_find_each_other(
    learned: FullClip, drawn: list[Image.Image]
) -> None:
    texts = torch.stack([features_of(learned, shape.caption).vector for shape in split()[1]])
    scores = similarity(texts, image_features(learned, drawn))
    own = torch.arange(64)
    assert (scores.argmax(dim=1) == own).float().mean() >= 0.9  # recall@1, text to image
    assert (scores.argmax(dim=0) == own).float().mean() >= 0.9  # image to text
    assert 1 < learned.logit_scale < 100


@pytest.mark.long
def test_reranking_finds_the_picture_of_every_caption(learned: FullClip, drawn: list[Image.Image]) -> None:
    features = image_features(learned, iter(drawn))
    for number, shape in enumerate(split()[1]):
        described = features_of(learned, shape.caption)
        scores = similarity(described.vector.unsqueeze(0), features)[0]
        assert best(scores, 4)[0] == number, shape.caption
    shuffled = random.Random(3).sample(range(64), 64)
    again = image_features(replace(learned), [drawn[index] for index in shuffled], memory_budget=0)
    torch.testing.assert_close(again, features[shuffled], rtol=0, atol=1e-6)
