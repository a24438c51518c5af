"""The chunk rules against the case files, and what must hold for any prompt."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.chunking import CHUNKINGS, chunk_prompt
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.syntax import parse
from weighted_clip.weighting.text.chunks import ChunkContext, ChunkLayout, TokenChunk
from weighted_clip.weighting.text.embeddings import EmbeddingVector, TokenId
from weighted_clip.weighting.text.prompt import Break, Span
from weighted_clip.weighting.towers import Reader, as_sdxl

from .tiny import READERS, KnownEmbeddings, shown, vectors_in

CLIP_L, CLIP_G = ChunkLayout(), ChunkLayout(pad_id=0)


def context(**options) -> ChunkContext:
    return ChunkContext(default_tokenizer(), **options)


def a1111_chunks(case: dict, *, quirks: bool) -> tuple[TokenChunk, ...]:
    """Chunks of a case; ids and weights do not depend on the quirks."""
    embeddings = KnownEmbeddings(case["embeddings"]) if "embeddings" in case else None
    found = chunk_prompt(parse(case["prompt"], "a1111"), context(embeddings=embeddings, quirks=quirks), "a1111").chunks
    assert [list(chunk.plain_ids) for chunk in found] == [chunk["tokens"] for chunk in case["chunks"]]
    assert [list(chunk.weights) for chunk in found] == [chunk["multipliers"] for chunk in case["chunks"]]
    return found


@pytest.mark.cases("a1111_chunks")
def test_a1111_equals_the_reference(case: dict) -> None:
    found = a1111_chunks(case, quirks=True)
    for chunk, expected in zip(found, case["chunks"], strict=True):
        fixes = expected.get("fixes", [])
        sizes = [(offset, name, case["embeddings"][name]) for offset, name in fixes]
        vectors = {1 + offset + i: v for offset, name, size in sizes for i, v in enumerate(shown(name, size))}
        assert vectors_in(chunk) == vectors
    # the WebUI's counter takes every chunk but an unfinished last one for 75, and a BREAK finishes a chunk
    prompt = parse(case["prompt"], "a1111")
    is_finished = prompt.parts[-1:] != prompt.fragments[-1:] or (
        len(prompt.parts) > 1 and isinstance(prompt.parts[-2], Break) and not prompt.parts[-1].text
    )
    assert 75 * (len(found) - 1) + (75 if is_finished else found[-1].num_content) == case["token_count"]


@pytest.mark.cases("a1111_chunks")
def test_without_quirks_vectors_stand_on_the_placeholders_that_the_reference_has_for_them(case: dict) -> None:
    vectors = [
        vectors_in(chunk).get(place)
        for chunk in a1111_chunks(case, quirks=False)
        for place, token in enumerate(chunk.plain_ids)
        if token == 0
    ]
    names = [name for chunk in case["chunks"] for _, name in chunk.get("fixes", [])]
    assert vectors == [vector for name in names for vector in shown(name, case["embeddings"][name])]


def chunks_of_sdxl(case: dict) -> dict[str, list[dict[str, list]]]:
    """Chunks of a prompt by SDXL's towers, with embeddings from files, in the form of the cases."""
    readers: dict[str, Reader] = {}
    for tower, reader in READERS.items():
        keys = {tower, "emb_params"} if tower == "clip_l" else {tower}  # a tensor alone is as wide as clip_l's
        sizes = {name: sum(parts.get(key, 0) for key in keys) for name, parts in case["embeddings"].items()}
        others = {name: f"“{name}” is for another model." for name, size in sizes.items() if not size}
        known = KnownEmbeddings({name: size for name, size in sizes.items() if size}, others)
        readers[tower] = replace(reader, embeddings=known)
    options = EncodeOptions(syntax="a1111", quirks=True)
    chunks = {name: reader.read(case["prompt"], options).chunks for name, reader in as_sdxl(readers).items()}

    def shown_id(token: TokenId) -> int | str:
        return token.vector if isinstance(token, EmbeddingVector) else token

    return {
        name: [{"tokens": [*map(shown_id, chunk.ids)], "multipliers": [*chunk.weights]} for chunk in some]
        for name, some in chunks.items()
    }


@pytest.mark.cases("a1111_sdxl_embeddings")
def test_embeddings_of_sdxl_stand_where_forge_has_them(case: dict) -> None:
    assert chunks_of_sdxl(case) == case["expected"]


