"""A training run of DALL·E's prior: from captioned pictures and a discrete VAE to a file; stopped and resumed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...dalle.config import PriorConfig
from ...dalle.dvae import DVAE
from ...dalle.full_model import DALLE, save_dalle
from ...dalle.pieces import clip_pieces, learned_pieces
from ...dalle.prior import Prior, initialise
from ..data.captions import CaptionOptions, caption_of
from ..data.datasets import Data, DataProblem, Example
from ..data.image_inputs import NUM_THREADS, in_batches, picture_of, still_readable
from ..loop import Loop
from ..optimizer import AdamW, by_decay
from ..scaling.distributed import over_processes
from .dalle_options import PriorOptions

if TYPE_CHECKING:
    from accelerate import Accelerator

NAME = "dalle.safetensors"
BATCH_OF_PICTURES = 64
"""Pictures encoded at once."""
Picture = Future[Tensor | DataProblem] | Tensor
"""A picture as it comes, or its tokens."""


class Pairs(NamedTuple):
    """Captions and image tokens."""

    text: Tensor
    """``[b, T]``, int64, padded."""
    image: Tensor
    """``[b, n]``, int64."""


class PriorLosses(NamedTuple):
    """Cross-entropies of some pairs, each of shape ``[]``, in nats per token."""

    text: Tensor
    image: Tensor


class TrainedPrior(nn.Module):
    """The prior with its loss, wrapped in one module for distributed training."""

    def __init__(self, prior: Prior, *, counts_padding: bool) -> None:
        """Wrap a prior, which is trained in place."""
        super().__init__()
        self.prior = prior
        self.counts_padding = counts_padding

    def counted(self, text: Tensor) -> Tensor:
        """Text tokens that count in the loss: ``[b, T - 1]``, bool, from the second position to the last."""
        following, num_pieces = text[:, 1:], self.prior.config.text_vocab_size
        return torch.ones_like(following, dtype=torch.bool) if self.counts_padding else following < num_pieces

    def forward(self, pairs: Pairs) -> PriorLosses:
        """Sums over all tokens that count."""
        logits = self.prior(pairs.text, pairs.image)
        of_text = functional.cross_entropy(logits.text.flatten(0, 1), pairs.text[:, 1:].flatten(), reduction="none")
        of_image = functional.cross_entropy(logits.image.flatten(0, 1), pairs.image.flatten(), reduction="sum")
        return PriorLosses((of_text * self.counted(pairs.text).flatten()).sum(), of_image)


class PriorRun(Loop):
    """Training of a prior on pairs."""

    least_held_out = 1
    options: PriorOptions
    trained: TrainedPrior

    def __init__(
        self,
        dvae: DVAE,
        data: Data,
        folder: Path,
        options: PriorOptions,
        accelerator: Accelerator,
        say: Callable[[str], None],
        *,
        is_sharded: bool = False,
    ) -> None:
        """Check the pairs, learn pieces from their captions, encode the pictures, and set up the run."""
        super().__init__(folder, options, accelerator, say, clip=options.clip, is_sharded=is_sharded)
        self.ema_every = options.ema_every
        f = dvae.config.downsampling
        if options.size < f or options.size % f:
            raise ValueError(f"the size of pictures must be a multiple of {f}, got {options.size}")
        self.dvae = dvae.to(accelerator.device)
        data = data.without(self._encode(data.examples))
        captions = (caption for example in data.examples for caption in example.captions)
        self.pieces = learned_pieces(captions, options.pieces) if options.pieces else clip_pieces()
        self.hold_out(data.without(self._too_long(data.examples)), "usable pairs")
        self.divide_batches()
        self._build()

    def _encode(self, examples: Sequence[Example]) -> list[DataProblem]:
        """Open every picture once, and store the tokens of its centre."""
        problems: list[DataProblem] = []
        self._tokens: dict[str, Tensor] = {}
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for batch in in_batches(examples, BATCH_OF_PICTURES, self.say):
                read = [*pool.map(lambda example: picture_of(example, self.options.size, None), batch)]
                problems += [picture for picture in read if isinstance(picture, DataProblem)]
                named = zip((example.name for example in batch), read, strict=True)
                pictures = {name: picture for name, picture in named if isinstance(picture, Tensor)}
                if pictures:
                    tokens = self._tokens_of([*pictures.values()])
                    # separate rows, so that only the tokens stay in memory
                    self._tokens.update(zip(pictures, tokens.cpu().int().unbind(), strict=True))
        digest = blake2b(digest_size=16)
        for tokens in self._tokens.values():
            digest.update(tokens.numpy().tobytes())
        self._digest = digest.hexdigest()
        return problems

    def _tokens_of(self, pictures: Sequence[Tensor]) -> Tensor:
        """Encode pictures, ``[3, size, size]`` each, 8-bit, as ``[b, n]``."""
        pixels = torch.stack(list(pictures)).to(self.accelerator.device)
        return self.dvae.tokens(pixels.to(next(self.dvae.parameters()).dtype) / 255).flatten(1)

    def _too_long(self, examples: Sequence[Example]) -> list[DataProblem]:
        """Pairs with a caption of more pieces than there are positions."""
        length = self.options.text_length
        return [
            DataProblem(example.name, f"its caption has more than {length} pieces")
            for example in examples
            if any(len(self.pieces(caption)) > length for caption in example.captions)
        ]

    def _build(self) -> None:
        """Build model, optimizer and average."""
        options = self.options
        rows = options.size // self.dvae.config.downsampling
        config = PriorConfig(
            text_vocab_size=self.pieces.vocab_size,
            text_length=options.text_length,
            rows=rows,
            columns=rows,
            image_vocab_size=self.dvae.config.vocab_size,
            hidden_dim=options.hidden_dim,
            num_heads=options.num_heads,
            num_layers=options.num_layers,
            mlp_dim=4 * options.hidden_dim,
            activation=options.activation,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            prior = Prior(config)
            initialise(prior)
        prior.is_checkpointed = options.checkpointing
        make = partial(AdamW, betas=options.betas, eps=1e-8)
        groups = by_decay(prior.parameters(), 1.0, options.weight_decay)
        whole = TrainedPrior(prior, counts_padding=options.counts_padding)
        self.prepare(whole, groups, make)

    # ---- training

    def factor(self, step: int) -> float:
        """The learning rate itself."""
        return self.options.rate(step)

    def _load(self, pool: ThreadPoolExecutor, step: int) -> list[tuple[list[int], Picture]]:
        """Pieces of this process's share of a step, with its pictures as they come or their tokens."""
        epoch, examples = self.share_of(step)
        options = self.options
        loaded: list[tuple[list[int], Picture]] = []
        for number, example in examples:
            rng = random.Random(f"{options.seed}/{epoch}/{number}/{example.name}")
            caption = caption_of(example, epoch, options.seed, CaptionOptions())
            pieces = self.pieces(caption, options.bpe_dropout, rng)
            if len(pieces) > options.text_length:  # dropped merges made it too long
                pieces = self.pieces(caption)
            picture = (
                pool.submit(picture_of, example, options.size, rng, "prior")
                if options.is_augmented
                else self._tokens[example.name]
            )
            loaded.append((pieces, picture))
        return loaded

    def _backward(self, loaded: Sequence[tuple[list[int], Picture]]) -> dict[str, float]:
        options, processes = self.options, self.accelerator.num_processes
        text = self.trained.prior.padded([pieces for pieces, _ in loaded]).to(self.accelerator.device)
        count_text = over_processes(self.accelerator, float(self.trained.counted(text).sum()), "sum")
        count_image = self._share * processes * self.trained.prior.config.num_image_tokens
        of_text = of_image = 0.0
        for part in self.micro_batches():
            pairs = Pairs(text[part], self._image_tokens([picture for _, picture in loaded[part]]))
            sums: PriorLosses = self.model(pairs)
            text_loss, image_loss = sums.text / max(1.0, count_text), sums.image / count_image
            loss = options.text_weight * text_loss + (1 - options.text_weight) * image_loss
            self.accelerator.backward(processes * loss)  # so that gradients become the mean over processes
            of_text, of_image = of_text + text_loss.item(), of_image + image_loss.item()
        of_text, of_image = (over_processes(self.accelerator, value, "sum") for value in (of_text, of_image))
        whole = options.text_weight * of_text + (1 - options.text_weight) * of_image
        return {"loss": whole, "text": of_text, "image": of_image}

    def _image_tokens(self, pictures: Sequence[Picture]) -> Tensor:
        """``[b, n]``, int64, on the device."""
        done = (picture if isinstance(picture, Tensor) else picture.result() for picture in pictures)
        parts = [still_readable(picture) for picture in done]
        tokens = self._tokens_of(parts) if self.options.is_augmented else torch.stack(parts)
        return tokens.to(self.accelerator.device).long()

    def after_update(self) -> None:
        """Limit the second moments."""
        limit = self.options.max_second_moment
        if limit is not None:
            for state in self.optimizer.state.values():
                state["exp_avg_sq"].clamp_(max=limit)

    # ---- messages and files

    def _progress(self, entry: Mapping[str, float], speed: float) -> str:
        return (
            f"loss {entry['loss']:.4f} (text {entry['text']:.4f}, image {entry['image']:.4f}), step size "
            f"{entry['rate']:.2e}, {speed:.1f} pairs/s"
        )

    @torch.no_grad()
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Evaluate on held-out pairs; cross-entropies are in nats per token."""
        result: TrainedPrior = self.result.eval()
        of_text = of_image = right = 0.0
        count_text = 0
        for start in range(0, len(self.held), self.options.batch):
            examples = self.held[start : start + self.options.batch]
            text = result.prior.padded([self.pieces(example.captions[0]) for example in examples])
            image = torch.stack([self._tokens[example.name] for example in examples]).long()
            pairs = Pairs(text.to(self.accelerator.device), image.to(self.accelerator.device))
            sums = result(pairs)
            of_text, of_image = of_text + float(sums.text), of_image + float(sums.image)
            count_text += int(result.counted(pairs.text).sum())
            right += float((result.prior(*pairs).image.argmax(-1) == pairs.image).sum())
        result.train()
        count = len(self.held) * result.prior.config.num_image_tokens
        figures = {
            "held-out text": of_text / max(1, count_text),
            "held-out image": of_image / count,
            "right": right / count,
        }
        line = (
            f"{figures['held-out image']:.4f} nats for an image token, {figures['right']:.1%} of them the likeliest; "
            f"{figures['held-out text']:.4f} for a piece"
        )
        return self._measured(figures, line, is_quiet=is_quiet)

    def dalle(self) -> DALLE:
        """The current result, in evaluation mode."""
        return DALLE(self.result.prior, self.dvae, self.pieces).eval()

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues."""
        pieces = blake2b(repr(self.pieces.merges).encode(), digest_size=16).hexdigest()
        return super().about() | {"tokens": self._digest, "pieces": pieces}

    def _write(self, result: TrainedPrior) -> None:
        """Write the whole model: prior, discrete VAE and merges."""
        save_dalle(DALLE(result.prior, self.dvae, self.pieces).eval(), self.folder / NAME, self.metadata("dalle train"))
        result.train()
