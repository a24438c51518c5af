"""Networks and tokenizers of the host are known by what they are, subclasses by what they inherit."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from torch import nn
from weighted_clip.hosts.comfy import contract
from weighted_clip.hosts.comfy.families import families, queries
from weighted_clip.hosts.comfy.families.kinds import changes, known_class, name_of

HOST = "comfy.ldm.toy.model"
"""Module of a network of the host's, made here."""


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A network of the host's with two blocks, of whose class our table knows."""
    module = ModuleType(HOST)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.attn(x)

    class Network(nn.Module):
        def __init__(self, block: type = Block) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([block(), block()])

        def forward(self, x: Any) -> Any:
            return self._forward(x)

        def _forward(self, x: Any) -> Any:
            return x

    for kind in (Block, Network):
        kind.__module__, kind.__qualname__ = HOST, kind.__name__
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, HOST, module)
    name = name_of(Network)
    monkeypatch.setattr(families, "WEIGHERS", {name: families.in_joint_attention})
    monkeypatch.setattr(contract, "OBJECTS", {**contract.OBJECTS, name: ()})
    return module


def refusal(network: Any) -> str:
    with pytest.raises(ValueError, match="do not know where this model") as raised:
        families.weighting_function(SimpleNamespace(diffusion_model=network))
    return str(raised.value)


def test_a_subclass_that_inherits_its_attention_is_accepted(toy: Any) -> None:
    class Larger(toy.Network):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.Linear(2, 2)

        def describe(self) -> str:
            return "of no method of the host's"

    for network in (toy.Network(), Larger()):
        assert families.weighting_function(SimpleNamespace(diffusion_model=network)) is families.in_joint_attention


def test_a_subclass_that_reads_in_its_own_way_is_refused_in_words(toy: Any) -> None:
    class Other(toy.Network):
        def _forward(self, x: Any) -> Any:
            return 2 * x

    class Mixed:
        def forward(self, x: Any) -> Any:
            return 2 * x

    class OfTwo(Mixed, toy.Network):
        pass

    assert "it is a Network with another _forward." in refusal(Other())
    assert "it is a Network with another forward." in refusal(OfTwo())


def test_a_subclass_of_other_blocks_is_refused_in_words(toy: Any) -> None:
    class Larger(toy.Network):
        pass

    class Doubled(toy.Block):
        def forward(self, x: Any) -> Any:
            return 2 * x

    class Named(toy.Block):
        pass

    class Foreign(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.Linear(2, 2)

    assert "with layers Doubled with another forward." in refusal(Larger(Doubled))
    assert "with other blocks, Foreign." in refusal(Larger(Foreign))
    assert changes(Larger(Named), toy.Network) == ""
    compiled = Larger()
    compiled.blocks[0] = nn.Sequential(compiled.blocks[0])
    compiled.blocks[0]._orig_mod = compiled.blocks[0][0]
    assert changes(compiled, toy.Network) == ""


def test_a_class_of_the_same_name_in_another_module_is_refused(toy: Any) -> None:
    class Network(nn.Module):
        pass

    Network.__qualname__ = toy.Network.__qualname__
    assert known_class(Network(), families.WEIGHERS) is None
    assert "(SimpleNamespace, Network) reads text. " in refusal(Network())


def test_a_tokenizer_is_known_by_the_class_whose_tokens_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        def tokenize_with_weights(self, text: str) -> dict[str, Any]:
            return {}

        def untokenize(self) -> None:
            pass

    class Shown(Known):
        def untokenize(self) -> None:
            raise NotImplementedError

    class Other(Known):
        def tokenize_with_weights(self, text: str) -> dict[str, Any]:
            return {"other": []}

    family = families.ModelFamily(
        "Toy", families.in_joint_attention, queries.text_in_front, (), {name_of(Known): "toy"}
    )
    monkeypatch.setitem(families.BY_TOKENIZER, name_of(Known), family)
    clips: list[Any] = [SimpleNamespace(tokenizer=kind()) for kind in (Known, Shown, Other, object)]
    assert [families.text_family(clip) for clip in clips] == [family, family, None, None]
    assert [family.encoder_of(clip) for clip in clips[:2]] == ["toy", "toy"]
