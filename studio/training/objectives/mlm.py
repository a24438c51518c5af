"""A masked language modelling run: a warm-up of the text tower on captions alone, without causality.

CLIP's vocabulary has no mask, so a learned vector is used, and a separate head predicts tokens from the final hidden
states. Both are written into a file of their own, as the tower, which reads causally as before, needs neither.

Source: J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding", 2019.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ....encoder.files.checkpoint import load_text_models
from ....encoder.files.tensor_file import open_tensor_file
from ....encoder.models.clip import FullClip
from ....encoder.models.config import TextConfig
from ....encoder.models.linear import widened
from ....encoder.models.text_model import TextModel, first_eos
from ....encoder.quoting import quote
from ....encoder.similarity import MIN_TEMPERATURE, ContrastiveLoss
from ....encoder.tokenizer import END_OF_WORD, bytes_of, default_tokenizer
from ...output.export import write_tensors
from ..checkpoint import check_like, check_weights
from ..data.captions import NewWord, caption_of, is_too_long, notes_on_length, token_ids
from ..data.datasets import Data
from ..finetuning.new_towers import about_clip
from ..loop import Loop
from ..optimizer import BETAS, AdamW, by_decay
from ..options import TrainOptions
from ..results import TEXT_NAME, Results
from ..scaling.distributed import over_processes
from ..scaling.grad_cache import Towers

if TYPE_CHECKING:
    from accelerate import Accelerator


HEAD_NAME = "mlm_head.safetensors"
MASK = "[MASK]"


class MaskedOutput(NamedTuple):
    """Predictions for masked tokens."""

    loss: Tensor
    """Shape ``[]``: sum of their cross-entropies, in nats."""
    right: Tensor
    """Shape ``[]``: number of tokens predicted correctly."""


class TrainedMLM(nn.Module):
    """A text tower with a mask and a head, wrapped in one module for distributed training."""

    def __init__(self, text: TextModel) -> None:
        """Add them to a tower, which is trained in place without its projection."""
        super().__init__()
        config = text.config
        self.text = text.requires_grad_(True)
        if text.text_projection is not None:
            text.text_projection.requires_grad_(False)
        self.mask = nn.Parameter(text.embeddings.token_embedding.weight.detach().mean(0))
        """``[d]``: replaces the embedding of a masked token."""
        self.head = nn.Linear(config.hidden_dim, config.vocab_size)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, captions: Masked) -> MaskedOutput:
        """Predict the masked tokens; every position sees its whole caption."""
        vectors = {(row, place): self.mask for row, place in captions.is_mask.nonzero().tolist()}
        hidden = self.text(captions.ids, captions.is_caption, vectors=vectors, is_causal=False).hidden
        is_label = captions.labels != IGNORED
        logits = widened(self.head(hidden[is_label]))  # [masked tokens, vocabulary]
        labels = captions.labels[is_label]
        # so that a batch without a mask has a gradient, too, of 0
        loss = functional.cross_entropy(logits, labels, reduction="sum") + 0 * self.mask.sum()
        return MaskedOutput(loss, (logits.argmax(-1) == labels).sum())


class MLMRun(Loop):
    """Warm-up of a text tower on captions."""

    what = counted_as = "captions"
    may_differ = ("write_for", "new")
    options: TrainOptions
    trained: TrainedMLM

    def __init__(
        self,
        clip: FullClip,
        weights: Path,
        data: Data,
        folder: Path,
        options: TrainOptions,
        accelerator: Accelerator,
        say: Callable[[str], None],
    ) -> None:
        """Set up the run."""
        super().__init__(folder, options, accelerator, say, clip=options.clip)
        self.clip, self.weights = clip, weights
        self.hold_out(data, "captions")
        for line in notes_on_length(data.examples, clip.text.config):
            say(line)
        self.divide_batches()
        self._build()

    def _build(self) -> None:
        """Build model, optimizer and average."""
        options = self.options
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            whole = TrainedMLM(self.clip.text)
        whole.text.encoder.is_checkpointed = options.checkpointing
        trained = (parameter for parameter in whole.parameters() if parameter.requires_grad)
        groups = by_decay(trained, options.rates.rate, options.rates.weight_decay)
        self.prepare(whole, groups, partial(AdamW, betas=BETAS, eps=1e-8))

    # ---- training

    def _load(self, pool: ThreadPoolExecutor, step: int) -> Masked:
        """This process's share of a step; masks depend on seed, step and caption alone."""
        epoch, examples = self.share_of(step)
        options = self.options
        captions = [caption_of(example, epoch, options.seed, options.captions) for _, example in examples]
        rngs = [random.Random(f"{options.seed}/{step}/{number}/{example.name}/mask") for number, example in examples]
        return self._masked(captions, rngs)

    def _masked(self, captions: Sequence[str], rngs: Sequence[random.Random]) -> Masked:
        config = self.clip.text.config
        return masked(token_ids(captions, default_tokenizer(), config), config, rngs)

    def _backward(self, loaded: Masked) -> dict[str, float]:
        accelerator = self.accelerator
        count = max(1.0, over_processes(accelerator, float((loaded.labels != IGNORED).sum()), "sum"))
        loss = right = 0.0
        for part in self.micro_batches():
            output: MaskedOutput = self.model(Masked(*(tensor[part].to(accelerator.device) for tensor in loaded)))
            accelerator.backward(accelerator.num_processes * output.loss / count)  # mean over processes
            loss, right = loss + output.loss.item(), right + output.right.item()
        loss, right = (over_processes(accelerator, number, "sum") / count for number in (loss, right))
        return {"loss": loss, "right": right}

    # ---- messages and files

    def _progress(self, entry: Mapping[str, float], speed: float) -> str:
        return f"loss {entry['loss']:.4f}, {entry['right']:.1%} of hidden tokens found, {speed:.1f} captions/s"

    @torch.no_grad()
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Evaluate on held-out captions, masking the same tokens each time; losses in nats per masked token."""
        if not self.held:
            return {}
        loss = right = count = 0.0
        for start in range(0, len(self.held), self.options.batch):
            examples = self.held[start : start + self.options.batch]
            rngs = [random.Random(f"{self.options.seed}/{example.name}/held out") for example in examples]
            part = self._masked([example.captions[0] for example in examples], rngs)
            output: MaskedOutput = self.result(Masked(*(tensor.to(self.accelerator.device) for tensor in part)))
            loss, right = loss + output.loss.item(), right + output.right.item()
            count += float((part.labels != IGNORED).sum())
        shares = {"held-out loss": loss / max(1.0, count), "held-out right": right / max(1.0, count)}
        line = f"{shares['held-out right']:.1%} of hidden tokens found, {shares['held-out loss']:.4f} nats for one"
        return self._measured(shares, line, is_quiet=is_quiet)

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues."""
        return super().about() | about_clip(self.clip, self.options) | {"options.steps": json.dumps(self.num_steps)}

    def _write(self, result: TrainedMLM) -> None:
        """Write the text tower as contrastive training does, and the whole CLIP with its previous scale."""
        towers = Towers(result.text, self.clip.vision, ContrastiveLoss(max(MIN_TEMPERATURE, 1 / self.clip.logit_scale)))
        Results(self.folder, self.clip, self.weights, self.options, "").write(towers, self.step)
        head = head_state(result)
        check_weights(head)
        metadata = {"trained_by": "weighted-clip train", "steps": str(self.step)}
        write_tensors(self.folder / HEAD_NAME, head, metadata)


