"""The text tower for many versions of a prompt: every common beginning is computed once, within and between calls.

In a causal encoder the states at a position depend only on this and earlier positions. So chunks with the same
beginning, i.e. the same tokens and mask, have the same states up to the first difference: encodings of a prompt that
hide different words, texts of a schedule, cells of a grid, a prompt as it is typed. Every state is computed once: all
distinct positions go through each layer as one matrix, and only attention is done chunk by chunk.

The result differs from full passes by rounding, as matrices have other shapes, and on a CPU other kernels.

Source: docs/performance.md, "Shared prefixes"; for the layers of Stable Diffusion 2.x
``comfy/text_encoders/sd2_clip.py`` of ComfyUI 0.29, as Forge counts from diffusers' shortened encoder.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from ..cache import MEBIBYTE, Attempt, ChunkKey, Memory, chunk_keys, default_bytes, remembering, state_of
from ..encoding import Encoding
from ..masks import causal_mask
from .config import FAMILIES, OPENCLIP_H, ModelFamily, TextConfig
from .fast_layers import PACKS, arithmetic_for
from .graphs import Graphs, are_wanted
from .kernels import CHOICE, Kernel
from .layers import Arithmetic, EncoderBlock, Rotation
from .linear import layer_norm, linear, rounded_up, widened, without_autocast
from .text_model import TextEncoder, TextModel, first_eos
from .whole import encode_whole

BATCH_BYTES = 512 * 2**20
"""Maximum size of the states of one batch; larger calls are split."""
MAX_TRUNKS = 16
"""Chunks whose states are searched for a common beginning, and maximum number stored per call."""
LEAST_SHARED = 8
"""Minimum number of common positions worth fetching cached states for."""


_LIBRARIES = {"onednn": "oneDNN", "mkl": "MKL"}


class _Scope(NamedTuple):
    """Dependencies of an encoder's results besides the chunks."""

    state: Hashable
    """State of the weights."""
    kernel: Kernel
    clip_skip: int
    final_norm: bool
    projected: bool


