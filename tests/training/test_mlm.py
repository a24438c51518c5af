"""Masked language modelling: which tokens are hidden, as transformers' collator does; the loss; whole runs."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.commands.program import main
from weighted_clip.studio.training.data.captions import token_ids
from weighted_clip.studio.training.data.datasets import read_captions
from weighted_clip.studio.training.finetuning.retention import PROMPTS
from weighted_clip.studio.training.objectives.mlm import (
    HEAD_NAME,
    IGNORED,
    MASK,
    Masked,
    TrainedMLM,
    fill,
    load_mlm,
    masked,
)

from ..encoder.files import write
from ..libraries import library
from ..transformers_clip import write_clip
from .models import TEXT, VISION
from .runs import Start, log_of, tensors_of, write_pairs

MLM = ("--objective", "mlm", "--steps", "4", "--held-out", "4")


def rngs(count: int, seed: int = 0) -> list[random.Random]:
    return [random.Random(f"{seed}/{number}") for number in range(count)]


def long_captions(count: int) -> Tensor:
    """75 random tokens each."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.full((count, 77), TEXT.eos_id)
    ids[:, 0] = TEXT.bos_id
    ids[:, 1:-1] = torch.randint(0, TEXT.bos_id, (count, 75), generator=generator)
    return ids


# ---- which tokens


def shares(before: Tensor, after: Tensor, is_mask: Tensor, labels: Tensor) -> list[float]:
    """Shares: chosen of all tokens; masked, replaced and kept of the chosen ones."""
    chosen = labels != IGNORED
    assert labels[chosen].equal(before[chosen])
    assert after[~chosen].equal(before[~chosen])
    assert not is_mask[~chosen].any()
    replaced = chosen & ~is_mask & (after != before)
    count = int(chosen.sum())
    kept = count - int(is_mask.sum()) - int(replaced.sum())
    return [count / before[:, 1:-1].numel(), int(is_mask.sum()) / count, int(replaced.sum()) / count, kept / count]


def test_tokens_are_hidden_as_often_as_by_transformers_collator() -> None:
    library("transformers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

    ids = long_captions(4000)
    words = {f"w{number}": number for number in range(TEXT.vocab_size)} | {"[MASK]": TEXT.vocab_size}
    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words)), mask_token="[MASK]")
    torch.manual_seed(0)
    is_special = (ids == TEXT.bos_id) | (ids == TEXT.eos_id)
    collator = DataCollatorForLanguageModeling(theirs, mlm_probability=0.15)
    after, labels = collator.torch_mask_tokens(ids.clone(), special_tokens_mask=is_special.clone())
    is_mask = after == TEXT.vocab_size
    expected = shares(ids, torch.where(is_mask, ids, after), is_mask, labels)

    ours = masked(ids, TEXT, rngs(len(ids)))
    found = shares(ids, ours.ids, ours.is_mask, ours.labels)
    # 300,000 tokens, 45,000 of them chosen: five standard deviations are at most 0.95 % of these
    for one, other, rule, close in zip(
        found, expected, (0.15, 0.8, 0.1, 0.1), (0.0033, 0.0095, 0.0071, 0.0071), strict=True
    ):
        assert one == pytest.approx(other, abs=1.5 * close)
        assert one == pytest.approx(rule, abs=close)


def test_bos_eos_and_padding_are_never_hidden_or_made() -> None:
    captions = ["a red cat", "", "a very long caption " * 30] * 200
    ids = token_ids(captions, default_tokenizer(), TEXT)
    found = masked(ids, TEXT, rngs(len(ids)))
    is_word = (ids != TEXT.bos_id) & (ids != TEXT.eos_id)
    assert not (found.labels != IGNORED)[~is_word].any()
    assert found.ids[~is_word].equal(ids[~is_word])
    assert (found.ids[is_word] < TEXT.bos_id).all()
    assert found.is_caption.sum(1).tolist() == [5, 2, 77] * 200


def test_the_same_tokens_are_hidden_however_far_captions_are_padded() -> None:
    ids = token_ids(["a red cat on a mat", "a dog"], default_tokenizer(), TEXT)
    wide = torch.nn.functional.pad(ids, (0, 9), value=TEXT.pad_id)
    one, other = masked(ids, TEXT, rngs(2, seed=3)), masked(wide, TEXT, rngs(2, seed=3))
    assert (one.labels != IGNORED).any()
    assert one.labels.equal(other.labels[:, : ids.shape[1]])
    assert one.ids.equal(other.ids[:, : ids.shape[1]])


# ---- the loss