# ---- filling masks


def head_state(model: TrainedMLM) -> dict[str, Tensor]:
    """Tensors of the mask, ``[d]``, and the head, ``[V, d]`` and ``[V]``, on the CPU."""
    state = model.state_dict().items()
    return {name: tensor.detach().cpu().contiguous() for name, tensor in state if not name.startswith("text.")}


def load_mlm(folder: Path) -> TrainedMLM:
    """The model of a finished run's folder, in evaluation mode.

    Raises:
        ValueError: If a file is missing, damaged, or not of the other.
        OSError: If a file cannot be read.
    """
    path = folder / HEAD_NAME
    if not path.is_file():
        raise ValueError(f"{path} is not there: give the folder of a finished run of train --objective mlm")
    models, _ = load_text_models(folder / TEXT_NAME)
    model = TrainedMLM(next(iter(models.values())))
    with open_tensor_file(path) as file:
        tensors = {name: file.handle.get_tensor(name) for name in file.shapes}
    try:
        check_like(tensors, head_state(model), "it")
    except ValueError as error:
        raise ValueError(f"{path} is not of {folder / TEXT_NAME}: {error}") from error
    model.load_state_dict({**model.state_dict(), **tensors})
    return model.eval().requires_grad_(False)


def fill(model: TrainedMLM, text: str, top: int) -> list[list[tuple[str, float]]]:
    """The likeliest tokens at each `MASK` of a text, with probabilities; a hyphen follows what does not end a word.

    Raises:
        ValueError: If there is no mask, or the text has more tokens than the tower has positions.
    """
    config, word = model.text.config, NewWord(MASK, 1)
    if len(word.parts_around(text)) == 1:
        raise ValueError(f"there is no {MASK} in {quote(text)}: write it where a word is to be found, by itself")
    if is_too_long(text, default_tokenizer(), config, word):
        raise ValueError(f"{quote(text)} has more than {config.context_length - 2} tokens")
    ids = token_ids([text], default_tokenizer(), config, word)
    is_mask = ids == config.vocab_size
    ids = ids.masked_fill(is_mask, config.eos_id)
    vectors = {(0, place): model.mask for place in is_mask[0].nonzero().flatten().tolist()}
    seen = torch.ones_like(ids, dtype=torch.bool)
    hidden = model.text(ids, seen, vectors=vectors, is_causal=False).hidden[is_mask]
    chances = widened(model.head(hidden)).softmax(-1)[:, : min(config.bos_id, config.eos_id)]
    values, tokens = chances.topk(min(top, chances.shape[1]))
    rows = zip(tokens.tolist(), values.tolist(), strict=True)
    return [[(_shown(token_id), value) for token_id, value in zip(*row, strict=True)] for row in rows]


