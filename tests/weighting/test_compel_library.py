"""The law ``compel`` of masked_blend against the compel library, on one seeded transformers model."""

import random

import pytest
import torch
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.chunks import CLIP_L_LAYOUT, Token, close_chunk
from weighted_clip.weighting.scheme import SchemeOptions
from weighted_clip.workshop.peers.transformers import transformers_text_model, transformers_tokenizer

from ..door import apply_scheme
from ..libraries import library
from .tiny import encode, read

# full depth, a third of the width: the arithmetic is the same, and 30 prompts take seconds
CONFIG = TextConfig(hidden_dim=256, num_heads=4, mlp_dim=1024)
SENTENCE = "a photo of red castle near the river at dusk , oil painting unbelievably detailed lighthouse keeper"
WORDS = SENTENCE.split()


def random_fragments(seed: int) -> list[tuple[str, float]]:
    """1 to 9 fragments of up to 75 tokens together, ``seed % 7`` of them below weight 1."""
    generator = random.Random(seed)
    num_down = seed % 7
    weights = [generator.choice([0.0, 0.1, 0.3, 0.5, 0.77, 0.9, 0.99]) for _ in range(num_down)]
    weights += [generator.choice([1.0, 1.0, 1.2, 1.5]) for _ in range(generator.randint(1, 3))]
    generator.shuffle(weights)
    fragments = [(" ".join(generator.choices(WORDS, k=generator.randint(1, 16))), weight) for weight in weights]
    while sum(len(default_tokenizer()(text)) for text, _ in fragments) > 75:
        fragments.pop()
    return fragments


@pytest.fixture(scope="module")
def model():
    return seeded_text_model(CONFIG)


@pytest.fixture(scope="module")
def provider(model):
    library("compel")
    from compel.embeddings_provider import EmbeddingsProvider

    return EmbeddingsProvider(
        tokenizer=transformers_tokenizer(), text_encoder=transformers_text_model(model), truncate=True
    )


@pytest.fixture(scope="module")
def peer(model):
    library("compel")
    from weighted_clip.workshop.peers.compel import open_peer

    return open_peer(model)


@pytest.mark.parametrize("seed", range(30))
def test_equals_the_compel_library(model, provider, seed: int) -> None:
    fragments = random_fragments(seed)
    with torch.no_grad():
        expected = provider.get_embeddings_for_weighted_prompt_fragments(
            [[text for text, _ in fragments]], [[weight for _, weight in fragments]]
        )
    content = [
        Token(token.id, weight, index + 1, index)
        for index, (text, weight) in enumerate(fragments)
        for token in default_tokenizer()(text)
    ]
    options = SchemeOptions(law="compel", mask_method="attention")
    result = apply_scheme("masked_blend", [close_chunk(content, CLIP_L_LAYOUT)], TextEncoder(model), options)
    torch.testing.assert_close(result.hidden, expected, rtol=0, atol=1e-5)


def test_the_prompts_cover_what_they_claim() -> None:
    counts = [sum(weight < 1 for _, weight in random_fragments(seed)) for seed in range(30)]
    assert min(counts) == 0
    assert max(counts) == 6
    lengths = [sum(len(default_tokenizer()(text)) for text, _ in random_fragments(seed)) for seed in range(30)]
    assert max(lengths) > 70


SHORT = [
    "a red (castle)1.3 near the river",
    "a (red castle)0.6 near (river)1.5",
    "mountain++ and bicycle-- and (meadow)0.2",
    "blue (green)0 garden",
    "a tall man (picking apricots+)++",
    "((a)1.2 b)1.5, mid-century (sofa, chair)0.8",
    '("a red cat", "a blue dog").blend(0.7, 0.3)',
    '("a red cat", "a blue (dog)0.4").blend(1, -0.5)',
    '("red", "castle near the river").blend(1, 0.5, no_normalize)',
    '("a red cat", "a blue+ dog").and()',
    '("a red cat", "(a blue)0.5 dog", "sea").and(1, 0.4, 2)',
    r"a \(small\) \"cat\", don't (worry)1.1",
    "猫 (犬)0.5 and café+",
    "(a)0 (b)0 (c)0.5 d",
    "plain text without weights",
]
LONG = [
    " ".join(["red castle, blue garden; near the river."] * 12),
    " ".join(["(red castle)1.2, blue garden; (near the river)0.5."] * 9),
    "word " * 100 + "(end)0.6",
    "(" + "red meadow river blue garden, " * 20 + ")0.7 and bicycle",
    "a" + " mountain" * 74 + " (split here across chunks please)0.4 " + "tower " * 40,
]
MODES = {
    "compel sentences": "SENTENCES",
    "compel phrases": "PHRASES",
    "compel words": "WORDS",
    "compel brutal": "BRUTAL",
}


def by_us(model, text: str, chunking: str, **choices) -> torch.Tensor:
    choices = {"syntax": "compel", "scheme": "compel", "chunking": chunking, **choices}
    return encode(text, TextEncoder(model), **choices).hidden


@pytest.mark.parametrize("text", SHORT)
def test_hidden_padding_equals_the_library(model, peer, text: str) -> None:
    expected = peer({"padding_attention_mask_value": 0}, text)
    found = by_us(model, text, "compel truncate", padding="mask")
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("text", [*LONG, "word " * 74 + "(red castle)0.5 end"], ids=range(len(LONG) + 1))
def test_truncated_prompts_equal_the_library(model, peer, text: str) -> None:
    expected = peer({}, text)
    torch.testing.assert_close(by_us(model, text, "compel truncate"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("text", SHORT)
def test_short_prompts_equal_the_library_from_text_to_rows(model, peer, text: str) -> None:
    expected = peer({}, text)
    torch.testing.assert_close(by_us(model, text, "compel truncate"), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(by_us(model, text, "compel sentences"), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("chunking", MODES)
@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_long_prompts_equal_the_library_in_every_split_mode(model, peer, text: str, chunking: str) -> None:
    library("compel", "2.1")
    expected = peer({"split": [MODES[chunking]]}, text)
    torch.testing.assert_close(by_us(model, text, chunking), expected, rtol=0, atol=1e-5)


def test_of_a_swap_the_original_is_encoded_and_of_swaps_within_it_the_innermost(model, peer) -> None:
    text = 'a "red (cat)1.3".swap("dog") on a mat'
    expected = peer({}, text)
    torch.testing.assert_close(by_us(model, text, "compel truncate"), expected, rtol=0, atol=1e-5)
    for nested in (
        'a "red (cat)1.3".swap(dog.swap(fox)) on a mat',
        'a ("red (cat)1.3".swap("dog")).swap(fox) on a mat',
        "a ((red (cat)1.3).swap(dog) on).swap(fox) a mat",
    ):
        with pytest.raises(AttributeError):  # compel reads it, and asks the inner swap for its text
            peer({}, nested)
        torch.testing.assert_close(by_us(model, nested, "compel truncate"), expected, rtol=0, atol=1e-5)
        assert [issue.code for issue in read(nested, syntax="compel").issues].count("nested-swap") == 1
