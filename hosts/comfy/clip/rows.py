"""Tokens of the rows of a CONDITIONING, from the tokens that the host was given.

Rows are counted from the end, as the host leaves out those of its templates at the front. A picture takes many rows,
which the host's text encoder tells.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from torch import Tensor

from ....weighting.phrases.words import Stretch, Words, words_in
from ....weighting.reading.characters import Character
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.text.chunks import Token
from ..attention.text_rows import Part, as_read
from ..families.families import Family
from ..families.families import Part as FamilyPart
from ..models.token_offsets import as_id
from ..types import Clip
from .host_texts import HostText
from .marks import Entry, HostTokens, mark_of, pairs_in, token_of_entry

Row = Mapping[str, Entry]
"""Token of a row in the host's form, by text encoder; empty for a row of no word."""
EDITED = "another node has put its tokens together"
"""Reason why words of a prompt have no rows of their own."""
PADDING = 0
"""Id of padding in T5 and Gemma, of which some models fill up the rows behind a text."""
NOBODY = "Nobody can tell which rows are a word's: "


def parts_of_rows(
    clip: Clip, family: Family | None, tokens: HostTokens, num_rows: int, sizes: Mapping[str, Sequence[int]]
) -> list[list[Row]]:
    """Rows of a conditioning, part behind part.

    Args:
        clip: The CLIP that encoded.
        family: Its family; None if it has CLIP text towers alone, whose rows stand side by side.
        tokens: Its tokens.
        num_rows: Number of rows of text that a model reads.
        sizes: Numbers of rows of the pictures among the tokens of each encoder, in order.

    Raises:
        ValueError: If the numbers do not fit.
    """
    names: tuple[FamilyPart, ...] = (tuple(tokens),) if family is None else family.parts_of(clip)
    parts: list[list[Row]] = []
    for part in names:
        if isinstance(part, int):
            parts.append([{}] * part)
            continue
        entries = {key: _expanded(tokens.get(key, ()), sizes.get(key, ())) for key in part}
        if family is not None:
            entries = {key: _without_end(some, family) for key, some in entries.items()}
        length = min(map(len, entries.values()))
        parts.append([{key: some[row] for key, some in entries.items()} for row in range(length)])
    if family is not None and family.filled_up is not int and len(parts) == 1:  # padding in front has no rows
        is_padding = [next((entry[0] for entry in row.values()), 0) == PADDING for row in parts[0]]
        parts = [parts[0][is_padding.index(False) if False in is_padding else 0 :]]
    total = sum(map(len, parts))
    if total < num_rows and [] in parts:  # T5 of Stable Diffusion 3 without any tokens, where the host puts its end
        parts[-1 - parts[::-1].index([])] = [{}] * (num_rows - total)
    elif total < num_rows and family is not None and family.filled_up(total) == num_rows:
        parts.append([{}] * (num_rows - total))
    elif total > num_rows and len(parts) == 1:
        parts = [parts[0][total - num_rows :]]
    elif total != num_rows:
        raise ValueError(f"{NOBODY}the text encoder gave {num_rows} rows, and the prompt has {total} tokens.")
    return parts


def _without_end(entries: list[Entry], family: Family) -> list[Entry]:
    """Tokens without those at the end that the host leaves out."""
    return entries[: len(entries) - family.num_left_out_behind([as_id(entry[0]) for entry in entries])]


def _expanded(chunks: Sequence[Sequence[Entry]], sizes: Sequence[int]) -> list[Entry]:
    """Tokens of some chunks, those of pictures as often as they have rows."""
    rest = iter(sizes)
    found: list[Entry] = []
    for entry in (entry for chunk in chunks for entry in chunk):
        found += [entry] * (next(rest, 1) if isinstance(entry[0], dict) else 1)
    return found


def shared_tokens(parts: Sequence[Sequence[Row]]) -> list[Token]:
    """Token of each row, with its weight; refused if encoders side by side have other weights in a row."""
    found: list[Token] = []
    for row in (row for part in parts for row in part):
        tokens = {key: token_of_entry(entry) for key, entry in row.items()}
        first = next(iter(tokens), None)
        for key, token in tokens.items():
            if first is not None and token.weight != tokens[first].weight:
                raise ValueError(
                    f"The text encoders {first} and {key} have different words in row {len(found)}: their rows have "
                    "one weight together. Give both the same text, and take the weight of a word off that an embedding "
                    "or a longer chunk moves."
                )
        found.append(Token(0) if first is None else tokens[first])
    return found


def read_of_tokens(tokens: HostTokens, names: Sequence[str]) -> tuple[str, ReadPrompt] | None:
    """A prompt that the host has read, as its first encoder with words reads it, with that encoder's name.

    ``names`` are those of encoders among the tokens that come first. None if no token is known.
    """
    for name in (*(name for name in names if name in tokens), *tokens):
        chunks = tokens[name] if isinstance(tokens[name], list) else ()
        pairs = [(entry, mark) for chunk in chunks for entry in chunk if (mark := mark_of(entry)) is not None]
        texts = {id(mark.prompt): mark.prompt for _, mark in pairs}
        if len(texts) == 1 and isinstance(text := pairs[0][1].prompt, HostText):
            words = [token_of_entry(entry) for entry, _ in pairs]
            return name, as_read(text.prompt, words, tuple(dict.fromkeys(text.issues)), text.options)
    return None


def check_embeddings(family: Family, tokens: HostTokens) -> None:
    """Refuse weights beside an embedding in a family that makes other rows of one."""
    entries = pairs_in(tokens)
    has_weights = any(entry[1] != 1.0 for entry in entries)
    if has_weights and not family.takes_embeddings and any(isinstance(entry[0], Tensor) for entry in entries):
        raise ValueError(f"Attention Weights takes no embeddings with {family.title}: take “embedding:…” out.")


def words_of_rows(parts: Sequence[Sequence[Row]], of_towers: Mapping[str, Words]) -> tuple[Part, ...]:
    """Words of a prompt that the host has encoded, with the rows of each part.

    ``of_towers`` are those of CLIP text towers that read the prompt by our rules, by their names among the tokens.

    Raises:
        ValueError: If its tokens are not those of one prompt.
    """
    entries = (entry for part in parts for row in part for key, entry in row.items() if key not in of_towers)
    prompts = {id(mark.prompt): mark.prompt for mark in map(mark_of, entries) if mark is not None}
    texts = [prompt for prompt in prompts.values() if isinstance(prompt, HostText)]
    if len(prompts) > 1 or len(texts) < len(prompts):
        raise ValueError(EDITED)
    stretches: list[Stretch | None] = []
    for text in texts:
        for is_break, group in groupby(text.characters, lambda character: character.is_break):
            own: list[Character] = [*group]
            stretches.append(None if is_break else ("".join(one.text for one in own), [one.place for one in own]))
    found: list[Part] = []
    for part in parts:
        keys = [*part[0]] if part and part[0] else [""]
        rows = {key: [token_of_entry(row[key]) if key in row else Token(0) for row in part] for key in keys}
        found.append({key: of_towers.get(key) or words_in(stretches, tokens) for key, tokens in rows.items()})
    return tuple(found)