def test_the_loss_is_transformers_of_the_same_labels() -> None:
    library("transformers")
    from transformers.loss.loss_utils import ForMaskedLMLoss

    model = TrainedMLM(seeded_text_model(TEXT, dtype=torch.float64)).double()
    torch.nn.init.normal_(model.head.weight, std=0.1)
    ids = token_ids(PROMPTS[:16], default_tokenizer(), TEXT)
    part = masked(ids, TEXT, rngs(16))
    embeds = model.text.embeddings.token_embedding(part.ids).masked_scatter(
        part.is_mask.unsqueeze(-1), model.mask.expand(int(part.is_mask.sum()), -1)
    )
    hidden = embeds + model.text.embeddings.position_embedding.weight[: ids.shape[1]]
    keep = part.is_caption[:, None, None, :].expand(-1, 1, ids.shape[1], -1)
    hidden = model.text.encoder(hidden, keep, is_causal=False)
    logits = model.head(model.text.final_layer_norm(hidden[-1]))
    expected = ForMaskedLMLoss(logits, part.labels, TEXT.vocab_size)
    count = int((part.labels != IGNORED).sum())
    found = model(part)
    assert count > 10
    assert (found.loss / count).item() == pytest.approx(expected.item(), rel=1e-6)  # which it has in float32
    exact = torch.nn.functional.cross_entropy(logits.flatten(0, 1), part.labels.flatten())
    assert (found.loss / count).item() == pytest.approx(exact.item(), abs=1e-9)
    is_label = part.labels != IGNORED
    assert found.right == (logits[is_label].argmax(-1) == part.labels[is_label]).sum()
    # of the same gradients, the mask's included
    grads = [torch.autograd.grad(loss, model.mask, retain_graph=True)[0] for loss in (found.loss / count, expected)]
    torch.testing.assert_close(*grads, atol=1e-6, rtol=0)
    assert grads[0].abs().max() > 1e-4


def test_every_position_sees_all_of_its_caption_and_no_padding() -> None:
    model = TrainedMLM(seeded_text_model(TEXT)).eval()
    ids = token_ids(["a red cat on a mat", "a dog"], default_tokenizer(), TEXT)
    labels = torch.full_like(ids, IGNORED)
    labels[1, 1] = 320
    none, is_caption = torch.zeros_like(ids, dtype=torch.bool), torch.arange(ids.shape[1]) < torch.tensor([[8], [4]])
    one = model(Masked(ids, none, labels, is_caption)).loss
    later, padding = ids.clone(), ids.clone()
    later[1, 2], padding[1, 5] = 9, 9
    assert (model(Masked(later, none, labels, is_caption)).loss - one).abs() > 1e-4
    assert (model(Masked(padding, none, labels, is_caption)).loss - one).abs() < 1e-6


def test_a_batch_in_which_nothing_is_hidden_has_gradients_of_0() -> None:
    model = TrainedMLM(seeded_text_model(TEXT))
    ids = token_ids(["", ""], default_tokenizer(), TEXT)
    found = model(masked(ids, TEXT, rngs(2)))
    found.loss.backward()
    assert found.loss == 0
    assert all(one.grad is not None and not one.grad.any() for one in model.parameters() if one.requires_grad)


# ---- runs


WIDE = replace(TEXT, hidden_dim=128, num_heads=2, mlp_dim=256)
"""With room for so many sentences."""


@pytest.mark.long
@pytest.mark.parametrize(("count", "copies", "num_steps"), [(8, 8, 60), (64, 4, 250)])
def test_sentences_are_learned_by_heart(start: Start, tmp_path: Path, count: int, copies: int, num_steps: int) -> None:
    data, weights = tmp_path / "sentences.txt", tmp_path / "wide.safetensors"
    write_clip(weights, seeded_text_model(WIDE), seeded_vision_model(VISION), 100)
    data.write_text("\n".join(PROMPTS[:count] * copies), encoding="utf-8")
    options = ("--objective", "mlm", "--new-text", "--held-out", "0", "--batch", str(count * copies))
    course = ("--accumulate", "1", "--rate", "3e-3", "--warmup", "20", "--weight-decay", "0", "--steps", str(num_steps))
    assert start(*options, *course, "--weights", str(weights), data=data) == 0
    entries = [entry for entry in log_of(tmp_path / "out") if "right" in entry]
    assert len(entries) == num_steps
    assert entries[0]["right"] < 0.05
    assert sum(entry["right"] for entry in entries[-10:]) / 10 >= 0.95  # other tokens are hidden in each step

    model, right, asked = load_mlm(tmp_path / "out"), 0, 0
    for sentence in PROMPTS[:count]:
        words = sentence.replace(",", "").split()
        for place, word in enumerate(words):
            if len(default_tokenizer()(word)) == 1:
                ((found, chance), (_, less)) = fill(model, " ".join([*words[:place], MASK, *words[place + 1 :]]), 2)[0]
                assert 1 >= chance >= less > 0
                right, asked = right + (found == word), asked + 1
    assert asked > 3 * count
    assert right / asked >= 0.9


