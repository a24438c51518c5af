"""Rows by word in text encoders other than CLIP, on a tokenizer whose tokens are words.

The host's own tokenizers are tested in tests/hosts.
"""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from weighted_clip.hosts.comfy.attention_layers import in_cross_attention
from weighted_clip.hosts.comfy.families import FAMILIES, Family
from weighted_clip.hosts.comfy.queries import told_by_layer
from weighted_clip.hosts.comfy.text_rows import num_rows_read, read_rows
from weighted_clip.hosts.comfy.token_offsets import NoSuchEmbedding, as_id, pieces
from weighted_clip.weighting.embeddings import EmbeddingError
from weighted_clip.weighting.options import EncodeOptions

from .fake_comfy import CONFIG

BOS, EOS, PAD = 99, 1, 0
FAMILY = Family("Toy", in_cross_attention, told_by_layer, (), {"types.SimpleNamespace": "toy"})
VOCABULARY: dict[str, int] = {}


def toy_tokenizer(text, return_offsets_mapping=False):
    """Words with the space before them as tokens, then EOS."""
    found = [(match.group().strip(), *match.span()) for match in re.finditer(r"\s*\S+", text)]
    ids = [VOCABULARY.setdefault(word, len(VOCABULARY) + 2) for word, _, _ in found]
    return {"input_ids": [*ids, EOS], "offset_mapping": [*((start, end) for _, start, end in found), (0, 0)]}


class Clip:
    """A CLIP of such an encoder; pads to 8 tokens."""

    def __init__(self, template=None, change=lambda ids: ids) -> None:
        inner = SimpleNamespace(
            tokenizer=toy_tokenizer,
            tokenizer_adds_end_token=True,
            tokens_start=0,
            start_token=None,
            end_token=EOS,
            pad_token=PAD,
            max_length=100,
        )
        self.tokenizer = SimpleNamespace(toy=inner, **({"llama_template": template} if template else {}))
        self.template, self.change, self.texts = template or "{}", change, []

    def tokenize(self, text, **options):
        self.texts.append((text, options))
        ids = self.change(toy_tokenizer(self.template.format(text))["input_ids"])
        return {"toy": [[(token_id, 1.0) for token_id in [*ids, *[PAD] * (8 - len(ids))]]]}


def weights(text, syntax="comfy", clip=None, family=FAMILY):
    rows = read_rows(clip or Clip(), family, text, EncodeOptions(syntax=syntax))
    return [token.weight for token in rows.tokens]


def test_syntax_is_stripped_and_each_row_has_the_weight_of_its_text() -> None:
    clip = Clip()
    text = "a (red:1.4) cat (on a mat:0.5)"
    assert weights(text, clip=clip) == [1, 1.4, 1, 0.5, 0.5, 0.5, 1, 1]
    assert clip.texts == [("a red cat on a mat", {"disable_weights": True})]
    tokens = read_rows(clip, FAMILY, text, EncodeOptions()).tokens
    shown = [text[slice(*token.span)] for token in tokens if token.span]
    assert shown == ["a", "red", "cat", "on", "a", "mat"]


def test_a_template_and_what_the_host_leaves_out_count_for_nothing() -> None:
    clip = Clip("system <user> {} <end>")
    family = replace(FAMILY, num_left_out=lambda ids: 2, has_weights=False)
    assert weights("a (red:1.4) cat", clip=clip, family=family) == [1, 1.4, 1, 1, 1, 1]
    assert clip.texts == [("a red cat", {})]


def test_words_that_a_syntax_keeps_apart_stay_apart() -> None:
    clip = Clip()
    assert weights("a (red)1.5 cat++, dog", "compel", clip) == [1, 1.5, pytest.approx(1.21), 1, 1, 1, 1, 1]
    assert [text for text, _ in clip.texts] == ["a red cat, dog"]


def test_tags_are_left_out_and_break_is_a_space() -> None:
    clip = Clip()
    assert weights("a <lora:x:1>(cat:2) BREAK dog", "a1111", clip) == [1, 2, 1, 1, 1, 1, 1, 1]
    assert [text.split() for text, _ in clip.texts] == [["a", "cat", "dog"]]


def test_comments_are_left_out_and_named() -> None:
    text = "a # (ugly:2)\n(cat:1.5"
    rows = read_rows(Clip(), FAMILY, text, EncodeOptions(syntax="a1111"))
    assert [token.weight for token in rows.tokens][:2] == [1, 1.1]
    assert {issue.code for issue in rows.read.issues} >= {"comment", "unclosed-bracket"}
    (unclosed,) = [issue for issue in rows.read.issues if issue.code == "unclosed-bracket"]
    assert text[slice(*unclosed.span)] == "(cat:1.5"


def test_a_token_of_two_weights_has_the_first_and_a_note() -> None:
    rows = read_rows(Clip(), FAMILY, "a (red:2)dish", EncodeOptions())
    assert [token.weight for token in rows.tokens][:2] == [1, 2]
    (issue,) = rows.read.issues
    assert (issue.code, issue.span) == ("one-token", (3, 13))
    assert "“reddish” is one token" in issue.message


