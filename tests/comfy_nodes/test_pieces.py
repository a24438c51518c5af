"""Positions of tokens and embedding vectors in a text for a text encoder, on a tokenizer of words.

In a real ComfyUI rows are compared with the host's: tests/hosts/inprocess_beyond.py.
"""

import re
from types import SimpleNamespace

import pytest
from weighted_clip.hosts.comfy.token_offsets import NoSuchEmbedding, as_id, pieces
from weighted_clip.weighting.embeddings import EmbeddingError

from .fake_comfy import CONFIG, install


@pytest.fixture(autouse=True)
def host(monkeypatch) -> None:
    """The host's modules, with an embedding "known" of two vectors."""
    install(monkeypatch)


def words(tokenizer, text):
    return [(len(match.group()), *match.span()) for match in re.finditer(r"\S+", text)]


def read(text, size=CONFIG.hidden_dim, folder="embeddings"):
    tokenizer = SimpleNamespace(embedding_directory=folder, embedding_size=size, embedding_key="t5xxl")
    found = pieces(tokenizer, text, words)
    return [(token if isinstance(token, int) else f"{token.name}[{token.index}]", text[a:b]) for token, a, b in found]


VECTORS = [("known[0]", "embedding:known"), ("known[1]", "embedding:known")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat", [(1, "a"), (3, "cat")]),
        ("embedding:known", VECTORS),
        ("a embedding:known cat", [(1, "a"), *[(id_, f"{text} ") for id_, text in VECTORS], (3, "cat")]),
        ("a embedding:known, a   cat", [(1, "a"), *VECTORS, (1, ","), (1, "a"), (3, "cat")]),
        ("\nembedding:known<end> cat", [*VECTORS, (5, "<end>"), (3, "cat")]),
        ("aembedding:known", [(16, "aembedding:known")]),  # no white space before it
    ],
)
def test_vectors_stand_where_their_name_was_and_words_where_they_were(text, expected) -> None:
    assert read(text) == expected


def test_two_embeddings_in_a_row_are_told_apart() -> None:
    assert [token for token, _ in read("embedding:known embedding:known")] == ["known[0]", "known[1]"] * 2


def test_without_a_folder_a_name_is_text() -> None:
    assert read("a embedding:known cat", folder=None) == [(1, "a"), (15, "embedding:known"), (3, "cat")]


def test_a_name_without_an_embedding_and_one_for_another_model_are_named() -> None:
    with pytest.raises(NoSuchEmbedding, match="no embedding “other” for t5xxl"):
        read("a embedding:other cat")
    with pytest.raises(EmbeddingError, match="64 wide, t5xxl takes 32"):
        read("a embedding:known cat", size=32)


def test_vectors_are_compared_by_their_content() -> None:
    tokenizer = SimpleNamespace(embedding_directory="x", embedding_size=CONFIG.hidden_dim, embedding_key="t5xxl")
    (first, _, _), _ = pieces(tokenizer, "embedding:known", words)
    assert as_id(first) == as_id(first.vector)
    assert as_id(first) != as_id(first.vector + 1)
    assert as_id(7) == 7
