"""Tokens of a host's own tokenizer, with the places that ours knows."""

from weighted_clip.encoder.tokenizer import CleaningTokenize, default_tokenizer
from weighted_clip.hosts.tokenizing import HostTokenize

TEXT = "a “red” caf&eacute;"


def places(ids: list[int]) -> list[str]:
    tokens = HostTokenize(None, lambda _, text: ids)(TEXT)
    assert [token_id for token_id, _, _ in tokens] == ids
    return [TEXT[start:end] for _, start, end in tokens]


def test_a_host_that_cleans_nothing() -> None:
    assert places([token.id for token in default_tokenizer()(TEXT)])[:4] == ["a", "“", "“", "red"]


def test_a_host_that_cleans_as_forge_does() -> None:
    cleaned = [token_id for token_id, _, _ in CleaningTokenize(default_tokenizer())(TEXT)]
    assert places(cleaned) == ["a", "“", "red", "”", "caf&eacute;"]


def test_a_host_with_ids_of_its_own() -> None:
    assert places([1, 2]) == [TEXT, TEXT]
