"""Rows by word in text encoders other than CLIP, on a tokenizer whose tokens are words.

The host's own tokenizers are tested in tests/hosts.
"""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from weighted_clip.hosts.comfy.attention.text_rows import num_rows_read
from weighted_clip.hosts.comfy.clip.host_texts import STAND_IN, text_to_weigh, tokens_of_text
from weighted_clip.hosts.comfy.clip.rows import parts_of_rows, read_of_tokens, shared_tokens
from weighted_clip.hosts.comfy.families.attention_layers import in_cross_attention
from weighted_clip.hosts.comfy.families.families import Family
from weighted_clip.hosts.comfy.families.queries import told_by_layer
from weighted_clip.hosts.comfy.models.token_offsets import NoSuchEmbedding, as_id, pieces
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import ReadPrompt
from weighted_clip.weighting.text.chunks import Token
from weighted_clip.weighting.text.embeddings import EmbeddingError

from .fake_comfy import CONFIG

BOS, EOS, PAD = 99, 1, 0
VOCABULARY: dict[str, int] = {}


def toy_tokenizer(text, return_offsets_mapping=False):
    """Words with the space before them as tokens, then EOS."""
    found = [(match.group().strip(), *match.span()) for match in re.finditer(r"\s*\S+", text)]
    ids = [VOCABULARY.setdefault(word, len(VOCABULARY) + 2) for word, _, _ in found]
    return {"input_ids": [*ids, EOS], "offset_mapping": [*((start, end) for _, start, end in found), (0, 0)]}


class Inner:
    """The host's tokenizer of one encoder, whose library's is given; it has one chunk, padded to some length."""

    def __init__(self, library=toy_tokenizer, length=8, change=lambda ids: ids, **more) -> None:
        self.tokenizer, self.length, self.change, self.seen = library, length, change, []
        self.tokenizer_adds_end_token, self.tokens_start, self.start_token = True, 0, None
        self.end_token, self.pad_token, self.max_length = EOS, PAD, 100
        vars(self).update(more)

    def tokenize_with_weights(self, text, return_word_ids=False, **options):
        self.seen.append((text, options))
        return self.chunks(self.change(toy_tokenizer(text)["input_ids"]))

    def chunks(self, ids):
        return [[(token_id, 1.0) for token_id in [*ids, *[PAD] * (self.length - len(ids))]]]


class Tokenizer(SimpleNamespace):
    """The host's tokenizer of a CLIP, with a template."""

    def tokenize_with_weights(self, text, return_word_ids=False, **options):
        return {"toy": self.toy.tokenize_with_weights(self.template.replace("{}", text), return_word_ids, **options)}


FAMILY = Family("Toy", in_cross_attention, told_by_layer, (), {f"{__name__}.Tokenizer": "toy"})


class Clip:
    """A CLIP of such an encoder; pads to 8 tokens."""

    def __init__(self, template="{}", **inner) -> None:
        self.tokenizer = Tokenizer(toy=Inner(**inner), template=template)

    def tokenize(self, text, **options):
        return self.tokenizer.tokenize_with_weights(text, **options)

    @property
    def texts(self):
        """The texts that the encoder was given, but for those that show where the prompt stands."""
        return [text for text, _ in self.tokenizer.toy.seen if STAND_IN not in text]


class Rows(NamedTuple):
    tokens: list[Token]
    read: ReadPrompt | None
    encoder: str


def read_rows(clip, family, text, options, num_rows=None) -> Rows:
    """Tokens of the rows of a prompt, as if the host made one of each, and the prompt as read."""
    host_text = text_to_weigh(clip, family, text, options)
    tokens = tokens_of_text(clip, host_text)
    parts = family.parts_of(clip)
    if num_rows is None:
        lengths = [part if isinstance(part, int) else min(sum(map(len, tokens[key])) for key in part) for part in parts]
        num_rows = family.filled_up(sum(lengths))
    encoder, read = read_of_tokens(tokens, family.names_of(clip)) or ("", None)
    return Rows(shared_tokens(parts_of_rows(clip, family, tokens, num_rows, {})), read, encoder)


def weights(text, syntax="comfy", clip=None, family=FAMILY, num_rows=None):
    rows = read_rows(clip or Clip(), family, text, EncodeOptions(syntax=syntax), num_rows)
    return [token.weight for token in rows.tokens]


def test_syntax_is_stripped_and_each_row_has_the_weight_of_its_text() -> None:
    clip = Clip()
    text = "a (red:1.4) cat (on a mat:0.5)"
    assert weights(text, clip=clip) == [1, 1.4, 1, 0.5, 0.5, 0.5, 1, 1]
    assert clip.tokenizer.toy.seen[-1] == ("a red cat on a mat", {"disable_weights": True})
    tokens = read_rows(clip, FAMILY, text, EncodeOptions()).tokens
    shown = [text[slice(*token.span)] for token in tokens if token.span]
    assert shown == ["a", "red", "cat", "on", "a", "mat"]


