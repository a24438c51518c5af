"""CUDA graphs of passes, with a capture that stands for CUDA's: when one is made, used, dropped; and off by default."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.models import graphs as graphs_module
from weighted_clip.encoder.models.graphs import MOST_GRAPHS, VARIABLE, Captured, Graphs, Run
from weighted_clip.encoder.models.prefix import PrefixTextEncoder
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel
from weighted_clip.encoder.models.whole import encode_whole

IDS = [[49406, 320, word, *[49407] * 74] for word in (2368, 1929, 736, 525)]


class Capture:
    """Runs a pass anew at each replay, into the same memory, as a graph does."""

    def __init__(self, problem: str = "") -> None:
        self.count, self.problem = 0, problem

    def __call__(self, run: Run, packed: Tensor) -> Captured:
        if self.problem:
            raise RuntimeError(self.problem)
        self.count += 1
        inputs = packed.clone()
        outputs = Encoding(*(torch.full_like(part, torch.nan) for part in run(inputs)))

        def replay() -> None:
            for kept, part in zip(outputs, run(inputs), strict=True):
                kept.copy_(part)

        return Captured(inputs, replay, outputs)


@pytest.fixture
def encoder(tiny: TextModel) -> TextEncoder:
    return TextEncoder(copy.deepcopy(tiny))


@torch.no_grad()
def encoded(
    encoder: TextEncoder, graphs: Graphs | None, ids: Any, mask: Tensor | None = None, is_causal: bool = True
) -> Encoding:
    return encode_whole(encoder, ids, mask, is_causal=is_causal, graphs=graphs)


def assert_equal(one: Encoding, other: Encoding) -> None:
    assert torch.equal(one.hidden, other.hidden) and torch.equal(one.pooled, other.pooled)


def test_a_graph_is_captured_at_the_second_use_and_gives_the_same(encoder: TextEncoder) -> None:
    capture = Capture()
    graphs = Graphs(capture)
    results = []
    for number, ids in enumerate(IDS):
        results.append(encoded(encoder, graphs, [ids]))
        assert capture.count == (number > 0)
    for ids, result in zip(IDS, results, strict=True):  # a later one has not overwritten an earlier one
        assert_equal(result, encoded(encoder, None, [ids]))
    assert graphs.how_computed("cuda") == "CUDA graphs: 1"


def test_each_kind_of_pass_has_a_graph_and_the_last_used_are_kept(encoder: TextEncoder) -> None:
    capture = Capture()
    graphs = Graphs(capture)
    masks = torch.ones(1, 77, dtype=torch.bool)
    masks[0, 2] = False
    for kind in ((None, True), (masks, True), (None, False)):
        for _ in range(3):
            assert_equal(encoded(encoder, graphs, IDS[:1], *kind), encoded(encoder, None, IDS[:1], *kind))
    assert capture.count == 3
    for number in range(2, MOST_GRAPHS + 2):
        encoded(encoder, graphs, IDS[:1] * number)
    encoded(encoder, graphs, IDS[:1])  # forgotten meanwhile, so this is a first use
    assert capture.count == 3
    encoded(encoder, graphs, IDS[:1])
    assert capture.count == 4


def test_other_weights_drop_the_graphs(encoder: TextEncoder) -> None:
    capture = Capture()
    graphs = Graphs(capture)
    for _ in range(2):
        encoded(encoder, graphs, IDS[:1])
    layer = encoder.model.final_layer_norm
    layer.weight = torch.nn.Parameter(layer.weight.detach() * 2)
    for count in (1, 2):
        assert_equal(encoded(encoder, graphs, IDS[:1]), encoded(encoder, None, IDS[:1]))
        assert capture.count == count
    encoder.model.half()
    assert_equal(encoded(encoder, graphs, IDS[:1]), encoded(encoder, None, IDS[:1]))
    assert capture.count == 2


def test_a_token_with_a_vector_of_its_own_takes_no_graph(encoder: TextEncoder) -> None:
    capture = Capture()
    graphs = Graphs(capture)
    for number in range(3):
        vector = torch.full((encoder.config.hidden_dim,), float(number))
        ids = [[49406, SimpleNamespace(vector=vector, placeholder=320), *IDS[0][2:]]]
        assert_equal(encoded(encoder, graphs, ids), encoded(encoder, None, ids))
    assert capture.count == 0


def test_where_capture_fails_it_is_tried_no_more_and_said(encoder: TextEncoder) -> None:
    capture = Capture("operation not permitted when stream is capturing\nand a trace")
    graphs = Graphs(capture)
    for _ in range(2):
        assert_equal(encoded(encoder, graphs, IDS[:1]), encoded(encoder, None, IDS[:1]))
    said = graphs.how_computed("cuda")
    assert said == f"no CUDA graphs: operation not permitted when stream is capturing ({VARIABLE}=1)"
    capture.problem = ""
    encoded(encoder, graphs, IDS[:1])
    assert capture.count == 0


def test_the_switch_is_off_and_without_cuda_says_why_it_does_nothing(
    tiny: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(Graphs, "run", refused)
    found = {}
    for written in ("", "0", "1"):
        monkeypatch.setenv(VARIABLE, written)
        encode = PrefixTextEncoder(tiny)
        found[written] = encode(IDS), encode.how_computed()
    assert_equal(found[""][0], found["1"][0])
    assert "CUDA" not in found[""][1] and found["0"][1] == found[""][1]
    note = f"no CUDA graphs, as the encoder is on the device cpu ({VARIABLE}=1)"
    assert found["1"][1] in (note, f"{found[''][1]}; {note}")
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(ValueError, match=f"{VARIABLE}='yes': take 1"):
        PrefixTextEncoder(tiny)(IDS)
    monkeypatch.delenv(VARIABLE)
    assert not graphs_module.are_wanted()
