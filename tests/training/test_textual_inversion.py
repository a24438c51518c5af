"""A new word: its vectors are all that is trained, and what is written is an embedding as hosts read it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from weighted_clip.encoder.files.textual_inversion import read_embedding_file
from weighted_clip.encoder.models.clip import load_full_clip
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.studio.training.data.captions import NewWord, is_too_long, token_ids
from weighted_clip.studio.training.finetuning.textual_inversion import WordVectors, word_tensors
from weighted_clip.studio.training.optimizer import Rates, adamw, groups_of
from weighted_clip.studio.training.scaling.grad_cache import MicroBatch, Towers, backward

from ..libraries import library
from .models import TEXT, accelerator, divided, towers
from .runs import Start, log_of, write_pairs

CAPTIONS = ["a photo of <mine>", "<mine>, and <mine> again", "a dog", "my<mine>no word", "two cats by <mine>."]


def with_word(count: int) -> tuple[Towers, NewWord]:
    model = towers(text=TEXT)
    model.word = WordVectors(model.text, default_tokenizer(), count, "red cat").double()
    return model, NewWord("<mine>", count)


def test_features_and_training_equal_transformers_with_tokens_added_to_its_table() -> None:
    """Two steps of AdamW on nothing but the new rows, in float64."""
    transformers = library("transformers")
    library("accelerate")
    from .test_grad_cache import reference_of

    model, word = with_word(2)
    reference = reference_of(model)
    assert transformers.__version__
    table = reference.text_model.embeddings.token_embedding
    ids = token_ids(CAPTIONS, default_tokenizer(), TEXT, word)
    assert (ids >= TEXT.vocab_size).sum(1).tolist() == [2, 4, 0, 0, 2]
    red, cat = (token.id for token in default_tokenizer()("red cat"))
    new = torch.nn.Parameter(table.weight.detach()[[red, cat]].clone())
    optimizer = torch.optim.AdamW([new], lr=1e-2, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0)
    loss_of = library("open_clip").ClipLoss()
    images = torch.randn(len(CAPTIONS), TEXT.projection_dim or 0, generator=torch.Generator().manual_seed(0)).double()

    reference.requires_grad_(False)
    old = table.weight
    expected = []
    for _ in range(2):
        rows = torch.nn.functional.embedding(ids, torch.cat([old, new]))
        hook = table.register_forward_hook(lambda *_, rows=rows: rows)
        features = reference.get_text_features(input_ids=ids.where(ids < TEXT.vocab_size, 0))
        features = getattr(features, "pooler_output", features)
        hook.remove()
        unit = torch.nn.functional.normalize
        loss = loss_of(unit(images), unit(features), reference.logit_scale.exp())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append((features.detach(), loss.item()))

    model.vision = None
    ours = accelerator()
    stepped = adamw(groups_of(model, Rates(1e-2)))
    batch = MicroBatch(ids, images)
    for features, loss in expected:
        with torch.no_grad():
            assert (model(batch).texts - features).abs().max() <= 1e-12
        stepped.zero_grad()
        assert backward(ours, model, [batch])[0] == pytest.approx(loss, abs=1e-10)
        at_once = model.word.vectors.grad.clone()
        stepped.zero_grad()
        backward(ours, model, divided(batch, 3))
        in_parts = model.word.vectors.grad
        assert in_parts is not None
        assert (in_parts - at_once).abs().max() <= 1e-10
        stepped.step()
    assert (model.word.vectors - new).abs().max() <= 1e-10
    assert (model.word.vectors - table.weight[[red, cat]]).abs().min() > 1e-3
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["word.vectors"]


@pytest.mark.parametrize(("count", "chosen"), [(1, [0]), (2, [0, 1]), (5, [0, 0, 0, 1, 1])])
def test_vectors_begin_with_the_tokens_of_a_text_in_turn(count: int, chosen: list[int]) -> None:
    model, _ = with_word(count)
    ids = [token.id for token in default_tokenizer()("red cat")]
    table = model.text.embeddings.token_embedding.weight
    assert torch.equal(model.word.vectors, table[[ids[number] for number in chosen]])


def test_a_caption_that_its_vectors_make_too_long_is_known() -> None:
    caption = "cat " * 70 + "<mine>"
    five, six = (NewWord("<mine>", count) for count in (5, 6))
    assert [is_too_long(caption, default_tokenizer(), TEXT, word) for word in (five, six)] == [False, True]
    assert token_ids([caption], default_tokenizer(), TEXT, six).shape == (1, 77)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Half of the pictures show it."""
    folder = write_pairs(tmp_path / "data", 16)
    for path in sorted(folder.glob("*.txt"))[::2]:
        path.write_text(path.read_text(encoding="utf-8").replace(" ", " <mine> ", 1).split("\n")[0], encoding="utf-8")
    return folder


def test_a_run_writes_the_embedding_alone_and_it_is_what_was_trained(
    start: Start, weights: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--word", "<mine>", "--word-vectors", "2", "--word-from", "cat", "--steps", "12", "--rate", "0.05"]
    assert start(*options, "--held-out", "4", "--ema", "0.5", data=data) == 0
    assert "captions have the word '<mine>'" in (told := capsys.readouterr().out)
    assert "mine.safetensors, an embedding, for the host's folder of embeddings" in told
    assert [path.name for path in (tmp_path / "out").glob("*.safetensors")] == ["mine.safetensors"]
    (vectors,) = load_file(tmp_path / "out" / "mine.safetensors").values()
    assert load_file(tmp_path / "out" / "mine.safetensors").keys() == {"emb_params"}
    assert vectors.shape == (2, TEXT.hidden_dim)
    assert torch.equal(read_embedding_file(tmp_path / "out" / "mine.safetensors")[""], vectors)
    (cat,) = (token.id for token in default_tokenizer()("cat"))
    first = load_full_clip(weights).text.embeddings.token_embedding.weight[cat]
    assert ((vectors - first).abs().amax(1) > 0.05).all()
    losses = [entry["loss"] for entry in log_of(tmp_path / "out") if "loss" in entry]
    assert min(losses[-3:]) < losses[0]
    assert start(*options, "--held-out", "4", "--ema", "0.5", "--resume", data=data) == 0


def test_the_key_says_for_which_encoder_where_hosts_need_it() -> None:
    widths = {width: list(word_tensors(torch.zeros(1, width))) for width in (768, 1024, 1280)}
    assert widths == {768: ["emb_params"], 1024: ["emb_params"], 1280: ["clip_g"]}