def test_a_template_and_what_the_host_leaves_out_count_for_nothing() -> None:
    """The template has a word of the prompt."""
    clip = Clip("red <user> {} <end>")
    assert weights("a (red:1.4) cat", clip=clip) == [1, 1, 1, 1.4, 1, 1, 1, 1]
    assert weights("a (red:1.4) cat", clip=clip, num_rows=6) == [1, 1.4, 1, 1, 1, 1]
    assert weights("(red:1.4)", clip=Clip("{} and {}")) == [1.4, 1, 1.4, 1, 1, 1, 1, 1]


def test_a_prompt_that_is_not_in_the_text_is_refused_if_it_has_weights() -> None:
    clip = Clip("nothing")
    assert weights("a red cat", clip=clip)[0] == 1
    with pytest.raises(ValueError, match="does not give “a red cat” to its tokenizer"):
        weights("a (red:1.4) cat", clip=clip)


def test_words_that_a_syntax_keeps_apart_stay_apart() -> None:
    clip = Clip()
    assert weights("a (red)1.5 cat++, dog", "compel", clip) == [1, 1.5, pytest.approx(1.21), 1, 1, 1, 1, 1]
    assert clip.texts == ["a red cat, dog"]


def test_tags_are_left_out_and_break_is_a_space() -> None:
    clip = Clip()
    assert weights("a <lora:x:1>(cat:2) BREAK dog", "a1111", clip) == [1, 2, 1, 1, 1, 1, 1, 1]
    assert [text.split() for text in clip.texts] == [["a", "cat", "dog"]]


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
    with pytest.raises(ValueError, match="tokens of this prompt are not those"):
        weights("a (red:2) cat", clip=Clip(change=change))


def test_several_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\.and and \.blend"):
        weights('("a", "b").blend(1, 1)', "compel")


def test_a_tokenizer_that_does_not_say_where_is_named() -> None:
    def slow(text, **_):
        raise NotImplementedError

    with pytest.raises(ValueError, match="needs a newer transformers: function"):
        weights("a (cat:2)", clip=Clip(library=slow))


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
    clip = Clip(library=Sentencepiece(processor()))
    assert weights("a (red:1.4) cat (on a mat:0.5)", clip=clip) == [1, 1.4, 1, 0.5, 0.5, 0.5, 1, 1]
    clip.tokenizer.toy.change = lambda ids: [*ids[:1], *ids[1:2] * 3, *ids[2:]]
    assert weights("a (猫:1.4) cat", clip=clip) == [1, 1.4, 1.4, 1.4, 1, 1, 1, 1]


def with_bos(text, return_offsets_mapping=False):
    """`toy_tokenizer` with a BOS first."""
    found = toy_tokenizer(text)
    return {"input_ids": [BOS, *found["input_ids"]], "offset_mapping": [(0, 0), *found["offset_mapping"]]}


class Cut(Inner):
    """One that cuts its tokens into chunks of its length, with BOS and EOS."""

    def chunks(self, ids):
        size = self.length - 2
        starts = range(0, len(ids) - 1, size)
        cut = [[BOS, *ids[:-1][start : start + size], EOS] for start in starts]
        return [[(token_id, 1.0) for token_id in [*chunk, *[PAD] * (self.length - len(chunk))]] for chunk in cut]


class Short(Inner):
    """One that reads six tokens."""

    def chunks(self, ids):
        return [[(token_id, 1.0) for token_id in [*ids[:-1][:6], EOS]]]


class Several(SimpleNamespace):
    """The host's tokenizer of a CLIP with three encoders."""

    def tokenize_with_weights(self, text, return_word_ids=False, **options):
        parts = {"one": self.clip_one, "two": self.clip_two, "long": self.long}
        return {key: part.tokenize_with_weights(text, return_word_ids, **options) for key, part in parts.items()}


class Encoders:
    """A CLIP of two towers that share their rows, followed by a third encoder."""

    def __init__(self, sizes=(6, 6)) -> None:
        one, two = (Cut(with_bos, size, tokens_start=1, start_token=BOS, max_length=size) for size in sizes)
        self.tokenizer = Several(clip_one=one, clip_two=two, long=Short(max_length=7))

    def tokenize(self, text, **options):
        return self.tokenizer.tokenize_with_weights(text, **options)


LONG = replace(FAMILY, tokenizers={f"{__name__}.Several": "long"})
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


def test_padding_in_front_is_counted() -> None:
    clip = Clip(pad_left=True)
    clip.tokenizer.toy.chunks = lambda ids: [[(token_id, 1.0) for token_id in [PAD, PAD, *ids[:-1]]]]
    assert weights("a (red:1.4) cat", clip=clip) == [1, 1, 1, 1.4, 1]


def test_a_tokenizer_whose_places_leave_out_letters_is_refused() -> None:
    def shifting(text, return_offsets_mapping):
        found = toy_tokenizer(text)
        return found | {
            "offset_mapping": [(max(0, start - 1), max(0, end - 1)) for start, end in found["offset_mapping"]]
        }

    with pytest.raises(ValueError, match="does not say where in the text its tokens stand"):
        weights("a (red:2) cat", clip=Clip(library=shifting))
    # the result for two characters may be positioned at one of them
    clip = Clip(library=lambda text, **_: toy_tokenizer(text) | {"offset_mapping": [(0, 1), (0, 0)]})
    assert weights("(\uff76\uff9e:2)", clip=clip)[0] == 2


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
