"""The door from Python: the lines of README.md, and the masks that are known before anything is encoded."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional
from weighted_clip import Encoders
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.masks import causal_mask, hide_from, padding_mask, span_mask
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.towers import Reader

ROOT = Path(__file__).resolve().parents[1]
CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)


def lines_of(page: str, heading: str) -> str:
    section = (ROOT / page).read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    [lines] = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return lines


def written_out(model: TextModel, ids: torch.Tensor, may: torch.Tensor) -> torch.Tensor:
    """The last hidden states of one chunk in float64, without any code of the encoder; ``may`` has causality in it."""
    weights = {name: value.double() for name, value in model.state_dict().items()}

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    x = weights["embeddings.token_embedding.weight"][ids] + weights["embeddings.position_embedding.weight"]
    for layer in range(CONFIG.num_layers):
        at = f"encoder.layers.{layer}"
        y = norm(f"{at}.layer_norm1", x)
        q, k, v = (linear(f"{at}.self_attn.{part}_proj", y) for part in "qkv")
        scores = (q @ k.transpose(-1, -2) / 64**0.5).masked_fill(~may, -torch.inf)
        x = x + linear(f"{at}.self_attn.out_proj", scores.softmax(-1) @ v)
        y = linear(f"{at}.mlp.fc1", norm(f"{at}.layer_norm2", x))
        x = x + linear(f"{at}.mlp.fc2", y * torch.sigmoid(1.702 * y))
    return norm("final_layer_norm", x).float()


def test_the_lines_about_a_mask_of_one_s_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    model = seeded_text_model(CONFIG)
    tensors = {f"text_model.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(lines_of("docs/reference/masks.md", "A mask of your own"), found)
    ids, hidden = torch.tensor(found["ids"]), found["masked"].hidden
    assert (hidden - found["plain"].hidden).abs().amax(-1)[0, 2:5].min() > 1e-3
    may = torch.ones(77, 77, dtype=torch.bool).tril()
    may[:, 2] = False
    may[3, 1] = False
    states = written_out(model, ids, may)
    torch.testing.assert_close(hidden, states, rtol=0, atol=1e-5)
    assert torch.equal(hidden[0, :2], found["plain"].hidden[0, :2])


def test_the_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    model = seeded_text_model(CONFIG)
    tensors = {f"text_model.{name}": tensor for name, tensor in model.state_dict().items()}
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(lines_of("README.md", "From Python"), found)
    assert found["hidden"].shape == (1, 77, 64)
    assert found["pooled"].shape == (1, 64)
    cat, dog = found["results"]
    plain = TextEncoder(model)([cat.prompts["clip_l"].read.chunks[0].ids])
    torch.testing.assert_close(cat.hidden, plain.hidden, atol=1e-5, rtol=0)
    alone = Encoders.of_models({"clip_l": model})("a (dog:0.5)", scheme="masked_blend")
    torch.testing.assert_close(dog.hidden, alone.hidden, atol=1e-5, rtol=0)
    open_cells = 77 * 78 // 2
    dog_hidden = 77 - 2  # from its position 2 on
    assert capsys.readouterr().out.splitlines() == [
        "3 encodings",
        f"the prompt {open_cells}",
        f"without 0.5 and less {open_cells - dog_hidden}",
        "torch.Size([1, 77, 64]) torch.Size([1, 64])",
    ]


# ---- masks


class Spy:
    """An encoder that notes what each position may attend in each chunk it is given."""

    def __init__(self) -> None:
        self.encode = TextEncoder(seeded_text_model(CONFIG))
        self.given: list[tuple[tuple[int, ...], torch.Tensor]] = []

    def __call__(self, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Any:
        seen = torch.ones(len(ids), 77, 77, dtype=torch.bool) if mask is None else mask.expand(len(ids), 77, 77)
        seen = seen.tril() if is_causal else seen
        self.given += [(tuple(chunk), one) for chunk, one in zip(ids, seen, strict=True)]
        return self.encode(ids, mask, is_causal=is_causal)


def encoders(spy: Spy | None = None) -> Encoders:
    return Encoders({"tower": Reader(default_tokenizer())}, {} if spy is None else {"tower": spy})


EMPTY = (49406, *[49407] * 76)
TEXTS = ["a (cat:1.3), a (dog:0.5) and a (cow:0.2)", "plain", ", ".join(["a red fox in (deep:0.6) snow"] * 12)]
CHOICES: dict[str, dict[str, Any]] = {
    **{scheme: {"scheme": scheme} for scheme in SCHEMES},
    "padding": {"scheme": "masked_blend", "padding": "mask"},
    "phrases": {"scheme": "compel", "hide": "cat", "hidden_from": "the phrases below", "from_phrases": "dog"},
    "no causality": {"scheme": "compel", "padding": "mask", "is_causal": False},
    "no causality, nothing hidden": {"is_causal": False},
}


@pytest.mark.parametrize("choice", CHOICES)
def test_masks_are_what_the_encoder_is_given(choice: str) -> None:
    spy = Spy()
    prepared = encoders(spy).prepare(TEXTS, **CHOICES[choice])
    masks = prepared.masks
    assert spy.given == []
    prepared.run()
    given = {one.numpy().tobytes() for ids, one in spy.given if ids != EMPTY}
    told = {one.numpy().tobytes() for versions in masks for _, mask in versions for one in mask}
    assert told == given
    for versions, read in zip(masks, prepared.reads["tower"], strict=True):
        assert versions[0].title == "the prompt"
        assert all(mask.shape == (len(read.chunks), 77, 77) and mask.dtype == torch.bool for _, mask in versions)


def test_masks_of_texts_that_are_encoded_together() -> None:
    spy = Spy()
    prepared = encoders(spy).prepare_together(["a cat", "a dog"], EncodeOptions(scheme="a1111", padding="mask"))
    masks = prepared.masks
    prepared.run()
    assert [title for versions in masks for title, _ in versions] == ["the prompt"] * 2
    assert [mask.numpy().tobytes() for versions in masks for _, (mask,) in versions] == [
        one.numpy().tobytes() for _, one in spy.given
    ]


def only_mask(text: str, **choices: Any) -> torch.Tensor:
    [[version]] = encoders().prepare([text], **choices).masks
    return version.mask


def test_masks_say_what_the_options_ask_for() -> None:
    causal = causal_mask(77)
    assert torch.equal(only_mask("a cat", scheme="unweighted"), causal)
    assert only_mask("a cat", is_causal=False).all()
    ids = torch.tensor([[49406, 320, 2368, *[49407] * 74]])
    behind = padding_mask(ids, eos_id=49407, pad_id=49407)
    assert torch.equal(only_mask("a cat", padding="mask"), causal & behind)
    assert torch.equal(only_mask("a cat", padding="mask", is_causal=False), behind.expand(1, 77, 77))
    hidden = only_mask("a red cat", hide="red", hidden_from="the phrases below", from_phrases="cat")
    assert torch.equal(hidden, causal & hide_from(77, keys=[2], queries=[3]))
    whole, without = encoders().prepare(["a (red:0.5) cat"], scheme="masked_blend").masks[0]
    assert torch.equal(whole.mask, causal)
    assert torch.equal(without.mask, causal & span_mask(77, [(2, 3)]))


def test_the_masks_of_each_prompt_that_a_syntax_joins() -> None:
    [versions] = encoders().prepare(['("a cat", "a (dog)0.5").and()'], syntax="compel", scheme="compel").masks
    assert [title for title, _ in versions].count("the prompt") == 2
    assert sum(bool(torch.equal(mask, causal_mask(77))) for _, mask in versions) == 2
    assert len(versions) == 3
