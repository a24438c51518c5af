"""Word maps in Forge's own sampler and U-Net, compared with the softmax of its cross attention written out in float64.

Run by test_webui_python.py in Forge's own Python, with its checkout as working directory:

    python forge_word_maps.py PACKAGE OUTCOME --always-cpu --data-dir DIR

The model is that of forge_places.py. Which rows a word has is written down here by hand.

Writes for each case the largest difference of a share, the largest share, and whether the picture stays to the bit.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from forge_places import EDITED, TEXT, rows_of_texts, run_cases, sampled, script

Words = Mapping[str, tuple[int, ...]]
"""Rows of each word of a text."""
OF_TEXT: Words = {
    **{"a": (1, 5, 9), "red": (2,), "cat": (3,), "and": (4,)},
    **{"blue": (6,), "dog": (7,), "on": (8,), "mat": (10,)},
}
CAT: Words = {"a": (1,), "red": (2,), "cat": (3,)}
DOG: Words = {"a": (1,), "blue": (2,), "dog": (3,)}
BOTH: Words = {"a": (1, 5), "and": (4,), "blue": (6,), "dog": (7,)}
CASES: dict[str, dict[str, Any]] = {
    "a prompt": {"texts": {TEXT: OF_TEXT}},
    "a batch": {"prompts": (TEXT, "a blue dog", "a red cat"), "texts": {TEXT: OF_TEXT, "dog": DOG, "cat": CAT}},
    "prompts of two lengths": {
        "prompts": (TEXT, "a red cat" + ", snow" * 60),
        "texts": {TEXT: OF_TEXT, "long": CAT},
    },
    "AND": {"prompts": ("a red cat AND a blue dog :0.7",), "texts": {"cat": CAT, "dog": DOG}},
    "prompt editing": {
        "prompts": (EDITED,),
        "texts": {"early": {**BOTH, "red": (2,), "cat": (3,)}, "late": {**BOTH, "green": (2,), "hat": (3,)}},
    },
    "a long negative prompt": {"texts": {TEXT: OF_TEXT}, "fields": {"negative": "ugly, " * 60}},
    "the prompt as its own negative": {"texts": {TEXT: OF_TEXT}, "fields": {"negative": TEXT}},
    "guidance 1": {"texts": {TEXT: OF_TEXT}, "fields": {"cfg_scale": 1.0}},
    "Heun": {"texts": {TEXT: OF_TEXT}, "fields": {"sampler_name": "Heun"}},
    "in pairs": {
        "prompts": ("a (red:-0.7) cat and a blue dog on a mat",),
        "texts": {TEXT: OF_TEXT},
        "settings": {"scheme": "negpip"},
        "pair": 2,
    },
}
Sums = dict[tuple[int, int], list[torch.Tensor]]
"""Shares of all keys in each layer and call, at the places of the latent, by picture and text."""


def enlarged(shares: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Shares in a layer of 1 or 2 places a side, between the centres of its cells: ``[keys, height, width]``."""
    side = 1 if shares.shape[-1] == height * width else 2

    def between(size: int) -> torch.Tensor:
        cells = size // side
        at = ((torch.arange(size, dtype=torch.float64) + 0.5) / side - 0.5).clamp(0, cells - 1)
        return (1 - (at[:, None] - torch.arange(cells)).abs()).clamp(min=0)

    return between(height) @ shares.view(-1, height // side, width // side) @ between(width).T


@contextmanager
def recorded(unet: torch.nn.Module, texts: Sequence[torch.Tensor]) -> Iterator[Sums]:
    """Shares of the keys in a U-Net's cross attention while it reads known texts."""
    found: Sums = defaultdict(list)
    longest = max(map(len, texts))
    filled = [torch.cat([rows, rows[-1:].expand(longest - len(rows), -1)]) for rows in texts]
    now: dict[str, Any] = {}

    def look(_: Any, args: Any, inputs: Any) -> None:
        now.update(size=args[0].shape[-2:], kinds=inputs["transformer_options"]["cond_or_uncond"])

    def read(layer: Any, args: Any, inputs: Any) -> None:
        context = inputs["context"]
        q, k = (
            part(tensor).double().unflatten(-1, (layer.heads, -1)).transpose(1, 2)
            for part, tensor in ((layer.to_q, args[0]), (layer.to_k, context))
        )
        shares = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1).mean(1).transpose(1, 2)
        each = len(context) // len(now["kinds"])
        for index, rows in enumerate(context):
            if now["kinds"][index // each] == 0:
                [text] = [n for n, one in enumerate(filled) if torch.equal(rows, one.repeat(len(rows) // longest, 1))]
                found[index % each, text].append(enlarged(shares[index], *now["size"]))

    with ExitStack() as undone:
        undone.enter_context(unet.register_forward_pre_hook(look, with_kwargs=True))
        for name, module in unet.named_modules():
            if name.endswith("attn2"):
                undone.enter_context(module.register_forward_pre_hook(read, with_kwargs=True))
        yield found


def compared(model: Any, case: Mapping[str, Any]) -> tuple[float, float, bool]:
    """Difference of a case from its reference, the largest share, and whether the picture stays."""
    fields, prompts, settings = case.get("fields", {}), case.get("prompts", (TEXT,)), case.get("settings", {})
    watched = sampled(model, *prompts, script=script(**settings, word_maps=True), **fields)
    unet = model.forge_objects.unet.model.diffusion_model
    assert sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in unet.modules()) == 0
    plain = sampled(model, *prompts, script=script(**settings), **fields)
    texts = [rows for _, rows in rows_of_texts(model, case, plain)]
    with recorded(unet, texts) as shares:
        sampled(model, *prompts, script=script(**settings), **fields)
    period = max(map(len, texts)) // case.get("pair", 1)
    difference = largest = 0.0
    for picture, maps in enumerate(watched.weighted_clip_sampling.word_maps.pictures):
        own = {one.word: one.shares for one in maps}
        expected: dict[str, list[torch.Tensor]] = defaultdict(list)
        for number, words in enumerate(case["texts"].values()):
            for word, rows in words.items():
                for keys in shares.get((picture, number), ()):
                    expected[word].append(sum(keys[row::period].sum(0) for row in rows))  # pyright: ignore
        assert expected and expected.keys() <= own.keys(), (list(expected), list(own))
        for word, all_shares in expected.items():
            mean = torch.stack(all_shares).mean(0)
            difference = max(difference, float((own[word] - mean).abs().max()))
            largest = max(largest, float(mean.max()))
    return difference, largest, torch.equal(watched.samples, plain.samples)


if __name__ == "__main__":
    run_cases(lambda _: CASES, compared)
