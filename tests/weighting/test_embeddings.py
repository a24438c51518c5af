"""Textual inversion: bare names under the rule a1111, ``embedding:name`` under the comfy rules, files in folders."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from weighted_clip.encoder.files import safetensors_file
from weighted_clip.encoder.files.safetensors_file import MAX_REFUSALS
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.chunking import CHUNKINGS, chunk_prompt
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.syntax import parse
from weighted_clip.weighting.text import embedding_folder
from weighted_clip.weighting.text.chunks import ChunkContext, ChunkLayout, TokenChunk
from weighted_clip.weighting.text.embedding_folder import EmbeddingFolder
from weighted_clip.weighting.text.embeddings import EmbeddingError, EmbeddingVector, plain_id
from weighted_clip.weighting.text.phrases import phrases_of
from weighted_clip.weighting.text.prompt import Issue
from weighted_clip.weighting.towers import in_folders, native_readers, read_for_towers

from ..door import encode_prompt
from ..toy import toy_encode
from .tiny import KnownEmbeddings, shown, vectors_in

SIZES = {"zqone": 1, "zqthree": 3, "zqforty": 40, "zq seven": 7, "zqfull": 75}
SIXTY = "word " * 60


def chunked(
    text: str, known: KnownEmbeddings, chunking: str = "a1111", **options
) -> tuple[tuple[TokenChunk, ...], tuple[Issue, ...]]:
    syntax = "comfy" if chunking.startswith("comfy") else "a1111"
    context = ChunkContext(default_tokenizer(), embeddings=known, **options)
    found = chunk_prompt(parse(text, syntax), context, chunking)
    return found.chunks, found.issues


def vectors_of(chunks: tuple[TokenChunk, ...]) -> list[str]:
    return [vector for chunk in chunks for vector in vectors_in(chunk).values()]


def test_sdxls_towers_share_files_by_the_webuis_rule_alone(tmp_path: Path) -> None:
    sizes = {"clip_l": 8, "clip_g": 12}
    save_file({"clip_l": torch.ones(3, 8), "clip_g": torch.ones(1, 12)}, tmp_path / "zqtwo.safetensors")
    save_file({"clip_g": torch.ones(2, 12)}, tmp_path / "zqlarge.safetensors")
    configs = {tower: TextConfig(hidden_dim=dim, num_heads=1, num_layers=1, mlp_dim=8) for tower, dim in sizes.items()}
    readers = native_readers(configs, in_folders([tmp_path]))

    def vectors(text: str, **options: Any) -> dict[str, list[int]]:
        reads = read_for_towers(text, EncodeOptions(**options), readers)
        return {
            tower: [at for at, id_ in enumerate(read.chunks[0].ids) if isinstance(id_, EmbeddingVector)]
            for tower, read in reads.items()
        }

    assert vectors("a zqtwo cat", syntax="a1111") == {"clip_l": [2, 3, 4], "clip_g": [2]}
    reads = read_for_towers("a zqtwo cat on a mat", EncodeOptions(syntax="a1111"), readers)
    assert reads["clip_l"].chunks[0].num_content == reads["clip_g"].chunks[0].num_content
    assert vectors("a embedding:zqtwo cat") == {"clip_l": [2, 3, 4], "clip_g": [2]}
    reads = read_for_towers("a embedding:zqtwo cat on a mat", EncodeOptions(), readers)
    assert reads["clip_l"].chunks[0].num_content == reads["clip_g"].chunks[0].num_content + 2
    assert vectors("a zqlarge cat", syntax="a1111") == {"clip_l": [], "clip_g": []}
    assert vectors("a embedding:zqlarge cat") == {"clip_l": [], "clip_g": [2, 3]}
    (issue,) = {
        *(
            one
            for read in read_for_towers("zqlarge", EncodeOptions(syntax="a1111"), readers).values()
            for one in read.issues
        )
    }
    assert issue.code == "unusable-embedding"
    assert "this encoder is clip_l" in issue.message


def test_every_vector_has_the_weight_and_the_place_of_its_name() -> None:
    text = "a (zq seven:1.3) cat"
    (chunk,), issues = chunked(text, KnownEmbeddings(SIZES))
    assert issues == ()
    tokens = chunk.content
    assert [token.weight for token in tokens] == [1.0, *[1.3] * 7, 1.0]
    assert [token.word for token in tokens] == [1, *[2] * 7, 3]
    assert [text[slice(*token.span)] for token in tokens] == ["a", *["zq seven"] * 7, "cat"]
    assert vectors_of((chunk,)) == shown("zq seven", 7)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("embedding:[x] a", [314, 343, 316, 320]),
        ("embedding:<x> a", [283, 343, 285, 320]),
        ("a embedding:[", [320, 314]),
        ("embedding: <x", [283, 343]),
        ("embedding:[x]\x1cy z", [314, 343, 316, 344, 345]),
        ("embedding:nope a\x1cb", [320, 321]),
        ("embedding:zqone\x1da\x1eb c", ["zqone[0]", 320, 321, 322]),
        ("a\x1dembedding:zqone b", [320, 473, "zqone[0]", 321]),
        ("embedding:zqone, b", ["zqone[0]", 267, 321]),
        ("embedding:,zqone b", ["zqone[0]", 324, 321]),  # its comma at the front takes a letter from the end
        ("embedding:,zqone, b", ["zqone[0]", 324, 267, 321]),
    ],
)
def test_ids_round_names_that_end_early_are_those_of_comfyui(text: str, ids: list[int | str]) -> None:
    """From comfy.sd1_clip.SDTokenizer of 0.29.0, with an embedding of one vector."""
    (chunk,), _ = chunked(text, KnownEmbeddings(SIZES), "comfy segment")
    vectors = vectors_in(chunk)
    assert [vectors.get(place, token.id) for place, token in enumerate(chunk.tokens) if 1 <= place <= len(ids)] == ids
    assert chunk.num_content == len(ids)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("my style two", ["my style two"]),
        ("my style three", ["my style"]),
        ("MY Style, my style  two", ["my style", "my style two"]),
        ("my (style:1.2) two", []),
        ("my\nstyle", ["my style"]),
        ("mymy style", ["my style"]),  # as in the WebUI: the last token of "mymy" is the word "my"
        ("mystyle", []),
        ("my", []),
    ],
)
def test_the_longest_name_on_ids_within_a_fragment_is_taken(text: str, names: list[str]) -> None:
    chunks, _ = chunked(text, KnownEmbeddings({"my style": 1, "my style two": 1, "style two style": 1}))
    assert vectors_of(chunks) == [f"{name}[0]" for name in names]


def test_vectors_that_do_not_fit_start_a_chunk_without_regard_to_commas() -> None:
    for quirks in (False, True):
        chunks, _ = chunked("a, " * 20 + SIXTY[:150] + "zqforty, b", KnownEmbeddings(SIZES), quirks=quirks)
        assert [chunk.num_content for chunk in chunks] == [70, 42]
        assert vectors_in(chunks[1]) == {1 + i: vector for i, vector in enumerate(shown("zqforty", 40))}


def test_the_comma_rule_takes_vectors_along_and_with_quirks_leaves_them_in_the_padding() -> None:
    text = f"{SIXTY}, (zqthree:1.2) {'end ' * 20}"
    right, no_issues = chunked(text, KnownEmbeddings(SIZES))
    wrong, (issue,) = chunked(text, KnownEmbeddings(SIZES), quirks=True)
    assert no_issues == ()
    assert [vectors_in(chunk) for chunk in right] == [{}, dict(enumerate(shown("zqthree", 3), 1))]
    assert [vectors_in(chunk) for chunk in wrong] == [dict(enumerate(shown("zqthree", 3), 62)), {}]
    assert [chunk.plain_ids for chunk in right] == [chunk.plain_ids for chunk in wrong]
    assert [chunk.weights for chunk in right] == [chunk.weights for chunk in wrong]
    assert wrong[0].num_content == 61 and wrong[0].ids[62].placeholder == 49407
    assert (issue.code, text[slice(*issue.span)]) == ("left-behind", "zqthree")


def test_ids_beneath_vectors_follow_the_padding() -> None:
    layout = ChunkLayout(pad_id=0)
    (chunk, _), _ = chunked(f"{SIXTY}, zqthree {'end ' * 20}", KnownEmbeddings(SIZES), quirks=True, layout=layout)
    assert [token.placeholder for token in chunk.ids[62:65]] == [49407, 0, 0]  # the first EOS, then padding
    (chunk,), _ = chunked("a <|endoftext|> cat zqone", KnownEmbeddings(SIZES), layout=ChunkLayout(pad_id=5))
    assert chunk.plain_ids[:7] == (49406, 320, 49407, 5, 5, 5, 5)
    assert vectors_in(chunk) == {4: "zqone[0]"}


def test_at_most_a_chunk_of_vectors_is_used() -> None:
    chunks, (issue,) = chunked("a zqlarge b", KnownEmbeddings({"zqlarge": 80}))
    assert [chunk.num_content for chunk in chunks] == [1, 75, 1]
    assert vectors_of(chunks) == shown("zqlarge", 75)
    assert issue.code == "embedding-cut" and "80 vectors" in issue.message
    _, issues = chunked("a zqfull b", KnownEmbeddings(SIZES))
    assert not issues


def test_the_prefix_of_comfyui_is_text_in_front_of_a_name_and_an_issue_says_so() -> None:
    text = "a embedding:zqone, embedding:nothing"
    (chunk,), (issue,) = chunked(text, KnownEmbeddings(SIZES))
    assert [text[slice(*token.span)] for token in chunk.content] == (
        ["a", "embed", "ding", ":", "zqone", ",", "embed", "ding", ":", "nothing"]
    )
    assert vectors_in(chunk) == {5: "zqone[0]"}
    assert (issue.code, text[slice(*issue.span)]) == ("comfy-embedding", "embedding:zqone")


def test_a_name_that_cannot_be_used_is_passed_over_for_a_shorter_one_or_text() -> None:
    known = KnownEmbeddings({"my style": 1}, {"my style two": "It is broken."})
    (chunk,), (issue,) = chunked("my style two", known)
    assert vectors_in(chunk) == {1: "my style[0]"} and chunk.num_content == 2
    assert issue.code == "unusable-embedding" and issue.message.startswith("It is broken. ")
    (chunk,), _ = chunked("my style two", KnownEmbeddings({}, known.unusable))
    assert chunk.num_content == 3 and not vectors_in(chunk)


@pytest.mark.parametrize("chunking", ["comfy segment", "comfy word"])
def test_comfy_leaves_a_name_out_that_cannot_be_used(chunking: str) -> None:
    text = "a embedding:broken, b"
    (chunk,), (issue,) = chunked(text, KnownEmbeddings({}, {"broken": "It is broken."}), chunking)
    assert [text[slice(*token.span)] for token in chunk.content] == ["a", ",", "b"]
    assert issue.code == "unusable-embedding" and issue.message.startswith("It is broken. ")


@pytest.mark.parametrize("chunking", [name for name in CHUNKINGS if name.startswith("compel")])
def test_compel_reads_names_as_text(chunking: str) -> None:
    known = KnownEmbeddings(SIZES)
    chunks, _ = chunked("a zqone embedding:zqone", known, chunking)
    assert not vectors_of(chunks) and known.looked_up == []


class CountedDict(dict):
    """Counts what is asked of it."""

    asked = 0

    def __contains__(self, key):
        self.asked += 1
        return super().__contains__(key)


def test_thousands_of_names_are_tokenized_once_and_matched_by_few_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownEmbeddings({f"style {number}": 1 for number in range(2000)})
    texts: list[str] = []

    def tokenize(text: str):
        texts.append(text)
        return default_tokenizer()(text)

    def read(text: str):
        return chunk_prompt(parse(text, "a1111"), ChunkContext(tokenize, embeddings=known), "a1111")

    read("a cat")
    assert len(texts) == 2001 and known.looked_up == []
    names = phrases_of(tuple(known.names()), tokenize)
    counted = CountedDict(names.by_ids)
    monkeypatch.setattr(names, "by_ids", counted)
    found = read("style " * 1000 + "style 17, style 1999")
    assert len(texts) == 2002  # the prompt
    assert known.looked_up == ["style 17", "style 1999"]
    assert vectors_of(found.chunks) == ["style 17[0]", "style 1999[0]"]
    # names of up to five tokens, so that many look-ups for each token that starts one, however many names do
    assert 0 < counted.asked <= 4 * 1002


def test_a_tokenizer_without_a_hash_finds_names() -> None:
    class Unhashable:
        __hash__ = None  # pyright: ignore[reportAssignmentType]

        def __call__(self, text):
            return default_tokenizer()(text)

    found = chunk_prompt(
        parse("a zqone", "a1111"), ChunkContext(Unhashable(), embeddings=KnownEmbeddings({"zqone": 1}))
    )
    assert vectors_of(found.chunks) == ["zqone[0]"]


names = st.sampled_from([*SIZES])
pieces = st.lists(
    st.tuples(
        st.one_of(names, st.sampled_from(["cat", "dog,", ",", "BREAK", "猫", "zq", "seven", "\n", "\ud800"])),
        st.sampled_from([1.0, 1.3, 0.5]),
    ),
    max_size=60,
)


@settings(max_examples=100)
@given(pieces=pieces, backtrack=st.integers(0, 74))
def test_every_named_vector_appears_once_in_order_and_with_its_weight(
    pieces: list[tuple[str, float]], backtrack: int
) -> None:
    text = " , ".join(word if weight == 1.0 else f"({word}:{weight})" for word, weight in pieces)
    chunks, _ = chunked(text, KnownEmbeddings(SIZES), comma_backtrack=backtrack)
    named = [(vector, weight) for word, weight in pieces if word in SIZES for vector in shown(word, SIZES[word])]
    found = [(vector, chunk.weights[place]) for chunk in chunks for place, vector in vectors_in(chunk).items()]
    assert found == named
    for chunk in chunks:
        assert len(chunk.tokens) == 77
        assert chunk.plain_ids[0] == 49406 and chunk.plain_ids[1 + chunk.num_content] == 49407
        # the vectors of one mention stay together
        for place, token in enumerate(chunk.ids):
            if isinstance(token, EmbeddingVector) and token.index:
                before = chunk.ids[place - 1]
                assert isinstance(before, EmbeddingVector) and before.index == token.index - 1


@settings(max_examples=100)
@given(parts=st.lists(st.one_of(st.text(max_size=20), names, st.just("word, " * 20)), max_size=20))
def test_quirks_move_vectors_and_nothing_else(parts: list[str]) -> None:
    text = " ".join(parts)
    right, _ = chunked(text, KnownEmbeddings(SIZES))
    wrong, _ = chunked(text, KnownEmbeddings(SIZES), quirks=True)
    assert [len(chunk.tokens) for chunk in right] == [77] * len(wrong)
    for ours, theirs in zip(right, wrong, strict=True):
        without_ids = [token._replace(id=plain_id(token.id)) for token in ours.tokens]
        assert without_ids == [token._replace(id=plain_id(token.id)) for token in theirs.tokens]


def test_options_carry_the_quirks() -> None:
    text = f"{SIXTY}, zqone {'end ' * 20}"
    for quirks, expected in ((False, [0, 1]), (True, [1, 0])):
        options = EncodeOptions(syntax="a1111", quirks=quirks)
        read = read_prompt(text, options, default_tokenizer(), embeddings=KnownEmbeddings(SIZES))
        assert [len(vectors_in(chunk)) for chunk in read.chunks] == expected


def test_rows_of_eos_are_found_beneath_vectors() -> None:
    options = EncodeOptions(syntax="a1111", scheme="unweighted", quirks=True, eos_rows="first")
    text = f"{SIXTY}, zqone {'end ' * 20}"
    read = read_prompt(text, options, default_tokenizer(), embeddings=KnownEmbeddings(SIZES))

    def encode(ids, mask=None, *, is_causal=True):
        return toy_encode([[plain_id(token) for token in chunk] for chunk in ids], mask)

    (hidden,) = encode_prompt(read, encode, default_tokenizer()).hidden
    assert torch.equal(hidden[77 + 1 + read.chunks[1].num_content], hidden[62])


def save(path: Path, num_vectors: int = 1, dim: int = 8, key: str = "emb_params") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: torch.full((num_vectors, dim), float(num_vectors))}, path)
    return path


def folder(*places: Path, tower: str = "clip_l") -> EmbeddingFolder:
    return EmbeddingFolder(places, tower, 8)


def test_a_folder_lists_and_finds_its_files(tmp_path: Path) -> None:
    save(tmp_path / "a" / "zqone.safetensors", 1)
    save(tmp_path / "a" / "deep" / "zqone.safetensors", 2)
    save(tmp_path / "a" / "deep" / "v1.5 style.SafeTensors", 3)
    save(tmp_path / "b" / "zqone.safetensors", 4)
    save(tmp_path / "b" / "deep" / "other.safetensors", 5)
    (tmp_path / "a" / "notes.txt").write_text("no embedding")
    both = folder(tmp_path / "a", tmp_path / "b", tmp_path / "missing")
    assert both.names() == ("other", "v1.5 style", "zqone")
    found = {
        "zqone": 1,
        "zqone.safetensors": 1,
        "deep/zqone": 2,
        "deep/zqone.safetensors": 2,
        "deep\\zqone": 2,
        "v1.5 style": 3,
        "deep/v1.5 style": 3,
        "v1.5 style.SafeTensors": 3,
        "other": 5,
    }
    for name, num_vectors in found.items():
        vectors = both.find(name)
        assert len(vectors) == num_vectors
        assert all(torch.equal(vector, torch.full((8,), float(num_vectors))) for vector in vectors)
    for name in ("", ".", "deep", "notes", "notes.txt", "v1", "zqone.pt", "a/zqone", "x\0", "zqone/"):
        assert both.find(name) is None


def test_no_name_leads_out_of_a_folder(tmp_path: Path) -> None:
    outside = save(tmp_path / "outside" / "secret.safetensors")
    inside = tmp_path / "inside"
    save(inside / "sub" / "known.safetensors")
    (inside / "linked.safetensors").symlink_to(outside)
    (inside / "linked folder").symlink_to(outside.parent, target_is_directory=True)
    (inside / "within.safetensors").symlink_to(inside / "sub" / "known.safetensors")
    found = folder(inside)
    assert found.names() == ("known", "within")
    assert found.find("within") is not None
    for name in ("../outside/secret", "sub/../../outside/secret", str(outside), f"/{outside}", "linked", "secret"):
        assert found.find(name) is None
        assert found.find(name.removesuffix(".safetensors")) is None
    # a folder may itself be reached through a link
    (tmp_path / "entrance").symlink_to(inside, target_is_directory=True)
    assert folder(tmp_path / "entrance").names() == ("known", "within")


def test_new_and_changed_files_appear(tmp_path: Path) -> None:
    found = folder(tmp_path / "later")
    assert found.names() == () and found.find("zqone") is None
    path = save(tmp_path / "later" / "sub" / "zqone.safetensors", 1)
    assert found.names() == ("zqone",) and len(found.find("zqone")) == 1
    save(path, 2)
    assert len(found.find("zqone")) == 2
    save(path.with_name("zqtwo.safetensors"))
    assert found.names() == ("zqone", "zqtwo")
    path.unlink()
    assert found.names() == ("zqtwo",) and found.find("zqone") is None


def test_a_folder_is_listed_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_folder, "SETTLED_SECONDS", -1)
    save(tmp_path / "sub" / "zqone.safetensors")
    listed: list[Path] = []
    walk = embedding_folder.os.walk
    monkeypatch.setattr(embedding_folder.os, "walk", lambda place: listed.append(place) or walk(place))
    found = folder(tmp_path)
    for _ in range(3):
        found.names()
        found.find("zqone")
    assert len(listed) == 1
    save(tmp_path / "sub" / "zqtwo.safetensors")
    assert found.names() == ("zqone", "zqtwo") and len(listed) == 2


def test_what_does_not_fit_is_said_in_words(tmp_path: Path) -> None:
    save(tmp_path / "wide.safetensors", dim=1024)
    save_file({"clip_l": torch.ones(1, 8), "clip_g": torch.full((1, 12), 2.0)}, tmp_path / "both.safetensors")
    save(tmp_path / "large.safetensors", key="clip_g")
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    for name in ("pickled.pt", "pickled2.bin", "picture.png", "wide.pt"):
        (tmp_path / name).write_bytes(b"anything")
    found = folder(tmp_path)
    assert found.names() == ("both", "cut", "large", "pickled", "pickled2", "wide")
    for name, text in {
        "wide": "for another model: 1024 wide, this encoder takes 8",
        "large": "vectors for clip_g, this encoder is clip_l",
        "cut": "not a readable safetensors file",
        "pickled": "pickled.pt: it is pickled, and loading such a file can run code. Convert it",
        "pickled.pt": "it is pickled",
        "pickled2": "it is pickled",
        "picture": "pictures are not read",
    }.items():
        with pytest.raises(EmbeddingError, match=text):
            found.find(name)
    for tower, dim, value in (("clip_l", 8, 1.0), ("clip_g", 12, 2.0)):
        vectors = EmbeddingFolder([tmp_path], tower, dim).find("both")
        assert len(vectors) == 1 and torch.equal(vectors[0], torch.full((dim,), value))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that safetensors was given to parse."""
    names: list[str] = []
    parse = safetensors_file.safe_open
    monkeypatch.setattr(
        safetensors_file, "safe_open", lambda path, **rest: names.append(path.name) or parse(path, **rest)
    )
    return names


