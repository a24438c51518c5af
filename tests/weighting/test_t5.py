"""T5's rows by the rules of programs that weigh them: formulas written out in float64, on an encoder that reads masks.

tests/hosts/inprocess_t5.py compares them with the programs' own code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.encoders import Encoders
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.towers import Reader, T5Reader, read_together

DIM = 8
END, PADDING = 1, 0
WORDS = ("a", "red", "cat", "on", "mat", ",", "empty", "+", "of", "BREAK", "dog")
TABLE = torch.randn(len(WORDS) + 2, DIM, generator=torch.Generator().manual_seed(0)) + 0.3
PLACES = torch.randn(1024, DIM, generator=torch.Generator().manual_seed(1))
ALL = torch.ones(1024, dtype=torch.bool)


def tokenize(text: str) -> list[tuple[int, int, int]]:
    """A token for each word and sign."""
    found = re.finditer(r"\w+|[^\w\s]", text)
    return [(2 + WORDS.index(one.group()), *one.span()) for one in found]


def ids_of(text: str) -> list[int]:
    return [token_id for token_id, _, _ in tokenize(text)]


def rows(ids: Sequence[int], seen: Tensor = ALL) -> Tensor:
    """Rows of some ids, each with something of all that may be seen: ``[ids, dim]``, float64."""
    own = (TABLE[list(ids)] + 0.1 * PLACES[: len(ids)]).double()
    return own + torch.tanh(own[seen[: len(ids)]].mean(0) * own)


def encode(ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
    """The encoder of `rows`, with the row of zeros that position 0 has."""
    del is_causal
    found: list[Tensor] = []
    for number, chunk in enumerate(ids):
        assert chunk[0] == 0
        seen = ALL if mask is None else mask[min(number, len(mask) - 1), 0, 1:]
        found.append(torch.cat([torch.zeros(1, DIM), rows(chunk[1:], seen).float()]))
    hidden = torch.stack(found)
    return Encoding(hidden, hidden[:, 0])


def reader(scheme: str) -> T5Reader:
    rule = SCHEMES[scheme].t5
    assert rule is not None
    return T5Reader(tokenize, rule.layout, rule=rule)


def encoded(text: str, scheme: str, **choices: Any) -> EncodedPrompt:
    readers = {"clip_l": Reader(default_tokenizer()), "t5xxl": reader(scheme)}
    prepared = Encoders(readers, keeps_calls=True).prepare([text], EncodeOptions(scheme=scheme, **choices))
    (found,) = prepared.run_tower("t5xxl", encode)
    return found


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-6)


def restored(plain: Tensor, weights: Sequence[float]) -> Tensor:
    scaled = plain * torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
    return scaled * plain.mean() / scaled.mean()


def test_a1111_scales_rows_and_restores_their_mean_over_the_padding_too() -> None:
    ids = [*ids_of("a red cat on a mat"), END]
    ids += [PADDING] * (256 - len(ids))
    expected = restored(rows(ids), [1, 1.3, 1, 1, 1, 0.4, *[1] * 250])
    for text in ("a (red:1.3) cat on a (mat:0.4)", "a (red:1.3) cat BREAK on a (mat:0.4)"):
        close(encoded(text, "a1111", syntax="a1111").hidden, expected)
    close(encoded("a red cat", "a1111").hidden, rows([*ids_of("a red cat"), END, *[PADDING] * 252]))


def test_a1111_takes_texts_of_any_length() -> None:
    ids = [*ids_of("red cat, " * 200), END]
    close(encoded("(red cat, :1.2)" * 200, "a1111", syntax="a1111").hidden, restored(rows(ids), [*[1.2] * 600, 1]))


def test_compel_moves_rows_from_its_empty_prompt_and_hides_what_fades() -> None:
    ids = [*ids_of("a red cat on a mat"), END]
    ids += [PADDING] * (512 - len(ids))
    empty = rows([END, *[PADDING] * 511])
    weights = torch.tensor([1, 1.3, 1, 1, 1, 0.4, *[1] * 506], dtype=torch.float64).unsqueeze(1)
    seen = ALL.clone()
    seen[5] = False
    versions = [empty + (some - empty) * weights for some in (rows(ids), rows(ids, seen))]
    tangent = math.tan((1 - 0.4) * math.pi / 2)
    expected = (versions[0] + tangent * versions[1]) / (1 + tangent)
    close(encoded("a (red)1.3 cat on a (mat)0.4", "compel", syntax="compel").hidden, expected)
    first = encoded("(a)0.4 cat", "compel", syntax="compel").hidden  # the first token fades as well
    seen = ALL.clone()
    seen[0] = False
    ids = [*ids_of("a cat"), END, *[PADDING] * 509]
    weights = torch.tensor([0.4, *[1] * 511], dtype=torch.float64).unsqueeze(1)
    versions = [empty + (some - empty) * weights for some in (rows(ids), rows(ids, seen))]
    close(first, (versions[0] + tangent * versions[1]) / (1 + tangent))


def test_compel_refuses_what_it_would_cut_off() -> None:
    assert encoded("cat " * 511, "compel").hidden.shape == (1, 512, DIM)
    with pytest.raises(ValueError, match="at most 511 tokens of T5, and this prompt has 512"):
        encoded("cat " * 512, "compel")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a (red cat:1.3) on (mat:0)", [("a", 1.0), ("red cat", 1.3), ("on", 1.0), ("mat", 0.0)]),
        ("a red cat", [("a red cat", 1.0)]),
        ("", [("empty", 1.0)]),
        (" ", [("", 1.0)]),
    ],
)
def test_lpw_ends_each_stretch_and_pads_nothing(text: str, parts: list[tuple[str, float]]) -> None:
    ids = [token_id for part, _ in parts for token_id in (*ids_of(part), END)]
    weights = [weight for part, weight in parts for _ in (*ids_of(part), END)]
    expected = rows(ids) * torch.tensor(weights, dtype=torch.float64).unsqueeze(1)
    close(encoded(text, "lpw", syntax="a1111").hidden, expected)


def test_rows_know_their_text() -> None:
    found = encoded("a (red:1.3) cat", "lpw", syntax="a1111")
    spans = [found.read.chunks[place.chunk].tokens[place.position].span for place in found.places]
    source = found.read.prompt.source
    assert [source[slice(*span)] if span else "" for span in spans] == ["a", "", "red", "", "cat", ""]


def test_break_is_a_space_and_that_is_said() -> None:
    codes = [issue.code for issue in encoded("a cat BREAK a dog", "a1111", syntax="a1111").read.issues]
    assert codes == ["break-is-a-space"]


def test_clip_beside_it_is_neither_padded_nor_cut_for_it() -> None:
    readers: dict[str, Reader] = {"t5xxl": reader("a1111"), "clip_l": Reader(default_tokenizer())}
    options = EncodeOptions(syntax="a1111", scheme="a1111", padding="drop")
    reads = Encoders(readers).read("a (red:1.3) cat", options)
    assert [*reads] == ["clip_l", "t5xxl"]
    assert reads["clip_l"].kept == (5,)
    assert reads["t5xxl"].kept is None
    assert not reads["clip_l"].issues
    together = read_together(["a cat", "a cat, " * 60], options, readers)
    assert [len(read.chunks) for read in together["clip_l"]] == [3, 3]
    assert [len(read.encoded[0]) for read in together["t5xxl"]] == [256, 256]
    with_texts = Encoders(readers).read({"clip_l": "a cat"}, options)
    assert with_texts["t5xxl"].prompt.source == "a cat"