def test_masks_are_filled_by_the_chances_of_the_head(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Beside a plain pass of the tower with the mask's vector in the place of the embedding."""
    assert start(*MLM) == 0
    text, folder = "a [MASK] cat and [MASK].", tmp_path / "out"
    tower = load_full_clip(folder / "clip.safetensors").text
    head = tensors_of(folder / HEAD_NAME)
    ids = token_ids(["a cat cat and cat."], default_tokenizer(), TEXT)
    hidden = tower.embeddings(ids, {(0, 2): head["mask"], (0, 5): head["mask"]})
    state = tower.final_layer_norm(tower.encoder(hidden, None, is_causal=False)[-1])
    chances = (state[0, [2, 5]] @ head["head.weight"].T + head["head.bias"]).softmax(-1)[:, : TEXT.bos_id]
    values, found = chances.topk(4)
    ours = fill(load_mlm(folder), text, 4)
    assert [value for row in ours for _, value in row] == pytest.approx(values.flatten().tolist(), rel=1e-4)
    symbols = [[default_tokenizer().symbol(one) for one in row] for row in found.tolist()]
    assert [[token.endswith("-") for token, _ in row] for row in ours] == [
        [not symbol.endswith("</w>") for symbol in row] for row in symbols
    ]
    capsys.readouterr()
    assert main(["fill", text, "--run", str(folder), "--top", "2"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["[MASK] 1", "[MASK] 2"]


def test_what_cannot_be_filled_is_said(start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert start(*MLM) == 0
    folder = tmp_path / "out"

    def refused(text: str, *options: str) -> str:
        capsys.readouterr()
        assert main(["fill", text, "--run", str(folder), *options]) == 1
        return capsys.readouterr().err

    assert "there is no [MASK] in 'a cat': write it where a word is to be found, by itself" in refused("a cat")
    assert "there is no [MASK] in 'un[MASK]ed'" in refused("un[MASK]ed")
    assert "has more than 75 tokens" in refused("[MASK] " * 76)
    assert "--top must be at least 1, got 0" in refused("[MASK]", "--top", "0")
    whole = tensors_of(folder / HEAD_NAME)
    for head in (
        {**whole, "mask": torch.zeros(3)},
        {**whole, "mask": whole["mask"] * math.nan},
        {"mask": whole["mask"]},
    ):
        write(folder / HEAD_NAME, head)
        assert "is not of " in refused("[MASK]")
    (folder / HEAD_NAME).write_bytes(b"\xff" * 8)
    assert "mlm_head.safetensors" in refused("[MASK]")
    (folder / HEAD_NAME).unlink()
    assert "give the folder of a finished run of train --objective mlm" in refused("[MASK]")


def test_what_is_written_is_as_after_contrastive_training(
    start: Start, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(*MLM, "--ema", "0.5", "--precision", "fp16") == 0
    told = capsys.readouterr().out
    assert "28 captions to train on, 4 held out, 4 steps, on cpu in fp16; images are not looked at" in told
    assert "4 held-out captions after 4 steps: " in told
    assert "of hidden tokens found" in told
    assert start("--steps", "2", "--held-out", "4", out="contrastive") == 0
    about = {}
    for name in ("text_encoder.safetensors", "clip.safetensors"):
        one, other = (tensors_of(tmp_path / folder / name) for folder in ("out", "contrastive"))
        assert {key: tensor.shape for key, tensor in one.items()} == {
            key: tensor.shape for key, tensor in other.items()
        }
        for folder in ("out", "contrastive"):
            with safe_open(tmp_path / folder / name, framework="pt") as file:
                about[folder] = file.metadata()
        assert about["out"].keys() == about["contrastive"].keys()
    assert json.loads(about["out"]["options"])["objective"] == "mlm"
    before, after = load_full_clip(weights), load_full_clip(tmp_path / "out" / "clip.safetensors")
    assert all(map(torch.equal, before.vision.parameters(), after.vision.parameters()))
    assert after.text.text_projection.weight.equal(before.text.text_projection.weight)
    assert after.logit_scale == pytest.approx(before.logit_scale, rel=1e-5)
    first = before.text.encoder.layers[0].self_attn.q_proj.weight
    assert not after.text.encoder.layers[0].self_attn.q_proj.weight.equal(first)
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Masked language modelling" in report
    assert 'src="right.png"' in report
    # contrastive training goes on from there
    whole = str(tmp_path / "out" / "clip.safetensors")
    assert start("--steps", "1", "--held-out", "4", "--weights", whole, out="on") == 0


# ---- data


def test_captions_need_no_images(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    (folder / "a.txt").write_text("one\n\n  two \n", encoding="utf-8")
    (folder / "more" / "b.txt").write_text("three", encoding="utf-8")
    (folder / "c.txt").write_bytes(b"\xff")
    data = read_captions(folder)
    assert [(one.name, one.captions) for one in data.examples] == [
        ("a.txt:1", ("one",)),
        ("a.txt:3", ("two",)),
        ("more/b.txt:1", ("three",)),
    ]
    assert [(one.name, one.reason) for one in data.problems] == [("c.txt", "it cannot be read: it is not UTF-8")]
    assert [one.name for one in read_captions(folder / "a.txt").examples] == ["a.txt:1", "a.txt:3"]
    pairs = read_captions(write_pairs(tmp_path / "pairs", 3))
    assert [(one.name, len(one.captions)) for one in pairs.examples] == [(f"{number:03}.png", 2) for number in range(3)]
    with pytest.raises(ValueError, match="it is not there"):
        read_captions(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no image in it"):
        read_captions(tmp_path / "empty")