class PrefixTextEncoder(TextEncoder):
    """A `TextEncoder` that computes no state twice, within a call or, as far as cached, between calls."""

    def __init__(
        self,
        model: TextModel,
        *,
        clip_skip: int = 1,
        final_norm: bool = True,
        projected: bool = False,
        max_bytes: int | None = None,
        is_packed: bool = True,
    ) -> None:
        """Choose the layer and the cache size."""
        super().__init__(model, clip_skip=clip_skip, final_norm=final_norm, projected=projected)
        max_bytes = default_bytes() if max_bytes is None else max_bytes
        self.is_packed = is_packed
        self._last_kernel: Kernel | None = None
        self._graphs = Graphs()
        self.encodings: Memory[tuple[Hashable, ChunkKey]] = Memory(max_bytes // 2)
        self.trunks: Memory[tuple[Hashable, ChunkKey]] = Memory(max_bytes // 2)

    @torch.no_grad()
    def __call__(self, ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        """Encode chunks as `TextEncoder` does, up to rounding."""
        weight = self.model.final_layer_norm.weight
        graphs = self._graphs if are_wanted() and weight.device.type == "cuda" else None
        if is_wholly_encoded(weight.device.type):
            with without_autocast(weight.device):
                parts = [
                    encode_whole(
                        self,
                        ids[part],
                        mask if mask is None or len(mask) == 1 else mask[part],
                        is_causal=is_causal,
                        graphs=graphs,
                    )
                    for part in self._batches(len(ids))
                ]
            return Encoding(*map(torch.cat, zip(*parts, strict=True))) if len(parts) > 1 else parts[0]
        encoding = remembering(self._encode, self.encodings, self._scope)(ids, mask, is_causal=is_causal)
        CHOICE.answered()
        return encoding

    def how_computed(self) -> str:
        """Kernel of the last matrix products and size of the copy of the weights, and CUDA graphs if wanted, in words.

        Empty where there is no choice: before the first prompt, on other devices and in other types than float32.
        """
        device = self.model.final_layer_norm.weight.device.type
        return "; ".join(filter(None, [self._kernel_in_words(), self._graphs.how_computed(device) * are_wanted()]))

    def _kernel_in_words(self) -> str:
        weight = self.model.final_layer_norm.weight
        if self._last_kernel is None or weight.device.type != "cpu" or weight.dtype != torch.float32:
            return ""
        if self._last_kernel == "plain":
            return "matrix products by PyTorch's own kernel"
        size = PACKS.num_bytes(self.model)
        copy = f"on a copy of the weights, {size / MEBIBYTE:.0f} MiB" if size else "without a copy of the weights"
        return f"matrix products by {_LIBRARIES[self._last_kernel]} {copy}"

    def _encode(self, ids: Sequence[Sequence[Any]], mask: Tensor | None, is_causal: bool, attempt: Attempt) -> Encoding:
        """Encode distinct chunks; ``mask`` is ``[chunks, s, s]`` or None; states go into the attempt."""
        run = partial(self._run, attempt=attempt)
        with without_autocast(self.model.final_layer_norm.weight.device):  # cached values must not depend on it
            parts = [
                run(ids[part], None if mask is None else mask[part], is_causal=is_causal)
                for part in self._batches(len(ids))
            ]
        return Encoding(*map(torch.cat, zip(*parts, strict=True)))

    def _batches(self, number: int) -> list[slice]:
        """Parts of some chunks that are encoded at once."""
        size = max(1, BATCH_BYTES // bytes_per_chunk(self.config))
        return [slice(start, start + size) for start in range(0, number, size)]

    def _scope(self) -> _Scope:
        """Dependencies of this encoder's results besides the chunks. They may be changed from outside."""
        return _Scope(state_of(self.model), CHOICE.now(), self.clip_skip, self.final_norm, self.projected)

    def _run(self, ids: Sequence[Sequence[Any]], mask: Tensor | None, *, is_causal: bool, attempt: Attempt) -> Encoding:
        """Encode chunks at once; see `_encode`."""
        model, scope = self.model, cast("_Scope", attempt.scope)
        self._last_kernel = scope.kernel
        device = model.final_layer_norm.weight.device
        plain, vectors = self.split(ids)
        tokens = torch.tensor(plain, dtype=torch.long, device=device)
        keys = chunk_keys(ids, mask, is_causal=is_causal)
        trunks = self._trunks(attempt.scope, keys)
        shared = share(keys, list(trunks))
        known_states = [
            tuple(states[:count] for states in entry)
            for entry, count in zip(trunks.values(), shared.num_known, strict=True)
            if count
        ]
        nodes = torch.tensor(shared.nodes, device=device)  # [b, s]
        fresh = shared.fresh
        if scope.kernel != "mkl" and len(fresh) < tokens.numel():  # whole chunks come in few numbers anyway
            fresh = fresh + fresh[-1:] * (rounded_up(len(fresh)) - len(fresh))
        rows, places = torch.tensor(fresh, device=device).unbind(1)  # [n] each
        mix = _Mixer(shared, nodes, rows, places, mask, is_causal=is_causal)

        hidden = widened(model.embeddings(tokens, vectors)[rows, places])  # [n, d]
        rotate = model.rotation(places)
        blocks = cast("Sequence[EncoderBlock]", model.encoder.layers)
        arithmetic = arithmetic_for(
            model, blocks, scope.kernel, scope.state, partial(state_of, model), is_packed=self.is_packed
        )
        chosen = hidden
        saved: list[list[Tensor]] = [[] for _ in range(self._num_saved(keys))]
        for index, block in enumerate(blocks):
            past = [entry[2 * index :][:2] for entry in known_states]
            hidden, (k, v) = _run_block(block, hidden, past, mix, rotate, arithmetic)
            for row, entry in enumerate(saved):
                entry += [mix.chunk(k, row), mix.chunk(v, row)]  # [s, d] each
            if index == len(blocks) - self.clip_skip:
                chosen = hidden
        last = torch.cat([*(entry[-2] for entry in known_states), hidden])
        chosen = torch.cat([*(entry[-1] for entry in known_states), chosen])
        for row, entry in reversed(list(enumerate(saved))):  # the first last, so that it is kept longest
            attempt.put(self.trunks, keys[row], (*entry, mix.chunk(last, row), mix.chunk(chosen, row)))

        ends = nodes[torch.arange(len(ids), device=device), first_eos(tokens, model.config.eos_id)]
        pooled = layer_norm(last[ends], model.final_layer_norm)
        if self.projected and model.text_projection is not None:
            pooled = linear(pooled, model.text_projection)
        result = states_at(chosen, nodes)  # [b, s, d]
        if self.final_norm:
            result = layer_norm(result, model.final_layer_norm)
        return Encoding(widened(result), widened(pooled))

    def _trunks(self, scope: Hashable, keys: Sequence[ChunkKey]) -> dict[ChunkKey, tuple[Tensor, ...]]:
        """Cached chunks that share a beginning with some of these, with their keys, values, last and chosen states."""
        length = len(keys[0].positions)
        remembered = [
            key
            for its_scope, key in self.trunks.keys()[-MAX_TRUNKS:]
            if its_scope == scope and len(key.positions) == length
        ]
        if not remembered or not keys[0].is_causal:
            return {}
        nearest = ((key, max(remembered, key=partial(num_shared, key))) for key in keys)
        chosen = dict.fromkeys(trunk for key, trunk in nearest if num_shared(key, trunk) >= LEAST_SHARED)
        entries = {trunk: self.trunks.get((scope, trunk)) for trunk in chosen}
        return {trunk: entry for trunk, entry in entries.items() if entry is not None}

    def _num_saved(self, keys: Sequence[ChunkKey]) -> int:
        """Number of chunks of a call whose states are stored."""
        if not keys[0].is_causal:
            return 0
        config = self.config
        element = self.model.final_layer_norm.weight.element_size()
        size = config.context_length * config.hidden_dim * (2 * config.num_layers * element + 2 * max(element, 4))
        return min(len(keys), MAX_TRUNKS, self.trunks.max_bytes // size)


def is_wholly_encoded(device: str) -> bool:
    """Whether chunks are encoded whole: on a GPU calling kernels takes longer than what sharing their states saves."""
    return device != "cpu"


def bytes_per_chunk(config: TextConfig) -> int:
    """Memory for a chunk's states during encoding, in float32 and generously estimated."""
    return config.context_length * 4 * (16 * config.hidden_dim + 3 * config.mlp_dim)


class SharedStates(NamedTuple):
    """States shared by some chunks. Known states are numbered first, trunk by trunk, up to the last one used."""

    nodes: list[list[int]]
    """Number of the state at each position of each chunk."""
    fresh: list[tuple[int, int]]
    """Chunk and position of each new state."""
    num_known: list[int]
    """Number of known states of each trunk."""


def share(keys: Sequence[ChunkKey], trunks: Sequence[ChunkKey] = ()) -> SharedStates:
    """Find the states shared by chunks.

    Args:
        keys: Keys of distinct chunks, all causal or none.
        trunks: Keys of chunks with known states; their last ones are not used, so that every chunk has a new state.

    Returns:
        The number of the state at each position.

    >>> one, two = ChunkKey((1, 5, 6), True), ChunkKey((1, 5, 7), True)
    >>> share([one, two])
    SharedStates(nodes=[[0, 1, 2], [0, 1, 3]], fresh=[(0, 0), (0, 1), (0, 2), (1, 2)], num_known=[])
    >>> share([two], trunks=[one])
    SharedStates(nodes=[[0, 1, 2]], fresh=[(0, 2)], num_known=[2])
    """
    length = len(keys[0].positions)
    numbers: dict[tuple[int, Hashable], int] = {}
    """State number by the previous state and the entry at the position."""
    for index, trunk in enumerate(trunks):
        state = -1
        for place, key in enumerate(trunk.positions[:-1]):
            state = numbers.setdefault((state, key), index * length + place)
    first = len(trunks) * length
    nodes: list[list[int]] = []
    fresh: list[tuple[int, int]] = []
    num_known = [0] * len(trunks)
    for row, chunk in enumerate(keys):
        state = -1 if chunk.is_causal else -2 - row  # states that depend on all positions are never shared
        nodes.append([])
        for place, key in enumerate(chunk.positions):
            new = first + len(fresh)
            state = numbers.setdefault((state, key), new)
            if state == new:
                fresh.append((row, place))
            elif state < first:
                num_known[state // length] = max(num_known[state // length], place + 1)
            nodes[-1].append(state)
    if trunks:
        starts = list(accumulate(num_known, initial=0))
        moved = [starts[state // length] + state % length for state in range(first)]
        nodes = [[moved[state] if state < first else state - first + starts[-1] for state in row] for row in nodes]
    return SharedStates(nodes, fresh, num_known)


def num_shared(first: ChunkKey, second: ChunkKey) -> int:
    """Number of positions at the beginning of two causal chunks with the same states."""
    pairs = enumerate(zip(first.positions, second.positions, strict=True))
    return next((place for place, (key, its_key) in pairs if key != its_key), len(first.positions))


def states_at(states: Tensor, nodes: Tensor) -> Tensor:
    """States ``[n, d]`` by their numbers ``[b, s]``: ``[b, s, d]``, in a third of the time of indexing."""
    return states.index_select(0, nodes.flatten()).unflatten(0, nodes.shape)


class _Mixer:
    """Attention of new states: each attends to its whole chunk, new or known."""

    def __init__(
        self, shared: SharedStates, nodes: Tensor, rows: Tensor, places: Tensor, mask: Tensor | None, *, is_causal: bool
    ) -> None:
        self.nodes = nodes  # [b, s]
        self.is_whole = len(shared.fresh) == nodes.numel()
        is_counted_up = shared.nodes == [list(range(nodes.shape[1]))]
        self.is_single = is_counted_up and len(rows) == len(shared.fresh)  # one chunk, and no rows that round up
        self.is_in_order = self.is_whole or self.is_single
        self.is_causal = is_causal and mask is None and self.is_whole
        mask = None if mask is None else mask.to(nodes.device)
        if is_causal and not self.is_causal:
            causal = causal_mask(nodes.shape[1]).to(nodes.device)
            mask = causal if mask is None else mask & causal
        num_known = sum(shared.num_known)
        # where the chunks have new states
        starts = [place for _, place in sorted(dict(reversed(shared.fresh)).items())]
        self.parts: list[tuple[Tensor, Tensor, Tensor | None]] = []
        """Nodes of some chunks ``[b, s]``, their queries ``[b, s - start]``, and mask ``[b or 1, 1, s - start, s]``."""
        offsets: list[int] = []
        # the first chunk begins earlier than those that share its beginning
        for chunks in (slice(1), slice(1, None)) if max(starts) > starts[0] else (slice(None),):
            start = min(starts[chunks])
            part, length = nodes[chunks], nodes.shape[1] - start
            # known states have no queries: any will do, as the results are discarded
            queries = (part[:, start:] - num_known).clamp(min=0)
            its_mask = mask if mask is None or len(mask) == 1 else mask[chunks]
            self.parts.append((part, queries, None if its_mask is None else its_mask[:, start:].unsqueeze(1)))
            first = offsets[-1] + nodes.shape[1] if offsets else 0
            offsets += [first + row * length - start for row in range(len(part))]
        self.found = torch.tensor(offsets, device=nodes.device)[rows] + places  # [n]

    def chunk(self, states: Tensor, row: int) -> Tensor:
        """States of a chunk ``[s, d]``, in memory of their own."""
        if not self.is_single:
            return states.index_select(0, self.nodes[row])
        is_part = states.untyped_storage().nbytes() > states.nbytes
        return states.clone(memory_format=torch.contiguous_format) if is_part else states

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
        """Map queries of new states ``[n, d]``, keys and values of all ``[known + n, d]``, to ``[n, d]``."""
        mixed: list[Tensor] = []
        for nodes, queries, mask in self.parts:
            if self.is_in_order:
                chunks = [states.unflatten(0, (len(nodes), -1)) for states in (q, k, v)]
            else:
                chunks = [states_at(q, queries), states_at(k, nodes), states_at(v, nodes)]
            heads = (states.unflatten(-1, (num_heads, -1)).transpose(1, 2) for states in chunks)  # [b, h, s, e]
            values = functional.scaled_dot_product_attention(*heads, attn_mask=mask, is_causal=self.is_causal)
            mixed.append(values.transpose(1, 2).flatten(2).flatten(0, 1))  # [b * (s - start), d]
        return mixed[0] if self.is_in_order else torch.cat(mixed).index_select(0, self.found)


def _run_block(
    block: EncoderBlock,
    hidden: Tensor,
    past: Sequence[tuple[Tensor, ...]],
    mix: _Mixer,
    rotate: Rotation | None,
    arithmetic: Arithmetic,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`EncoderBlock.forward` for new states ``[n, d]``; also returns keys and values of all, known ones first.

    Keys are stored as used in attention, i.e. rotated for rotary positions.
    """
    num_heads = block.self_attn.num_heads
    attended: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if rotate is not None:
            heads = (states.unflatten(-1, (num_heads, -1)).transpose(0, 1) for states in (q, k))  # [h, n, e]
            q, k = (rotate(states).transpose(0, 1).flatten(1) for states in heads)
        if past:
            k, v = (torch.cat([*(entry[index] for entry in past), new]) for index, new in enumerate((k, v)))
        attended.extend((k, v))
        return mix(q, k, v, num_heads)

    hidden = block(hidden, None, is_causal=False, mix=attend, arithmetic=arithmetic)
    k, v = attended
    return hidden, (k, v)


def encoders_for(
    models: Mapping[str, TextModel], clip_skip: int = 1, *, max_bytes: int | None = None, is_packed: bool = True
) -> tuple[ModelFamily, dict[str, TextEncoder]]:
    """The family with these towers, and each tower with the layer that the family conditions on.

    Args:
        models: Towers by ComfyUI's names, from `load_text_models`.
        clip_skip: 1 = last layer, 2 = penultimate, ... as in the WebUI; at least the family's own is used.
        max_bytes: Total cache size of the encoders, shared in proportion to their states; by default `default_bytes`.
        is_packed: As in `PrefixTextEncoder`.

    Returns:
        The family, and its encoders in the order in which their rows are joined. Their results equal those of full
        passes up to rounding.

    Raises:
        ValueError: If no family has just these towers, or ``clip_skip`` is out of range.
    """
    family = next((family for family in FAMILIES if set(family.towers) == set(models)), None)
    if family is None:
        allowed = ", ".join(f"{' + '.join(family.towers)} ({family.name})" for family in FAMILIES)
        raise ValueError(f"no model family has the text encoders {' + '.join(models) or 'none'}; allowed are {allowed}")
    if clip_skip < 1:
        raise ValueError(f"clip_skip {clip_skip} is out of range: 1 is the last layer")
    clip_skip = max(clip_skip, family.min_clip_skip)
    max_bytes = default_bytes() if max_bytes is None else max_bytes
    sizes = {name: models[name].config.hidden_dim * models[name].config.num_layers for name in family.towers}
    encoders: dict[str, TextEncoder] = {
        name: PrefixTextEncoder(
            models[name],
            clip_skip=clip_skip - num_cut_layers(name, models[name].config),
            final_norm=family.final_norm,
            projected=family.projected and models[name].text_projection is not None,
            max_bytes=max_bytes * sizes[name] // sum(sizes.values()),
            is_packed=is_packed,
        )
        for name in family.towers
    }
    return family, encoders


def num_cut_layers(name: str, config: TextConfig) -> int:
    """1 for ``clip_h`` as diffusers keeps it for Stable Diffusion 2.x: without the last layer, which is never used."""
    return int(name == "clip_h" and config.num_layers == OPENCLIP_H.num_layers - 1)
