"""One call of a CLIP to encode: by a scheme in its text towers, or with weights for the attention.

Source: behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....encoder.quoting import quote
from ....weighting.attention import effect_of
from ....weighting.encoders import Encoders, Prepared
from ....weighting.guidance import GUIDANCE
from ....weighting.pipeline import EncodedPrompt
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.schemes import SCHEMES
from ....weighting.schemes.negpip import NegPipError
from ....weighting.schemes.scheme import all_places
from ....weighting.towers import Reader, check_same_signs
from ..attention.attention import with_effects
from ..attention.text_rows import Part, num_rows_read
from ..attention.words import with_words, words_or_blend
from ..clip.clip import EncodedText, calls_of, is_stable_diffusion
from ..clip.host_encoding import prompt_by_host, stock_note, words_or_reason
from ..clip.marks import HostTokens, pairs_in, prompt_of, rebuilt, unweighted
from ..clip.rows import EDITED, check_embeddings, parts_of_rows, read_of_tokens, shared_tokens
from ..clip.schemes import check_repeat, check_signs, for_patched, is_patched, with_signs
from ..clip.towers import ENCODE, encode_fn
from ..clip.weighted_rows import without_ignored
from ..contract import host
from ..families.kinds import class_of
from ..models.cache import memory_of, with_recall
from ..types import Clip, Conditioning
from .settings import ClipSettings, Method

EDITED_LINE = "Another node has put the tokens of a prompt together: they are weighted as they are."


@dataclass(eq=False)
class EncodeCall:
    """One call of a CLIP to encode some tokens."""

    clip: Clip
    tokens: HostTokens
    prompts: dict[str, EncodedPrompt] = field(default_factory=dict)
    """Encoded prompts by tower."""
    sizes: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of rows of pictures, by text encoder."""
    lines: dict[str, None] = field(default_factory=dict)
    """Lines for the user, each once."""
    is_edited: bool = False
    """Whether a tower's tokens were not those of one prompt."""


class EncodingReport(NamedTuple):
    """Result of encoding a prompt, for its author."""

    encoded: EncodedText
    """The prompt as encoded, by text encoder; none if another node has put its tokens together."""
    lines: tuple[str, ...]
    """Lines for its author, besides its issues."""


