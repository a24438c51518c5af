"""The lab without its page: tables, masks, comparisons and files, against numbers made in other ways."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.web.lab.model import LabError
from weighted_clip.web.lab.native import NativeLabModel, Settings, random_model
from weighted_clip.web.lab.tabs.comparison import Comparison, compare, comparison_chart
from weighted_clip.web.lab.tabs.study import (
    HEADERS,
    chunk_masks,
    chunk_of,
    export,
    further_masks,
    ids_text,
    mask_pictures,
    read,
    token_rows,
    totals,
)
from weighted_clip.weighting.options import OPTIONS, EncodeOptions
from weighted_clip.weighting.padding import PADDINGS
from weighted_clip.weighting.pipeline import EncodedPrompt
from weighted_clip.weighting.schemes import SCHEMES

from ..door import encode_prompt

L = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128)
G = TextConfig(hidden_dim=128, num_heads=2, num_layers=3, mlp_dim=128, activation="gelu", projection_dim=96, pad_id=0)
CONFIGS = {"clip_l": L, "clip_g": G}
A1111 = EncodeOptions(syntax="a1111")
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl"


@pytest.fixture(scope="module")
def model() -> NativeLabModel:
    """One small tower."""
    return random_model(Settings(), config=L)


def two_towers(embeddings: tuple[Path, ...] = ()) -> NativeLabModel:
    models = {name: seeded_text_model(config) for name, config in CONFIGS.items()}
    return NativeLabModel("two", CONFIGS, lambda: models, Settings(embeddings))


class Counting:
    """A model that counts, and fails for one scheme."""

    title, warning = "counting", ""

    def __init__(self, model: NativeLabModel, failing: str = "") -> None:
        self.model, self.failing, self.schemes = model, failing, []

    def readers(self):
        return self.model.readers()

    def encode(self, text: str, options: EncodeOptions, check: Any = None) -> Mapping[str, EncodedPrompt]:
        if options.scheme == self.failing:
            raise LabError("no memory for this one")
        self.schemes += [options.scheme] if text else []
        return self.model.encode(text, options)


# --- reading


def test_tokens_stand_in_a_table(model: NativeLabModel) -> None:
    table = token_rows(read(model, "a (cat:1.25) BREAK [🦊", A1111), 100)
    assert all(len(row) == len(HEADERS) for row in table.rows)
    assert table.num_more == 0
    fox = [token_id for token_id, _, _ in default_tokenizer()("🦊")]
    assert table.rows == [
        [1, 1, 320, "a", 1.0, 1, "", ""],
        [1, 2, 2368, "cat", 1.25, 2, "", ""],
        [2, 1, fox[0], "🦊", 0.909091, 3, "", "f0 9f a6: bytes 1 to 3 of 4 of 🦊"],
        [2, 2, fox[1], "🦊", 0.909091, 3, "", "8a: byte 4 of 4 of 🦊"],
    ]


def test_totals_and_ids_are_those_of_the_tokenizer(model: NativeLabModel) -> None:
    one, two = read(model, "a red cat", A1111), read(model, "a (cat:1.25) BREAK a 🦊", A1111)
    assert totals(one) == "3 tokens of 9 characters in 1 chunk: 3 of 75"
    assert totals(two) == "5 tokens of 22 characters in 2 chunks: 2, 3 of 75"
    ids = [token_id for token_id, _, _ in default_tokenizer()("a red cat")]
    assert json.loads(ids_text(one)) == ids == [320, 736, 2368]
    assert json.loads(ids_text(two)) == [[320, 2368], [token_id for token_id, _, _ in default_tokenizer()("a 🦊")]]
    assert ids_text(read(model, "", A1111)) == "[]"


def test_the_table_says_from_whom_words_are_hidden(model: NativeLabModel) -> None:
    options = EncodeOptions(hide="cat", hidden_from="padding rows only")
    assert [row[6] for row in token_rows(read(model, "a cat", options), 9).rows] == ["", "padding rows only"]


@given(text=st.text(max_size=60), syntax=st.sampled_from(["a1111", "comfy", "compel", "none"]), limit=st.integers(0, 8))
@example(text="", syntax="a1111", limit=5)
@example(text="((((a:1.2] ) BREAK \\", syntax="a1111", limit=5)
@example(text="cat " * 2000, syntax="comfy", limit=1000)
def test_nothing_is_left_out_unsaid(model: NativeLabModel, text: str, syntax: str, limit: int) -> None:
    prompt = read(model, text, EncodeOptions(syntax=syntax))
    table = token_rows(prompt, limit)
    assert len(table.rows) <= limit
    assert len(table.rows) + table.num_more == sum(chunk.num_content for chunk in prompt.chunks)


def test_all_towers_of_a_model_count_for_its_chunks(tmp_path: Path) -> None:
    save_file({"clip_l": torch.zeros(1, 64), "clip_g": torch.zeros(80, 128)}, tmp_path / "long.safetensors")
    prompt = read(two_towers((tmp_path,)), "a long cat", A1111)
    assert [chunk.num_content for chunk in prompt.chunks] == [1, 75, 1]  # as many as CLIP-G has, as in Forge
    assert token_rows(prompt, 9).rows[1][2] == "long[0]"
    prompt = read(two_towers((tmp_path,)), "a embedding:long cat", EncodeOptions(syntax="comfy"))
    assert [chunk.num_content for chunk in prompt.chunks] == [3]
    assert [issue.code for issue in prompt.issues] == ["rows-cut"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (EncodeOptions(syntax="a1111", comma_backtrack=75), "0 to 74 tokens, got 75"),
        (EncodeOptions(syntax="a1111", strict=True), "is not a number"),
    ],
)
def test_what_cannot_be_read_is_explained(model: NativeLabModel, options: EncodeOptions, message: str) -> None:
    with pytest.raises(LabError, match=message):
        read(model, "a (cat:1.2.3)", options)


@pytest.mark.parametrize("chunk", [-1, 1])
def test_a_chunk_that_is_not_there_is_refused(model: NativeLabModel, chunk: int) -> None:
    prompt = read(model, "a", A1111)
    for function in (chunk_of, lambda prompt, chunk: mask_pictures(prompt, 20, chunk)):
        with pytest.raises(LabError, match=r"no chunk .* has chunks 1 to 1"):
            function(prompt, chunk)


# --- masks


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("hidden_from", OPTIONS["hidden_from"].choices)
@pytest.mark.parametrize("is_causal", [True, False])
def test_the_product_is_what_the_encoder_is_given(model, padding: str, hidden_from: str, is_causal: bool) -> None:
    options = EncodeOptions(
        scheme="unweighted", padding=padding, hide="red cat", hidden_from=hidden_from, from_phrases="dog\nbowl",
        is_causal=is_causal,
    )  # fmt: skip
    prompt = read(model, "a red cat and a dog in a bowl", options)
    given_masks: list[torch.Tensor | None] = []

    def encode(ids: Sequence[Sequence[object]], mask=None, *, is_causal: bool = True) -> Encoding:
        causal = torch.ones(len(ids), 77, 77, dtype=torch.bool)
        causal = causal.tril() if is_causal else causal
        given_masks.append(causal if mask is None else causal & mask)
        return Encoding(torch.zeros(len(ids), 77, 1), torch.zeros(len(ids), 1))

    encode_prompt(prompt, encode, default_tokenizer())
    masks = chunk_masks(prompt, prompt.chunks[0])
    assert [title for title, _, _ in masks] == ["causal mask", "padding mask", "hidden phrases", "product"]
    assert torch.equal(masks[-1][2], given_masks[0][:1])  # clean padding also encodes the empty prompt


def test_each_mask_cell_by_cell(model: NativeLabModel) -> None:
    options = EncodeOptions(padding="mask", hide="red", hidden_from="the phrases below", from_phrases="dog")
    prompt = read(model, "a red cat, a dog", options)  # positions: BOS 0, a 1, red 2, cat 3, "," 4, a 5, dog 6, EOS 7
    causal, padding, phrases, product = (mask[0] for _, _, mask in chunk_masks(prompt, prompt.chunks[0]))
    for query in range(77):
        for key in range(77):
            sees = (key <= query, key <= 7, not (query == 6 and key == 2))
            assert (bool(causal[query, key]), bool(padding[query, key]), bool(phrases[query, key])) == sees
            assert bool(product[query, key]) == all(sees)


@pytest.mark.parametrize(
    ("hidden_from", "text", "caption"),
    [
        ("everything", "a (red:1.4) cat", "“red cat” is hidden from every position, its own included."),
        ("everything", "red cat, red dog", "“red cat” is hidden"),
        (
            "everything",
            "dog red cat, dog",
            "“dog red cat” and “dog” are hidden from every position, their own included.",
        ),
        ("the phrases below", "red cat bowl", "“red cat” is hidden from “bowl”; all else still sees it."),
        ("padding rows only", "red cat", "“red cat” is hidden from the padding after the prompt"),
    ],
)
def test_captions_say_what_is_hidden_from_whom(model, hidden_from: str, text: str, caption: str) -> None:
    options = EncodeOptions(hide="red cat\ndog", hidden_from=hidden_from, from_phrases="bowl")
    if "red dog" in text:
        options = EncodeOptions(hide="red cat", hidden_from=hidden_from)
    shown = {title: text for title, text, _ in mask_pictures(read(model, text, options), 12)}
    assert shown["hidden phrases"].startswith(caption)


def test_only_masks_that_are_there_are_drawn(model: NativeLabModel) -> None:
    pictures = mask_pictures(read(model, "a cat BREAK a dog", EncodeOptions(syntax="a1111", hide="dog")), 12)
    assert [picture.title for picture in pictures] == ["causal mask", "padding mask", "product"]
    assert "causality alone" in pictures[-1].caption
    second = mask_pictures(read(model, "a cat BREAK a dog", EncodeOptions(syntax="a1111", hide="dog")), 12, chunk=1)
    assert [picture.title for picture in second][2] == "hidden phrases"
    small, large = (mask_pictures(read(model, "cat " * 70, A1111), limit)[0].image for limit in (10, 60))
    assert small.width < large.width


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        (EncodeOptions(syntax="a1111", scheme="masked_blend"), [{5}, {2, 5}]),
        (EncodeOptions(syntax="a1111", scheme="compel"), [{2}, {5}]),
        (EncodeOptions(syntax="a1111", scheme="masked_blend", mask_method="token"), []),
        (EncodeOptions(syntax="a1111", scheme="comfy", padding="mask"), []),
    ],
)
def test_what_a_scheme_hides_in_further_encodings_is_drawn(model, options: EncodeOptions, hidden: list[set]) -> None:
    prompt = read(model, "a (cat:0.5) and a (dog:0.2) b", options)
    masks = further_masks(prompt, prompt.chunks[0])
    assert [{key for key in range(77) if not mask[76, key]} for mask in masks] == hidden
    titles = [picture.title for picture in mask_pictures(prompt, 20)]
    assert titles == ["causal mask", "padding mask", "product"] + ["further encodings"] * bool(hidden)


# --- comparing


def reference(plain: torch.Tensor, weighted: torch.Tensor) -> tuple[float, float]:
    """Ratio and angle in degrees of two rows, by the arc cosine in numpy."""
    a, b = plain.double().numpy(), weighted.double().numpy()
    old, new = np.sqrt(np.sum(a * a)), np.sqrt(np.sum(b * b))
    return new / old, math.degrees(math.acos(max(-1.0, min(1.0, float(np.dot(a, b) / old / new)))))


@pytest.mark.parametrize("padding", PADDINGS)
def test_changes_are_those_of_the_rows(model: NativeLabModel, padding: str) -> None:
    options = EncodeOptions(syntax="a1111", padding=padding)
    found = list(compare(model, PROMPT, options, list(SCHEMES)))
    assert [comparison.scheme for comparison in found] == list(SCHEMES)
    whole = EncodeOptions(syntax="a1111", padding="attend" if padding == "drop" else padding)
    plain = model.encode(PROMPT, EncodeOptions(**{**vars(whole), "scheme": "unweighted"}))["clip_l"].hidden[0]
    for comparison in found:
        encoded = model.encode(PROMPT, EncodeOptions(**{**vars(whole), "scheme": comparison.scheme}))["clip_l"]
        assert comparison.num_encodings == encoded.num_encodings
        if comparison.scheme == "repeat":  # its rows are not at the positions of others
            assert set(comparison.changes[0]) == {(1.0, 0.0)}
            continue
        num_rows = encoded.hidden.shape[1]
        assert num_rows == (11 if comparison.scheme == "lerp_last" else 77)
        assert comparison.changes[0][num_rows:] == (None,) * (77 - num_rows)
        for place, change in enumerate(comparison.changes[0][:num_rows]):
            ratio, angle = reference(plain[place], encoded.hidden[0, place])
            assert change is not None and change.angle is not None
            assert change.ratio == pytest.approx(ratio, rel=1e-9)
            assert change.angle == pytest.approx(angle, abs=3e-6)  # what the arc cosine can tell
    (unweighted,) = [comparison for comparison in found if comparison.scheme == "unweighted"]
    assert {(change.ratio, change.angle) for change in unweighted.changes[0]} == {(1.0, 0.0)}
    assert unweighted.issues == ()


@given(weight=st.floats(-3, 3).map(lambda weight: round(weight, 2)))
@settings(max_examples=25)
@example(weight=0.0)
@example(weight=1.0)
def test_scaling_a_row_is_measured_as_its_weight(model: NativeLabModel, weight: float) -> None:
    (found,) = compare(model, f"a (cat:{weight}) b", A1111, ["a1111_no_norm"])
    change = found.changes[0][2]
    assert change.ratio == pytest.approx(abs(weight), rel=1e-6, abs=0)
    if weight == 0:
        assert change.angle is None
    else:
        assert change.angle == pytest.approx(180 if weight < 0 else 0, abs=1e-4)
    assert found.changes[0][1] == (1.0, 0.0)


def test_small_angles_keep_their_digits(model: NativeLabModel) -> None:
    (found,) = compare(model, "a (cat:1.0001) b", EncodeOptions(), ["comfy"])
    assert 0 < (found.changes[0][2].angle or 0) < 0.05


def test_weights_that_overflow_are_told_as_they_are(model: NativeLabModel) -> None:
    (found,) = compare(model, "a (cat:1e38) b", EncodeOptions(), ["a1111_no_norm"])
    change = found.changes[0][2]
    assert change.ratio > 1e29
    comparison_chart([found], read(model, "a (cat:1e38) b", EncodeOptions()))


def test_repeated_rows_are_measured_once_and_those_left_out_not_at_all(model: NativeLabModel) -> None:
    text = "a (red:1.5) (cat:0) and " + "a (dog:0.5) " * 40
    (found,) = compare(model, text, A1111, ["repeat"])
    assert [place for place, change in enumerate(found.changes[0]) if change is None] == [3]
    assert {change for chunk in found.changes for change in chunk if change is not None} == {(1.0, 0.0)}
    assert found.message == "It changes no row: 154 rows become 267, by their weights."
    comparison_chart([found], read(model, text, A1111))
    assert next(compare(model, "a cat", A1111, ["repeat"])).message == ""


def test_rows_that_a_scheme_leaves_out_are_not_mixed_up(model: NativeLabModel) -> None:
    text = "cat " * 70 + "(dog:1.5) " * 30
    lpw, whole = compare(model, text, A1111, ["lpw", "a1111_no_norm"])
    assert lpw.message == "It leaves out 2 rows between chunks."
    assert lpw.changes[0][76] is None
    assert lpw.changes[1][0] is None
    kept = [
        (change, other)
        for chunk, others in zip(lpw.changes, whole.changes, strict=True)
        for change, other in zip(chunk, others, strict=True)
        if change
    ]
    assert len(kept) == 152
    ratios = {round(change.ratio / other.ratio, 5) for change, other in kept}  # one mean for all rows
    assert len(ratios) == 1
    assert max(change.angle for change, _ in kept) < 1e-4


def test_rows_of_padding_that_a_scheme_has_not_are_not_mixed_up(model: NativeLabModel) -> None:
    last, whole = compare(model, "a (cat:1.5) BREAK (dog:1.5)", A1111, ["lerp_last", "unweighted"])
    assert last.message == f"It leaves out {2 * 77 - 4 - 3} rows of padding."
    assert [sum(change is not None for change in chunk) for chunk in last.changes] == [4, 3]
    moved = [[place for place, change in enumerate(chunk) if change and change.angle] for chunk in last.changes]
    assert moved == [[2], [1]]
    assert comparison_chart([last, whole], read(model, "a (cat:1.5) BREAK (dog:1.5)", A1111), chunk=1)


def test_mixtures_are_called_so(model: NativeLabModel) -> None:
    compel = EncodeOptions(syntax="compel")
    equal, blend = '("a cat", "a dog++").blend(0.5, 0.5)', f'("a cat", "{"dog " * 100}++").blend(0.5, 0.5)'
    (found,) = compare(model, equal, compel, ["compel"])
    assert found.message.startswith("Prompts are blended here")
    assert len(found.changes) == 2
    assert found.changes[0] == found.changes[1]
    chunked = EncodeOptions(syntax="compel", chunking="a1111")
    comfy, lpw = compare(model, blend, chunked, ["comfy", "lpw"])
    assert len(comfy.changes) == len(read(model, blend, chunked).chunks) == 3
    assert comfy.changes[0] == comfy.changes[1]
    assert lpw.changes == ()
    assert lpw.message == "This has 152 rows and the unweighted encoding 154, so they cannot be laid together."
    assert comparison_chart([comfy, lpw], read(model, blend, chunked), chunk=2)


def test_sections_stand_behind_one_another(model: NativeLabModel) -> None:
    text = '("a cat", "a dog++").and(1, 0.5)'
    (found,) = compare(model, text, EncodeOptions(syntax="compel"), ["compel"])
    assert [len(chunk) for chunk in found.changes] == [77, 77]
    assert found.changes[0][2].angle == 0
    assert (found.changes[1][2].angle or 0) > 1


def test_towers_after_the_first_do_not_count() -> None:
    joined, alone = (
        two_towers(),
        NativeLabModel("one", {"clip_g": G}, lambda: {"clip_g": seeded_text_model(G)}, Settings()),
    )
    (both,) = compare(joined, PROMPT, A1111, ["comfy"])
    (g,) = compare(alone, PROMPT, A1111, ["comfy"])
    assert both.changes != g.changes
    prompt = read(joined, PROMPT, A1111)
    assert both.changes[0][3].ratio == pytest.approx(
        reference(
            joined.encode(PROMPT, EncodeOptions(syntax="a1111", scheme="unweighted"))["clip_l"].hidden[0, 3],
            joined.encode(PROMPT, A1111)["clip_l"].hidden[0, 3],
        )[0]
    )
    assert comparison_chart([both], prompt)


def test_a_comparison_can_be_left_at_any_time(model: NativeLabModel) -> None:
    counting = Counting(model)
    running = compare(counting, PROMPT, A1111, ["comfy", "a1111", "perp"])
    assert next(running).scheme == "comfy"
    running.close()
    assert counting.schemes == ["unweighted", "comfy"]


def test_one_scheme_that_fails_does_not_end_the_others(model: NativeLabModel) -> None:
    found = list(compare(Counting(model, failing="perp"), PROMPT, A1111, ["comfy", "perp", "lpw"]))
    assert [comparison.message for comparison in found] == ["", "no memory for this one", ""]
    assert found[1].changes == ()
    assert comparison_chart(found, read(model, PROMPT, A1111))
    with pytest.raises(LabError, match="no memory"):
        next(compare(Counting(model, failing="unweighted"), PROMPT, A1111, ["comfy"]))


@pytest.mark.parametrize(("schemes", "message"), [([], "got none"), (["comfy", "best"], "'best'")])
def test_schemes_have_to_be_known(model: NativeLabModel, schemes: list[str], message: str) -> None:
    with pytest.raises(LabError, match=message):
        next(compare(model, PROMPT, A1111, schemes))
    with pytest.raises(LabError, match="nothing to draw"):
        comparison_chart([], read(model, PROMPT, A1111))


@pytest.mark.parametrize(
    "text", ["", "((((", "🦊 (猫:1.2)", "(cat:1.1) " * 2000], ids=["empty", "open", "emoji", "long"]
)
def test_any_prompt_can_be_compared_and_drawn(model: NativeLabModel, text: str) -> None:
    schemes = ["comfy", "a1111", "lpw"] if len(text) > 100 else list(SCHEMES)
    found: list[Comparison] = list(compare(model, text, A1111, schemes))
    prompt = read(model, text, A1111)
    for comparison in found:
        assert len(comparison.changes) == len(prompt.chunks)
    assert comparison_chart(found, prompt, len(prompt.chunks) - 1)


# --- files


def test_an_exported_file_says_what_it_is(tmp_path: Path, model: NativeLabModel) -> None:
    options = EncodeOptions(syntax="a1111", scheme="masked_blend", hide="cat")
    export(model, PROMPT, options, tmp_path / "prompt.safetensors")
    with safe_open(tmp_path / "prompt.safetensors", "pt") as file:
        metadata, hidden, pooled = file.metadata(), file.get_tensor("hidden"), file.get_tensor("pooled")
    encoded = model.encode(PROMPT, options)["clip_l"]
    assert torch.equal(hidden, encoded.hidden)
    assert torch.equal(pooled, encoded.pooled)
    assert metadata == {
        **{name: str(value) for name, value in vars(options).items()},
        "prompt": PROMPT,
        "weights": model.title,
        "warning": model.warning,
    }


def test_an_exported_file_joins_towers_and_warns_of_nothing_real(tmp_path: Path) -> None:
    export(two_towers(), PROMPT, A1111, tmp_path / "prompt.safetensors")
    with safe_open(tmp_path / "prompt.safetensors", "pt") as file:
        assert file.get_tensor("hidden").shape == (1, 77, 64 + 128)
        assert file.get_tensor("pooled").shape == (1, 96)
        assert "warning" not in file.metadata()


def test_what_cannot_be_exported_is_explained(tmp_path: Path, model: NativeLabModel) -> None:
    with pytest.raises(LabError, match=r"prompt\.safetensors cannot be written"):
        export(model, "a", A1111, tmp_path / "nowhere" / "prompt.safetensors")
    with pytest.raises(LabError, match="exactly one token"):
        export(model, "a", EncodeOptions(filler="two words"), tmp_path / "prompt.safetensors")
    with pytest.raises(LabError, match=r"prompt\.safetensors cannot be written"):
        export(model, "half \ud83e", A1111, tmp_path / "prompt.safetensors")