def make_old(path: Path, nanoseconds: int = 10**18) -> Path:
    """Give a file a time of change that has long passed."""
    os.utime(path, ns=(nanoseconds, nanoseconds))
    return path


def refusal(found: EmbeddingFolder, name: str) -> str:
    with pytest.raises(EmbeddingError) as caught:
        found.find(name)
    return str(caught.value)


def test_a_refused_file_is_not_parsed_again_until_it_changes(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "zqone.safetensors"
    save_file({"a": torch.ones(1, 8), "b": torch.ones(1, 8)}, path)
    make_old(path)
    found = folder(tmp_path)
    problems = {refusal(one, "zqone") for one in (found, found, folder(tmp_path, tower="clip_g"), folder(tmp_path))}
    assert len(problems) == 1 and "2 tensors, and none is known to be the embedding" in problems.pop()
    assert parsed == ["zqone.safetensors"]
    save_file({"a": torch.ones(1, 8), "z": torch.ones(1, 8)}, path)  # as many bytes
    make_old(path, 10**18 + 1)
    assert "First keys: 'a', 'z'" in refusal(found, "zqone")
    make_old(save(path, 2))  # as old as it was
    assert len(found.find("zqone")) == 2
    assert parsed == ["zqone.safetensors"] * 3


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path, parsed: list[str]) -> None:
    path = tmp_path / "zqone.safetensors"
    save_file({"a": torch.ones(1, 8), "b": torch.ones(1, 8)}, path)
    found = folder(tmp_path)
    assert refusal(found, "zqone") == refusal(found, "zqone")
    assert len(parsed) == 2


def test_what_a_system_could_not_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_old(save(tmp_path / "zqone.safetensors"))
    found = folder(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(safetensors_file, "safe_open", raising(OSError(24, "Too many open files")))
        assert "cannot be read: Too many open files" in refusal(found, "zqone")
    with monkeypatch.context() as patch:
        patch.setattr(safetensors_file, "safe_open", raising(RuntimeError("unable to mmap 9 bytes")))
        assert "the system cannot map it into memory: unable to mmap 9 bytes" in refusal(found, "zqone")
    assert len(found.find("zqone")) == 1


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_so_many_refusals_are_remembered_and_no_more(tmp_path: Path, parsed: list[str]) -> None:
    names = [f"zq{number}" for number in range(MAX_REFUSALS + 1)]
    for name in names:
        (tmp_path / f"{name}.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
        make_old(tmp_path / f"{name}.safetensors")
    found = folder(tmp_path)
    for name in names:
        assert "there is no tensor in it" in refusal(found, name)
    refusal(found, names[-1])
    assert len(parsed) == len(names)
    refusal(found, names[0])
    assert len(parsed) == len(names) + 1