def comfy_chunks(case: dict, chunking: str, layout: ChunkLayout) -> list[list[list[object]]]:
    """Chunks in the form of the case files: ``[token, weight, word]``, an embedding's vector as ``name[index]``."""
    embeddings = None
    if "embeddings" in case:
        sizes = case["embeddings"] | {f"{name}.safetensors": size for name, size in case["embeddings"].items()}
        embeddings = KnownEmbeddings(sizes)

    def in_words(token_id: int | EmbeddingVector) -> int | str:
        if isinstance(token_id, int):
            return token_id
        return f"{token_id.name.removesuffix('.safetensors')}[{token_id.index}]"

    found = chunk_prompt(parse(case["prompt"], "comfy"), context(layout=layout, embeddings=embeddings), chunking)
    return [[[in_words(token.id), token.weight, token.word] for token in chunk.tokens] for chunk in found.chunks]


@pytest.mark.cases("comfy_chunks")
def test_comfy_segment_equals_the_reference(case: dict) -> None:
    assert comfy_chunks(case, "comfy segment", CLIP_L) == case["chunks"]
    if "chunks_clip_g" in case:
        assert comfy_chunks(case, "comfy segment", CLIP_G) == case["chunks_clip_g"]


@pytest.mark.cases("comfy_chunks_words")
def test_comfy_word_equals_the_reference(case: dict) -> None:
    assert comfy_chunks(case, "comfy word", CLIP_L) == case["chunks"]


def test_unknown_embedding_is_an_issue_at_its_name() -> None:
    text = "a embedding:nothing b"
    found = chunk_prompt(parse(text, "comfy"), context(embeddings=KnownEmbeddings({})))
    (issue,) = found.issues
    assert issue.code == "unknown-embedding"
    assert text[slice(*issue.span)] == "embedding:nothing"


def test_break_starts_a_new_chunk_under_every_rule() -> None:
    for chunking in CHUNKINGS:
        found = chunk_prompt(parse("a cat BREAK a dog", "a1111"), context(), chunking)
        assert [chunk.num_content for chunk in found.chunks] == [2, 2]


def test_typed_end_of_text_blanks_the_rest_where_padding_differs() -> None:
    prompt = parse("a cat <|endoftext|> a dog", "a1111")
    (chunk,) = chunk_prompt(prompt, context(layout=CLIP_G), "a1111").chunks
    assert chunk.ids[:8] == (49406, 320, 2368, 49407, 0, 0, 0, 0)


@pytest.mark.parametrize("backtrack", [-1, 75])
def test_comma_backtrack_out_of_range_is_refused(backtrack: int) -> None:
    with pytest.raises(ValueError, match=rf"0 to 74 tokens, got {backtrack}"):
        context(comma_backtrack=backtrack)


def test_unknown_chunking_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ValueError, match=r"'halves'.*comfy segment"):
        chunk_prompt(parse("a", "a1111"), context(), "halves")


words = st.lists(
    st.sampled_from(["cat", "dog,", ",", "(red:1.3)", "[x]", "BREAK", "猫", "e\u0301", "\ud800", "\n"]), max_size=120
)


@pytest.mark.parametrize("chunking", [name for name in CHUNKINGS if name != "compel truncate"])
@settings(max_examples=60)
@given(words=words)
def test_chunks_are_well_formed_and_keep_every_token_in_place(chunking: str, words: list[str]) -> None:
    text = " ".join(words)
    tokenize = default_tokenizer()
    prompt = parse(text, "a1111")
    chunks = chunk_prompt(prompt, context(), chunking).chunks
    for chunk in chunks:
        assert len(chunk.tokens) == 77
        assert chunk.ids[0] == 49406
        assert set(chunk.ids[1 + chunk.num_content :]) == {49407}
        assert all(
            token.weight == 1.0 and token.word == 0
            for token in (chunk.tokens[0], *chunk.tokens[1 + chunk.num_content :])
        )
    content = [token for chunk in chunks for token in chunk.content]
    # nothing is lost: the ids are those of the fragments, each tokenized on its own
    assert [token.id for token in content] == [t.id for part in prompt.fragments for t in tokenize(part.text)]
    starts = [token.span.start for token in content]
    assert starts == sorted(starts)


def test_spans_point_at_the_words_in_the_prompt() -> None:
    text = r"a \(small\) (café:1.2) 猫"
    (chunk,) = chunk_prompt(parse(text, "a1111"), context()).chunks
    assert [text[slice(*token.span)] for token in chunk.content] == ["a", "(", "small", ")", "café", "猫", "猫", "猫"]
    assert chunk.content[4].span == Span(13, 17)