def _shown(token_id: int) -> str:
    """A token as text."""
    symbol = default_tokenizer().symbol(token_id)
    return bytes_of(symbol).decode(errors="replace") + ("" if symbol.endswith(END_OF_WORD) else "-")


CHOSEN, MASKED, REPLACED = 0.15, 0.8, 0.1
"""Shares: chosen of all tokens, masked and replaced of the chosen ones."""
IGNORED = -100
"""Label of tokens not to be predicted, as in PyTorch's cross-entropy."""


class Masked(NamedTuple):
    """Captions with masked tokens; each tensor is ``[captions, s]``."""

    ids: Tensor
    """int64; ids at masks are ignored."""
    is_mask: Tensor
    """bool: True at masks."""
    labels: Tensor
    """int64: the token to be predicted, or `IGNORED`."""
    is_caption: Tensor
    """bool: True for BOS, tokens and EOS, False for padding."""


def masked(ids: Tensor, config: TextConfig, rngs: Sequence[random.Random]) -> Masked:
    """Mask tokens ``[captions, s]``; the result depends only on the generators, one per caption, not on the padding."""
    ids, num_words = ids.clone(), min(config.bos_id, config.eos_id)
    is_mask, labels = torch.zeros_like(ids, dtype=torch.bool), torch.full_like(ids, IGNORED)
    ends = first_eos(ids, config.eos_id)
    for row, (end, rng) in enumerate(zip(ends.tolist(), rngs, strict=True)):
        for place in range(1, end):
            if rng.random() >= CHOSEN:
                continue
            labels[row, place] = ids[row, place]
            kind = rng.random()
            if kind < MASKED:
                is_mask[row, place] = True
            elif kind < MASKED + REPLACED:
                ids[row, place] = rng.randrange(num_words)
    return Masked(ids, is_mask, labels, torch.arange(ids.shape[1]) <= ends.unsqueeze(1))
