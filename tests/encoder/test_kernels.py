"""Choice of the kernel, its packed weights, and sums as exact as PyTorch's."""

import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from weighted_clip.encoder.cache import state_of
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.models import fast_layers as fast
from weighted_clip.encoder.models import kernels
from weighted_clip.encoder.models.clip import FullClip
from weighted_clip.encoder.models.config import VisionConfig
from weighted_clip.encoder.models.fast_layers import PACKS, Fast, Packs, products_of
from weighted_clip.encoder.models.kernels import PACKED, VARIABLE, Choice, Kernel, available, machine
from weighted_clip.encoder.models.layers import quick_gelu
from weighted_clip.encoder.models.linear import ONEDNN, PackedByMKL, PackedByOneDNN, has_packed_mkl
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel

from .conftest import TINY, random_ids

needs_onednn = pytest.mark.skipif(ONEDNN is None, reason="needs oneDNN on x86")
needs_mkl = pytest.mark.skipif(not has_packed_mkl(), reason="needs MKL with packed weights for any number of rows")
each_packed = pytest.mark.parametrize(
    "kernel", [pytest.param("onednn", marks=needs_onednn), pytest.param("mkl", marks=needs_mkl)]
)
IDS = random_ids(1).tolist()


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Force nothing; what measuring returns, the last first, and more of it than needed."""
    monkeypatch.delenv(VARIABLE)
    return ["plain", "onednn"]


# --- the choice


@needs_onednn
def test_nothing_is_measured_before_the_first_answer(measurements: list[Kernel], tmp_path: Path) -> None:
    place = tmp_path / "folder" / "kernels.json"
    choice = Choice(measurements.pop, place=lambda: place)
    assert [choice.now(), choice.now()] == ["plain", "plain"]
    assert len(measurements) == 2
    choice.answered()
    assert [choice.now(), choice.now()] == ["onednn", "onednn"]
    assert len(measurements) == 1
    assert json.loads(place.read_text(encoding="utf-8")) == {machine(): "onednn"}
    restarted = Choice(measurements.pop, place=lambda: place)
    assert restarted.now() == "onednn"  # from the first answer
    assert len(measurements) == 1


@needs_onednn
@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"another machine": "onednn"}', "{MACHINE: 3}", '{MACHINE: "fastest"}']
)
def test_a_file_that_does_not_know_the_machine_is_made_anew(
    text: str, measurements: list[Kernel], tmp_path: Path
) -> None:
    place = tmp_path / "kernels.json"
    place.write_text(text.replace("MACHINE", json.dumps(machine())), encoding="utf-8")
    choice = Choice(measurements.pop, place=lambda: place)
    assert choice.now() == "plain"
    choice.answered()
    assert choice.now() == "onednn"
    known = json.loads(place.read_text(encoding="utf-8"))
    assert known[machine()] == "onednn"
    assert ("another machine" in known) == ("another machine" in text)


@needs_onednn
@pytest.mark.usefixtures("measurements")
def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    before = [*tmp_path.iterdir()]
    for place in (tmp_path / "file" / "kernels.json", tmp_path / "folder"):
        choice = Choice(["plain", "onednn"].pop, place=lambda place=place: place)
        choice.answered()
        assert [choice.now(), choice.now()] == ["onednn", "onednn"]
        assert [*tmp_path.iterdir()] == before


def test_a_kernel_can_be_forced(measurements: list[Kernel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    choice = Choice(measurements.pop, place=lambda: tmp_path / "kernels.json")
    choice.answered()
    monkeypatch.setenv(VARIABLE, "plain")
    assert choice.now() == "plain"
    monkeypatch.setenv(VARIABLE, "fastest")
    with pytest.raises(ValueError, match="WEIGHTED_CLIP_KERNEL=fastest is no kernel; allowed are plain, onednn, mkl"):
        choice.now()
    monkeypatch.setenv(VARIABLE, "onednn")
    monkeypatch.setattr(kernels, "available", lambda: ("plain",))
    with pytest.raises(ValueError, match=r"WEIGHTED_CLIP_KERNEL=onednn: .* on this processor; allowed here: plain$"):
        choice.now()
    monkeypatch.delenv(VARIABLE)
    assert choice.now() == "plain"  # where there is no other
    assert len(measurements) == 2
    assert not list(tmp_path.iterdir())


@needs_onednn
def test_what_one_kernel_computed_is_not_taken_for_anothers(tiny: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = PrefixTextEncoder(tiny)
    for kernel in available():
        monkeypatch.setenv(VARIABLE, kernel)
        found = encode(IDS)
        assert torch.equal(found.hidden, PrefixTextEncoder(tiny, max_bytes=0)(IDS).hidden)
    assert len(encode.encodings) == len(available())


@needs_onednn
def test_texts_and_images_are_two_choices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE)
    place = tmp_path / "kernels.json"
    texts = Choice(lambda: "onednn", place=lambda: place)
    images = Choice(lambda: "plain", ", images", place=lambda: place)
    for choice, kernel in ((texts, "onednn"), (images, "plain")):
        choice.answered()
        assert choice.now() == kernel
    assert json.loads(place.read_text(encoding="utf-8")) == {machine(): "onednn", machine() + ", images": "plain"}
    for work, kernel in (("", "onednn"), (", images", "plain")):
        assert Choice(lambda: pytest.fail("measured again"), work, place=lambda: place).now() == kernel


@needs_onednn
@pytest.mark.parametrize("measure", [kernels.measured_on_texts, kernels.measured_on_images])
def test_measuring_names_a_kernel(measure: Callable[[int], Kernel]) -> None:
    state = torch.random.get_rng_state()
    assert measure(1) in available()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_faster_kernel_is_chosen_if_it_gains_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(kernels.time, "perf_counter", lambda: now[0])

    def taking(seconds: float) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + seconds)

    for onednn, mkl, expected in ((0.9, 0.95, "onednn"), (0.9, 0.8, "mkl"), (0.99, 0.98, "plain"), (1.2, 1.1, "plain")):
        ways = {"plain": taking(0.01), "onednn": taking(0.01 * onednn), "mkl": taking(0.01 * mkl)}
        assert kernels._fastest([[ways] * 3] * 2, repetitions=2) == expected


@needs_onednn
def test_no_weight_is_timed_again_before_as_much_is_read_as_by_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[torch.Tensor] = []

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        read.append(weight)
        return torch.nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(kernels, "functional", SimpleNamespace(linear=linear))
    monkeypatch.setattr(kernels, "MOST_SECONDS", math.inf)
    monkeypatch.setattr(kernels, "LEAST_GAIN", math.inf)
    kernels.measured_on_texts(repetitions=2)
    for place, weight in enumerate(read):
        since = next((n for n, later in enumerate(read[place + 1 :]) if later is weight), 3)
        assert since >= 3  # the other weights of its block, by three kernels
    assert len({id(weight) for weight in read}) == 4 * kernels.NUM_BLOCKS


# --- packed weights


@each_packed
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("num_inputs", [5, 64, 191, 193, 768, 1280, 3072])
def test_joined_products_are_those_of_the_layers(num_inputs: int, has_bias: bool, kernel: Kernel) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(num_inputs, size, bias=has_bias).requires_grad_(False) for size in (6, 10, 10)]
    product = PACKED[kernel](layers)
    for rows in (1, 8, 26, 77, 130, 700):
        x = torch.randn(rows, num_inputs)
        for found, layer in zip(product(x), layers, strict=True):
            exact = x.double() @ layer.weight.double().T + (layer.bias.double() if has_bias else 0)
            torch.testing.assert_close(found, exact.float(), atol=4e-6, rtol=0)


@each_packed
@pytest.mark.parametrize("num_inputs", [768, 3072, 5120])
def test_sums_are_as_exact_as_pytorchs(num_inputs: int, kernel: Kernel) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(num_inputs, 256).requires_grad_(False)
    layer.weight.normal_(generator=generator)
    x = torch.randn(77, num_inputs, generator=generator)
    exact = x.double() @ layer.weight.double().T + layer.bias.double()
    errors = [(found - exact).pow(2).mean().sqrt() for found in (PACKED[kernel]([layer])(x)[0], layer(x))]
    assert errors[0] <= 1.1 * errors[1]


@needs_onednn
def test_neither_default_device_nor_default_type_disturbs_the_measurement() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            assert has_packed_mkl.__wrapped__() == has_packed_mkl()
            assert kernels.measured_on_texts(1) in available()
    finally:
        torch.set_default_dtype(torch.float32)


@needs_mkl
def test_an_mkl_that_takes_only_the_rows_it_packed_for_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    product = PackedByMKL._product
    monkeypatch.setattr(PackedByMKL, "_product", lambda self, x: product(self, x) + (len(x) == 26))
    assert not has_packed_mkl.__wrapped__()
    monkeypatch.setattr(kernels, "has_packed_mkl", has_packed_mkl.__wrapped__)
    assert "mkl" not in available.__wrapped__()


@needs_onednn
def test_weights_are_packed_once_and_anew_when_they_change() -> None:
    model = seeded_text_model(TINY)
    encode = PrefixTextEncoder(model, max_bytes=0)
    encode(IDS)
    size = sum(layer.weight.nbytes for block in model.encoder.layers for one in products_of(block) for layer in one)
    assert PACKS.num_bytes(model) == size > 0
    first = PACKS._found[model][1]
    encode(IDS)
    PrefixTextEncoder(model, max_bytes=0)(IDS)
    assert PACKS._found[model][1] is first
    with torch.no_grad():
        model.get_parameter("encoder.layers.1.mlp.fc2.weight").add_(1)
    found = encode(IDS)
    assert PACKS._found[model][1] is not first
    torch.testing.assert_close(found.hidden, TextEncoder(model)(IDS).hidden, atol=1e-5, rtol=0)


@needs_onednn
def test_packed_weights_go_with_their_model() -> None:
    model = seeded_text_model(TINY)
    count = len(PACKS._found)
    PrefixTextEncoder(model, max_bytes=0)(IDS)
    assert len(PACKS._found) == count + 1
    del model
    assert len(PACKS._found) == count


@needs_onednn
def test_packed_weights_go_when_memory_is_short(tiny: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = PrefixTextEncoder(tiny, max_bytes=0)
    expected = encode(IDS)
    assert PACKS.num_bytes(tiny) > 0
    monkeypatch.setattr(fast, "free_bytes", lambda: fast.LEAST_FREE - 1)
    found = encode(IDS)
    assert PACKS.num_bytes(tiny) == 0
    torch.testing.assert_close(found.hidden, expected.hidden, atol=1e-5, rtol=0)
    monkeypatch.setattr(fast, "free_bytes", lambda: None)  # a system that does not tell
    encode(IDS)
    assert PACKS.num_bytes(tiny) > 0


@needs_onednn
def test_no_copy_is_kept_if_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded_text_model(TINY)
    encode = PrefixTextEncoder(model, max_bytes=0, is_packed=False)
    few = encode(IDS)
    assert PACKS.num_bytes(model) == 0
    packed: list[int] = []
    monkeypatch.setitem(PACKED, "onednn", lambda layers: packed.append(1) or PackedByOneDNN(layers))
    many = encode(random_ids(8).tolist())  # enough for a copy that is used once to pay off
    assert len(packed) == 4 * TINY.num_layers
    assert PACKS.num_bytes(model) == 0
    torch.testing.assert_close(many.hidden[:1], encode(random_ids(8)[:1].tolist()).hidden, atol=1e-5, rtol=0)
    assert few.hidden.shape == (1, 77, TINY.hidden_dim)


@needs_onednn
def test_an_encoder_tells_its_kernel_and_the_size_of_its_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded_text_model(replace(TINY, mlp_dim=1024))
    encode, lean = PrefixTextEncoder(model, max_bytes=0), PrefixTextEncoder(model, max_bytes=0, is_packed=False)
    assert encode.how_computed() == ""
    lean(IDS)
    assert lean.how_computed() == "matrix products by oneDNN without a copy of the weights"
    encode(IDS)
    size = sum(layer.weight.nbytes for block in model.encoder.layers for one in products_of(block) for layer in one)
    assert encode.how_computed() == f"matrix products by oneDNN on a copy of the weights, {size / 2**20:.0f} MiB"
    if "mkl" in available():
        monkeypatch.setenv(VARIABLE, "mkl")
        encode(IDS)
        assert encode.how_computed() == f"matrix products by MKL on a copy of the weights, {size / 2**20:.0f} MiB"
    monkeypatch.setenv(VARIABLE, "plain")
    encode(IDS)
    assert encode.how_computed() == "matrix products by PyTorch's own kernel"
    model.double()
    encode(IDS)
    assert encode.how_computed() == TextEncoder(model).how_computed() == ""


@needs_onednn
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_only_float32_is_packed(dtype: torch.dtype) -> None:
    model = seeded_text_model(TINY).to(dtype)
    PrefixTextEncoder(model, max_bytes=0)(IDS)
    assert PACKS.num_bytes(model) == 0


@needs_onednn
def test_weights_that_change_while_they_are_packed_are_not_kept() -> None:
    model, packs = seeded_text_model(TINY), Packs()
    products = [layers for block in model.encoder.layers for layers in products_of(block)]
    states = iter([b"later", b"later"])
    assert packs.of(model, products, "onednn", b"before", lambda: next(states)) == {}
    assert packs.num_bytes(model) == 0
    assert len(packs.of(model, products, "onednn", b"later", lambda: next(states))) == len(products)


@needs_onednn
def test_threads_that_encode_at_once_get_the_same(tiny: TextModel) -> None:
    expected = PrefixTextEncoder(tiny, max_bytes=0)(IDS).hidden
    PACKS._found.pop(tiny)
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.append(PrefixTextEncoder(tiny, max_bytes=0)(IDS).hidden))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(torch.equal(result, expected) for result in results)


@needs_onednn
def test_the_image_tower_packs_each_matrix_for_its_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = VisionConfig(image_size=112, hidden_dim=32, num_heads=2, num_layers=3, mlp_dim=64, projection_dim=16)
    vision = seeded_vision_model(config)
    pixels = torch.randn(4, 3, 112, 112)
    packed: list[int] = []
    monkeypatch.setitem(PACKED, "onednn", lambda layers: packed.append(len(layers)) or PackedByOneDNN(layers))
    found = FullClip(seeded_text_model(TINY), vision).image_features(pixels)
    # q, k and v as one; of the last block k and v, as the rest is of one row per image
    assert packed == [3, 1, 1, 1] * 2 + [2]
    with torch.no_grad():
        expected = torch.nn.functional.normalize(vision(pixels).projected, dim=-1)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert PACKS.num_bytes(vision) == 0


def test_the_activation_in_parts_is_that_of_the_whole_in_any_order_of_memory() -> None:
    states = torch.randn(3, 100, 64)
    expected = quick_gelu(states)
    for given in (states.clone(), states.transpose(0, 2).contiguous().transpose(0, 2)):
        torch.testing.assert_close(Fast("plain").activated(quick_gelu, given), expected, atol=1e-6, rtol=0)


def test_a_state_that_may_be_asked_for_is_not_written_to() -> None:
    arithmetic, hidden = Fast("plain"), torch.ones(2, 3)
    assert torch.equal(arithmetic.added(hidden, torch.ones(2, 3)), torch.full((2, 3), 2.0))
    assert torch.equal(hidden, torch.ones(2, 3))
    wide = arithmetic.added(hidden, torch.ones(2, 3, dtype=torch.bfloat16) / 3)
    assert wide.dtype == torch.float32


def test_weights_are_told_apart_by_their_state() -> None:
    model = seeded_text_model(TINY)
    before = state_of(model)
    assert state_of(model) == before
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
        assert state_of(model) != before
        before = state_of(model)