@dataclass(eq=False)
class Session:
    """Things that a CLIP and its clones share: settings, readers, and the call that is being made."""

    settings: ClipSettings
    method: Method
    readers: Mapping[str, Reader]
    _tell: Callable[[EncodingReport], None]
    """Called after each prompt that was encoded."""
    current: EncodeCall | None = None

    @property
    def weighs(self) -> bool:
        """Whether weights stand in the tokens."""
        return self.method.way is not None or SCHEMES[self.method.options.scheme].is_weighing

    @property
    def pairs_rows(self) -> bool:
        """Whether the CLIP comes from CLIP NegPip of ComfyUI-ppm, for whose MODEL rows are paired."""
        return self.current is not None and is_patched(self.current.clip)

    @contextmanager
    def encoding(self, clip: Clip, tokens: HostTokens) -> Iterator[EncodeCall]:
        """Let a CLIP encode."""
        before, self.current = self.current, EncodeCall(clip, tokens)
        try:
            for part in (clip.cond_stage_model, *clip.cond_stage_model.children()):
                if (rule := vars(part).get(ENCODE)) is not None:  # on our copy, as smZNodes does while it encodes
                    self.note_rule(rule)
            yield self.current
        finally:
            self.current = before

    def say(self, line: str) -> None:
        """Tell the user something about the call; at once if a node has asked a tower past the CLIP."""
        if self.current is None:
            self._tell(EncodingReport(EncodedText([], {}, ()), (line,)))
        else:
            self.current.lines[line] = None

    def note_rule(self, rule: Any) -> None:
        """Say that another pack's function encodes."""
        module = getattr(getattr(rule, "func", rule), "__module__", None)
        self.say(
            f"Another node, of {quote(module)}, has replaced how this CLIP encodes: its rule acts, not this one's."
        )

    def note_sizes(self, name: str, infos: Sequence[Mapping[str, Any]]) -> None:
        """Keep the numbers of rows of pictures among the tokens of an encoder."""
        if self.current is not None:
            sizes = [info["size"] for info in infos if info.get("type") != "embedding" or info.get("size", 1) > 1]
            self.current.sizes[name] = self.current.sizes[name.removeprefix("clip_")] = sizes

    def encode(self, name: str, tower: Any, chunks: Any, by_host: Callable[..., Any]) -> Any:
        """Rows and pooled vector of a tower for some tokens, as the host's ``encode_token_weights`` returns them."""
        reader, options = self.readers.get(name), self.method.options
        if reader is None or not self.method.has_readers or not chunks:
            return by_host(chunks)
        prompt, lengths = prompt_of(chunks), {*map(len, chunks)}
        if lengths != {reader.chunk_length} if reader.chunk_length else prompt is None and len(lengths) > 1:
            self.say(f"Another node has made chunks of another length for {name}: ComfyUI's own rule acts on them.")
            return by_host(chunks)
        if prompt is None:
            if self.current is not None:
                self.current.is_edited = True
            if self.method.is_stock:
                return by_host(chunks)
            self.say(EDITED_LINE)
            prompt = rebuilt(chunks, reader.options_of(options), reader.layout)
        if self.method.is_stock:
            result = by_host(chunks)
            if self.current is not None:
                self.current.prompts[name] = _of_host(reader, prompt, result)
            return result
        encoded = self._encoded(name, reader, tower, prompt)
        device = host("comfy.model_management").intermediate_device()
        return encoded.hidden.to(device), encoded.pooled.to(device)

    def _encoded(self, name: str, reader: Reader, tower: Any, prompt: ReadPrompt) -> EncodedPrompt:
        """A prompt encoded by a tower with the scheme."""
        current = self.current
        has_memory = current is not None and memory_of(current.clip) is not None
        device = torch.device(getattr(tower, "execution_device", None) or "cpu")
        encoders = Encoders({name: reader}, **calls_of(tower, device, is_remembering=has_memory))
        prepared = Prepared(encoders, {name: [prompt]})
        encode = encode_fn(tower)
        if current is not None:
            is_stable = is_stable_diffusion(current.clip)
            if SCHEMES[prompt.options.scheme].is_repeating:
                check_repeat(current.clip, prepared.reads, is_stable_diffusion=is_stable)
            check_signs(current.clip, prepared.reads, is_stable_diffusion=is_stable)
            encode = with_recall(encode, tower, current.clip.patcher)
        check = host("comfy.model_management").throw_exception_if_processing_interrupted
        (encoded,) = prepared.run_tower(name, encode, check)
        if current is None:
            if encoded.signs:
                raise NegPipError(
                    f"Another node encodes with {name} past the CLIP, so that the scheme {prompt.options.scheme} "
                    "cannot take words away: take weights of 0 and above, or another scheme."
                )
            return encoded
        if self.pairs_rows:
            encoded = for_patched(encoded)
        current.prompts[name] = encoded
        return encoded

    def tokens_for_host(self, tokens: HostTokens) -> HostTokens:
        """Tokens without weights if those act in the attention, else as they are."""
        if self.method.way is None:
            return tokens
        if self.method.family is not None:
            check_embeddings(self.method.family, tokens)
        return unweighted(tokens)

    def finished(self, call: EncodeCall, conditioning: Conditioning) -> Conditioning:
        """A conditioning with its words, and with what acts on it in the attention."""
        if not conditioning:
            return conditioning
        if self.method.way is None:
            conditioning = with_words(conditioning, self._words(call, conditioning))
            if not call.prompts:
                return conditioning
            if not is_patched(call.clip):  # the MODEL of CLIP NegPip finds signs in the rows
                check_same_signs({name: [prompt.read] for name, prompt in call.prompts.items()})
            return with_signs(conditioning, call.prompts)
        rows, values = conditioning[0]
        if self.method.way == GUIDANCE:
            return with_words(conditioning, self._words(call, conditioning))
        parts = parts_of_rows(call.clip, self.method.family, call.tokens, num_rows_read(rows, values), call.sizes)
        effects = [effect_of(token.weight, self.method.way, self.settings.strength) for token in shared_tokens(parts)]
        conditioning = with_words(conditioning, self._words(call, conditioning))
        return with_effects(conditioning, effects)[0]

    def check_is_carried(self, call: EncodeCall) -> None:
        """Refuse signs, and tell of weights, that rows without a conditioning cannot carry."""
        if any(prompt.signs for prompt in call.prompts.values()):
            raise NegPipError(
                f"This node takes rows alone, so that the scheme {self.method.options.scheme} cannot take words away: "
                "take weights of 0 and above, or another scheme."
            )
        if self.method.way is not None and any(entry[1] != 1.0 for entry in pairs_in(call.tokens)):
            where = "by guidance" if self.method.way == GUIDANCE else "in the attention"
            self.say(f"This node takes rows alone: weights {where} do not act. Take a scheme that weighs rows.")

    def tell(self, call: EncodeCall, conditioning: Conditioning) -> None:
        """Tell what became of a prompt."""
        prompts = (
            {}
            if call.is_edited
            else {name: without_ignored(prompt) if self.method.way else prompt for name, prompt in call.prompts.items()}
        )
        note = tokenizer = ""
        if not prompts and not call.is_edited:
            prompts = self._host_prompts(call, conditioning)
            note, tokenizer = self._note(call.clip), class_of(call.clip.tokenizer)
        reading_encoders = {*prompts, *(f"clip_{name}" for name in prompts)}
        left_to_host = tuple(
            sorted({name for name, _ in call.clip.cond_stage_model.named_children()} - reading_encoders)
        )
        self._tell(EncodingReport(EncodedText(conditioning, prompts, left_to_host, note, tokenizer), tuple(call.lines)))

    def _note(self, clip: Clip) -> str:
        if self.method.way is not None:
            where = "" if self.method.way == GUIDANCE else "in the attention "
            return f"weighted {where}by {self.method.way}, strength {self.settings.strength:g}"
        return stock_note(clip)

    def _host_prompts(self, call: EncodeCall, conditioning: Conditioning) -> dict[str, EncodedPrompt]:
        """A prompt that the host has encoded, by the encoder that its rows are of."""
        family = self.method.family
        named_prompt = read_of_tokens(call.tokens, () if family is None else family.names_of(call.clip))
        if named_prompt is None or not conditioning:
            return {}
        name, prompt = named_prompt
        return {name: prompt_by_host(conditioning, prompt)}

    def _words(self, call: EncodeCall, conditioning: Conditioning) -> tuple[Part, ...] | str:
        """Words of what was encoded, or the reason why they have no rows of their own."""
        if call.is_edited:
            return EDITED
        is_clip = is_stable_diffusion(call.clip)
        if is_clip and not call.prompts:
            return "another pack’s node has made its rows"
        of_towers = words_or_blend(call.prompts) if call.prompts else ({},)
        if isinstance(of_towers, str) or is_clip:
            return of_towers
        return words_or_reason(call.clip, call.tokens, conditioning, of_towers[0], call.sizes)


def _of_host(reader: Reader, prompt: ReadPrompt, result: Sequence[Tensor]) -> EncodedPrompt:
    """A prompt that a tower of the host has encoded by itself."""
    prepared = Prepared(Encoders({"": reader}), {"": [prompt]})
    places = all_places(len(prompt.chunks), prompt.layout.length)
    return EncodedPrompt(result[0], result[1], prompt, prepared.num_encodings, places=places)