@pytest.mark.parametrize("change", [lambda ids: ids[1:], lambda ids: [*ids, 7], lambda ids: [5, *ids]])
def test_other_tokens_than_the_tokenizers_are_refused(change) -> None:
    with pytest.raises(ValueError, match="tokens of “a red cat” are not those"):
        weights("a red cat", clip=Clip(change=change))


def test_several_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\.and and \.blend"):
        weights('("a", "b").blend(1, 1)', "compel")


def test_a_tokenizer_that_does_not_say_where_is_named() -> None:
    def slow(text, **_):
        raise NotImplementedError

    clip = Clip()
    clip.tokenizer.toy.tokenizer = slow
    with pytest.raises(ValueError, match="needs a newer transformers: function"):
        weights("a cat", clip=clip)


def test_a_model_that_makes_more_rows_gets_as_many() -> None:
    family = replace(FAMILY, filled_up=lambda number: max(number, 12))
    assert weights("a (red:1.4) cat", family=family) == [1, 1.4] + [1] * 10
    rows = torch.zeros(1, 5, 4)
    assert num_rows_read(rows, {}) == 5
    assert [num_rows_read(rows, {"t5xxl_ids": torch.zeros(count)}) for count in (9, 512, 600)] == [512, 512, 600]


class Sentencepiece:
    """The host's wrapper, with words as pieces; its processor says where by what its version has."""

    def __init__(self, processor) -> None:
        self.tokenizer = processor

    def serialize_model(self):
        return b""


def in_bytes(text):
    """The words of a text, of which 猫 is spelled in three bytes: only the last of them has a place."""
    found = toy_tokenizer(text)
    for piece_id, place in list(zip(found["input_ids"], found["offset_mapping"], strict=True))[:-1]:
        first, end = place
        yield from [(piece_id, (first, first))] * (2 if "猫" in text[first:end] else 0)
        yield piece_id, place


class Processor:
    """sentencepiece from 0.2.2 on; it refuses to say where its BOS and EOS come from."""

    def encode(self, text, *, return_type, add_bos, add_eos):
        assert (return_type, add_bos, add_eos) == ("offset_mapping", False, False)
        ids, offsets = zip(*in_bytes(text), strict=True)
        return {"ids": list(ids), "offsets": list(offsets)}

    EncodeAsOffsetMapping = None


class OldProcessor:
    """sentencepiece before that."""

    def encode(self, text, *, out_type, add_bos, add_eos):
        assert (out_type, add_bos, add_eos) == ("immutable_proto", False, False)
        pieces = [SimpleNamespace(id=piece_id, begin=start, end=end) for piece_id, (start, end) in in_bytes(text)]
        return SimpleNamespace(pieces=pieces)


@pytest.mark.parametrize("processor", [Processor, OldProcessor])
def test_sentencepiece_says_itself_where_its_pieces_come_from(processor) -> None:
    clip = Clip()
    clip.tokenizer.toy.tokenizer = Sentencepiece(processor())
    assert weights("a (red:1.4) cat (on a mat:0.5)", clip=clip) == [1, 1.4, 1, 0.5, 0.5, 0.5, 1, 1]
    clip.change = lambda ids: [*ids[:1], *ids[1:2] * 3, *ids[2:]]
    assert weights("a (猫:1.4) cat", clip=clip) == [1, 1.4, 1.4, 1.4, 1, 1, 1, 1]


def with_bos(text, return_offsets_mapping=False):
    """`toy_tokenizer` with a BOS first."""
    found = toy_tokenizer(text)
    return {"input_ids": [BOS, *found["input_ids"]], "offset_mapping": [(0, 0), *found["offset_mapping"]]}


class Encoders:
    """A CLIP of two towers that share their rows, followed by a third encoder."""

    def __init__(self, sizes=(6, 6)) -> None:
        def inner(size, **more):
            own = {"tokenizer": with_bos, "tokens_start": 1, "start_token": BOS, "max_length": size, **more}
            return SimpleNamespace(**own, tokenizer_adds_end_token=True, end_token=EOS, pad_token=PAD)

        long = {"tokenizer": toy_tokenizer, "tokens_start": 0, "start_token": None}
        self.tokenizer = SimpleNamespace(clip_one=inner(sizes[0]), clip_two=inner(sizes[1]), long=inner(7, **long))
        self.sizes = sizes

    def tokenize(self, text, **_):
        *ids, _ = toy_tokenizer(text)["input_ids"]
        tokens = {}
        for key, size in zip(("one", "two"), self.sizes, strict=True):
            chunks = [[BOS, *ids[at : at + size - 2], EOS] for at in range(0, len(ids), size - 2)]
            tokens[key] = [[(token_id, 1.0) for token_id in [*chunk, *[PAD] * (size - len(chunk))]] for chunk in chunks]
        tokens["long"] = [[(token_id, 1.0) for token_id in [*ids[:6], EOS]]]
        return tokens


LONG = replace(FAMILY, tokenizers={"types.SimpleNamespace": "long"})
SHARING = replace(LONG, parts=lambda clip: (("one", "two"), 2, ("long",)))


def test_a_word_has_its_weight_in_every_encoder_and_every_chunk() -> None:
    text = "a (red:1.4) cat on a (mat:0.5)"
    assert weights(text, clip=Encoders(), family=SHARING) == [
        *(1, 1, 1.4, 1, 1, 1),  # BOS, a, red, cat, on, EOS
        *(1, 1, 0.5, 1, 1, 1),  # BOS, a, mat, EOS, two of padding
        *(1, 1),
        *(1, 1.4, 1, 1, 1, 0.5, 1),
    ]
    rows = read_rows(Encoders(), SHARING, text, EncodeOptions())
    assert (rows.encoder, rows.read.issues) == ("long", ())
    towers = replace(LONG, parts=lambda clip: (("one",),))
    assert read_rows(Encoders(), towers, text, EncodeOptions()).encoder == "one"


def test_words_that_an_encoder_does_not_read_are_named() -> None:
    text = "a b c d e f (g:2) h"
    rows = read_rows(Encoders(), SHARING, text, EncodeOptions())
    assert [row for row, token in enumerate(rows.tokens) if token.weight == 2] == [6 + 3]
    (issue,) = rows.read.issues
    assert (issue.code, text[slice(*issue.span)]) == ("rows-cut", "g")
    assert "long reads no more than 7 tokens" in issue.message


def test_encoders_that_share_rows_have_to_have_the_same_words_there() -> None:
    assert weights("a (cat:2)", clip=Encoders((6, 9)), family=SHARING)[:6] == [1, 1, 2, 1, 1, 1]
    with pytest.raises(ValueError, match=r"encoders one and two have different words in row 5"):
        weights("a b c d (e:2)", clip=Encoders((6, 9)), family=SHARING)


@pytest.mark.parametrize("title", ["Qwen-Image", "Krea 2"])
def test_the_rows_left_out_of_a_template_end_with_the_heading_of_its_second_turn(title: str) -> None:
    """As in ComfyUI 0.29's text_encoders/qwen_image.py."""
    (family,) = (one for one in FAMILIES if one.title == title)
    start, system, user, newline = 151644, 8948, 872, 198
    for ids, num_left_out in (
        ([start, system, newline, 5, start, user, newline, 7, start, user, newline], 7),
        ([start, system, newline, 5, start, system, newline, 7], 4),
        ([start, user, newline, 5], 3),
    ):
        assert family.num_left_out(ids) == num_left_out


def test_padding_in_front_is_counted() -> None:
    clip = Clip(change=lambda ids: [PAD, PAD, *ids])
    clip.tokenizer.toy.pad_left = True
    clip.tokenize = lambda text, **_: {"toy": [[(i, 1.0) for i in [PAD, PAD, *toy_tokenizer(text)["input_ids"][:-1]]]]}
    assert weights("a (red:1.4) cat", clip=clip) == [1, 1, 1, 1.4, 1]


def test_a_tokenizer_whose_places_leave_out_letters_is_refused() -> None:
    def shifting(text, return_offsets_mapping):
        found = toy_tokenizer(text)
        return found | {
            "offset_mapping": [(max(0, start - 1), max(0, end - 1)) for start, end in found["offset_mapping"]]
        }

    clip = Clip()
    clip.tokenizer.toy.tokenizer = shifting
    with pytest.raises(ValueError, match="does not say where in the text its tokens stand"):
        weights("a (red:2) cat", clip=clip)
    # the result for two characters may be positioned at one of them
    clip.tokenizer.toy.tokenizer = lambda text, return_offsets_mapping: (
        toy_tokenizer(text) | {"offset_mapping": [(0, 1), (0, 0)]}
    )
    assert weights("\uff76\uff9e", clip=clip)[0] == 1


# ---- positions of tokens and embedding vectors


def words(tokenizer, text):
    return [(len(match.group()), *match.span()) for match in re.finditer(r"\S+", text)]


def offsets(text, size=CONFIG.hidden_dim, folder="embeddings"):
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
    assert offsets(text) == expected


def test_two_embeddings_in_a_row_are_told_apart() -> None:
    assert [token for token, _ in offsets("embedding:known embedding:known")] == ["known[0]", "known[1]"] * 2


def test_without_a_folder_a_name_is_text() -> None:
    assert offsets("a embedding:known cat", folder=None) == [(1, "a"), (15, "embedding:known"), (3, "cat")]


def test_a_name_without_an_embedding_and_one_for_another_model_are_named() -> None:
    with pytest.raises(NoSuchEmbedding, match="no embedding “other” for t5xxl"):
        offsets("a embedding:other cat")
    with pytest.raises(EmbeddingError, match="64 wide, t5xxl takes 32"):
        offsets("a embedding:known cat", size=32)


def test_vectors_are_compared_by_their_content() -> None:
    tokenizer = SimpleNamespace(embedding_directory="x", embedding_size=CONFIG.hidden_dim, embedding_key="t5xxl")
    (first, _, _), _ = pieces(tokenizer, "embedding:known", words)
    assert as_id(first) == as_id(first.vector)
    assert as_id(first) != as_id(first.vector + 1)
    assert as_id(7) == 7
