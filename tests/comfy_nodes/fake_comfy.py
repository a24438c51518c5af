"""The parts of ComfyUI that our nodes touch, round our own tiny tower: enough to run the nodes where no host is.

What the real host does is tested in tests/hosts; here only our side of the contract is.
"""

import re
import sys
from copy import deepcopy
from functools import cache
from types import ModuleType, SimpleNamespace

import torch
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import TextConfig
from weighted_clip.encoder.models.text_model import TextEncoder, TextModel
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt

from ..door import encode_prompt

CONFIG = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=128)


def node(name: str):
    """A node of ours by its id without the prefix."""
    return NODE_CLASS_MAPPINGS[f"WeightedCLIP{name}"]()


def inputs_of(name: str) -> dict[str, tuple]:
    """Type and options of each input of a node, by its whole id."""
    types = NODE_CLASS_MAPPINGS[name].INPUT_TYPES()
    return types["required"] | types.get("optional", {})


def defaults(name: str) -> dict:
    """Values of the widgets of a node dropped into a graph."""
    return {
        key: options["default"]
        for key, (_, options) in inputs_of(f"WeightedCLIP{name}").items()
        if "default" in options
    }


def encode(name: str, clip=None, text: str = "", **inputs) -> dict:
    """Result of an encode node whose other widgets have their defaults."""
    return node(name).encode(clip=clip or FakeClip(), text=text, **defaults(name) | inputs)


def rows(clip, text: str, name: str = "TextEncode", **inputs) -> torch.Tensor:
    """Rows of a text by an encode node: those of its first entry."""
    return encode(name, clip, text, **inputs)["result"][0][0][0]


def native(text: str, **options) -> torch.Tensor:
    """Rows of a text by our own encoder with the weights of `FakeClip`."""
    encoder, tokenize = TextEncoder(seeded_text_model(CONFIG)), default_tokenizer()
    return encode_prompt(read_prompt(text, EncodeOptions(**options), tokenize), encoder, tokenize).hidden


def load_tiny(output: int = 0):
    """Our native encoder with the weights of `FakeClip`, or it as a CLIP, the second output."""
    return node("Load").load("text_encoders/tiny.safetensors", 1, "fp32", "auto")[output]


def remembering(clip=None, mebibytes: int = 8):
    """A CLIP, or another one, that remembers what it has encoded."""
    return node("Remember").remember(clip or FakeClip(), mebibytes)[0]


def interrupt(monkeypatch, after: int = 0) -> list[int]:
    """Let the host interrupt once it has been asked so many times; how often it was is returned."""
    asked: list[int] = []

    def check() -> None:
        asked.append(len(asked))
        if len(asked) > after:
            raise InterruptedError

    monkeypatch.setattr(sys.modules["comfy.model_management"], "throw_exception_if_processing_interrupted", check)
    return asked


def install(monkeypatch, files: dict[str, dict[str, str]] | None = None, temp: str = "temp") -> None:
    """Put fake host modules where the nodes look for them.

    ``files``: folder kind to file name to path. ``temp``: folder of the pictures on nodes.
    """
    files = files or {}
    management = ModuleType("comfy.model_management")
    management.intermediate_device = lambda: torch.device("cpu")
    for name in ("text_encoder", "vae", "unet"):
        for device in (f"{name}_device", f"{name}_offload_device"):
            setattr(management, device, management.intermediate_device)
    management.get_torch_device = management.intermediate_device
    management.loaded = loaded = []

    def load_models_gpu(patchers, **options) -> None:
        loaded.append((patchers, options))
        for patcher in patchers:
            getattr(patcher, "load", lambda: None)()

    management.load_models_gpu = load_models_gpu
    management.freed = freed = []
    management.free_memory = lambda num_bytes, device: freed.append((num_bytes, device))
    management.throw_exception_if_processing_interrupted = lambda: None
    utils = ModuleType("comfy.utils")
    utils.ProgressBar = type("ProgressBar", (FakeProgressBar,), {"seen": []})
    patching = ModuleType("comfy.model_patcher")
    patching.ModelPatcher = lambda model, load_device, offload_device: SimpleNamespace(model=model)
    embeddings = ModuleType("comfy.sd1_clip")
    vectors = {"known": torch.full((2, CONFIG.hidden_dim), 0.1)}
    embeddings.load_embed = lambda name, folder, size, key: vectors.get(name)
    embeddings.escape_important = lambda text: text.replace("\\(", "\0").replace("\\)", "\1")
    embeddings.unescape_important = lambda text: text.replace("\0", "(").replace("\1", ")")
    embeddings.token_weights = weights_of
    embeddings.SDTokenizer = SimpleNamespace(tokenize_with_weights=None)
    embeddings.SD1ClipModel, embeddings.SD1Tokenizer = SD1ClipModel, None
    clips = ModuleType("comfy.sd")
    clips.CLIP = made_clip
    ops = ModuleType("comfy.ops")
    ops.cast_to = lambda weight, dtype, device: weight.to(dtype=dtype, device=device)
    paths = ModuleType("folder_paths")
    paths.get_filename_list = lambda kind: sorted(files.get(kind, {}))
    paths.get_full_path = lambda kind, name: files[kind].get(name)
    paths.get_full_path_or_raise = lambda kind, name: files[kind][name]
    paths.get_folder_paths = lambda kind: [f"models/{kind}"]
    paths.get_temp_directory = paths.get_input_directory = lambda: str(temp)
    comfy = ModuleType("comfy")
    comfy.__path__ = []
    loaders = ModuleType("nodes")
    loaders.LoraLoader = LoraLoader
    conds, hooks = ModuleType("comfy.conds"), ModuleType("comfy.hooks")
    conds.CONDRegular = CONDRegular
    hooks.HookGroup, hooks.TransformerOptionsHook = HookGroup, transformer_options_hook
    hooks.EnumHookScope = SimpleNamespace(AllConditioning="all")
    hooks.EnumHookType = SimpleNamespace(Weight="weight", TransformerOptions="options")
    hooks.set_hooks_for_conditioning = lambda cond, group: [[rows, {**values, "hooks": group}] for rows, values in cond]
    for module in (comfy, management, utils, patching, embeddings, clips, ops, paths, loaders, conds, hooks):
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if module.__name__.startswith("comfy."):
            setattr(comfy, module.__name__.split(".")[1], module)


class FakeProgressBar:
    """The host's; notes what it shows."""

    seen: list[tuple]

    def __init__(self, total: int) -> None:
        self.total = total

    def update_absolute(self, value: int, total=None, preview=None) -> None:
        assert value <= self.total
        self.seen.append((value, self.total, preview))


def progress() -> list[tuple]:
    """Value, total and preview that the progress bars have shown, one entry a step."""
    return sys.modules["comfy.utils"].ProgressBar.seen


def transformer_options_hook(options, hook_scope):
    """The host's hook for a model's options."""
    return SimpleNamespace(transformers_dict=options, hook_scope=hook_scope, hook_type="options")


class CONDRegular:
    """The host's tensor of an entry for its model."""

    def __init__(self, cond) -> None:
        self.cond = cond


class HookGroup:
    """The host's hooks of an entry."""

    def __init__(self) -> None:
        self.hooks = []

    def add(self, hook):
        self.hooks.append(hook)


class LoraLoader:
    """The host's node; a model and a CLIP are lists of what was loaded on them."""

    def load_lora(self, model, clip, name, model_strength, clip_strength):
        return [*model, (name, model_strength)], [*clip, (name, clip_strength)]


class HostEncoder(torch.nn.Module):
    """The host's stack of layers: takes what is added to the attention, gives the last state and one in between."""

    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, hidden, mask=None, intermediate_output=None):
        states = self.layers(hidden, None if mask is None else mask == 0, is_causal=False)
        return states[-1], None if intermediate_output is None else states[intermediate_output]


@cache
def _seeded() -> TextModel:
    """Weights of every tower here; all have one table of tokens, which takes longer to make than what they are for."""
    return seeded_text_model(CONFIG)


class Transformer(torch.nn.Module):
    """Has ``text_model``, by which a CLIP text tower is known, and the host's call."""

    def __init__(self) -> None:
        super().__init__()
        table = _seeded().embeddings.token_embedding.weight
        model = deepcopy(_seeded(), {id(table): torch.nn.Parameter(table.data, requires_grad=False)})
        self.text_model = torch.nn.Module()
        self.text_model.embeddings, self.text_model.final_layer_norm = model.embeddings, model.final_layer_norm
        self.text_model.encoder = HostEncoder(model.encoder)

    def text_projection(self, pooled):
        return pooled * 2

    def get_input_embeddings(self):
        return self.text_model.embeddings.token_embedding

    def forward(
        self, _ids, attention_mask, *, embeds, num_tokens, intermediate_output, final_layer_norm_intermediate, **_kwargs
    ):
        model = self.text_model
        hidden = embeds + model.embeddings.position_embedding.weight
        seen = torch.ones(77, 77, dtype=torch.bool).tril().expand(len(embeds), 1, 77, 77)
        if attention_mask is not None:
            queries = 77 if attention_mask.shape[1] == 77 else 1
            seen = (attention_mask == 1).view(-1, 1, queries, 77) & seen
        bias = torch.zeros(seen.shape).masked_fill(~seen, -torch.finfo(torch.float32).max)
        last, middle = model.encoder(hidden, bias, intermediate_output)
        last = model.final_layer_norm(last)
        if middle is not None and final_layer_norm_intermediate:
            middle = model.final_layer_norm(middle)
        pooled = last[range(len(embeds)), [count - 1 for count in num_tokens]]
        return last, middle, self.text_projection(pooled), pooled


class Tower(torch.nn.Module):
    """The host's SDClipModel."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = Transformer()
        self.num_layers, self.special_tokens = CONFIG.num_layers, {"pad": 49407}
        self.layer, self.layer_idx = "last", None
        self.options_default = ("last", None, False)
        self.layer_norm_hidden_state, self.return_projected_pooled = True, False
        self.execution_device = None

    def process_tokens(self, tokens, device):
        table = self.transformer.get_input_embeddings().weight
        rows = [torch.stack([table[t] if isinstance(t, int) else t for t in chunk]) for chunk in tokens]
        num_tokens = [next(i for i, t in enumerate(chunk) if isinstance(t, int) and t == 49407) + 1 for chunk in tokens]
        return torch.stack(rows).to(device), None, num_tokens, []

    def encode(self, tokens):
        return self(tokens)

    def forward(self, tokens):
        embeds, _, num_tokens, _ = self.process_tokens(tokens, "cpu")
        last, middle, projected, pooled = self.transformer(
            None,
            None,
            embeds=embeds,
            num_tokens=num_tokens,
            intermediate_output=self.layer_idx,
            final_layer_norm_intermediate=self.layer_norm_hidden_state,
        )
        return (last if self.layer == "last" else middle), (projected if self.return_projected_pooled else pooled)

    def encode_token_weights(self, pairs):
        hidden, pooled = self.encode([[token for token, _ in chunk] for chunk in pairs])
        return hidden.flatten(0, 1)[None], pooled[:1]


class SD1ClipModel(torch.nn.Module):
    """The host's model of Stable Diffusion 1."""

    def __init__(self, device, dtype) -> None:
        super().__init__()
        self.clip_l = Tower()


class HostTokenizer:
    """The host's SDTokenizer."""

    max_length, start_token, end_token = 77, 49406, 49407
    tokens_start, tokenizer_adds_end_token = 1, True
    embedding_directory, embedding_size = "embeddings", CONFIG.hidden_dim

    def __init__(self, tower: str) -> None:
        self.embedding_key = tower
        self.pad_token = 49407 if tower == "clip_l" else 0

    def tokenizer(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [49406, *(token.id for token in default_tokenizer()(text)), 49407]}


class Patcher:
    """The host's ModelPatcher: loading puts its object patches on the model that all clones share."""

    forced_hooks = current_hooks = None

    def __init__(self, model, patches=(), attachments=(), patches_uuid="no LoRA") -> None:
        self.model, self.object_patches, self.attachments = model, dict(patches), dict(attachments)
        self.patches_uuid = patches_uuid

    def set_attachments(self, key, thing) -> None:
        self.attachments[key] = thing

    def get_attachment(self, key):
        return self.attachments.get(key)

    def load(self, device_to=None, full_load=False) -> None:
        backup = vars(self.model).setdefault("backup", {})
        for patches, kept in ((dict(backup), {}), (self.object_patches, backup)):
            backup.clear()
            for path, value in patches.items():
                owner, name = self.model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2]
                kept[path] = getattr(owner, name)
                setattr(owner, name, value)


def weights_of(text, weight):
    """Parts of a text with their weights, by a simple rule: no bracket is in another."""
    parts = [part for part in re.split(r"(\([^()]*:[^()]*\))", text) if part]
    brackets = (part[1:-1].rpartition(":") if part[0] == "(" else (part, "", weight) for part in parts)
    return [(body, float(number)) for body, _, number in brackets]


class FakeClip:
    """The host's CLIP with CLIP text towers: ``clip_l``, unless others are asked for."""

    def __init__(self, model=None, patcher=None, towers=("clip_l",)) -> None:
        if model is None:
            model = torch.nn.Module()
            for tower in towers:
                model.add_module(tower, Tower())
        self.cond_stage_model = model
        self.towers = towers
        self.patcher = patcher or Patcher(model)
        self.tokenizer = SimpleNamespace(**{tower: HostTokenizer(tower) for tower in towers})

    def clone(self) -> "FakeClip":
        given = self.patcher
        patcher = Patcher(given.model, given.object_patches, given.attachments, given.patches_uuid)
        return FakeClip(self.cond_stage_model, patcher, self.towers)

    def tokenize(self, text, **_options):
        raise NotImplementedError("only families with other text encoders are asked for the host's own tokens")

    def encode_from_tokens_scheduled(self, tokens, add_dict=None):
        self.patcher.load()
        towers = {tower.removeprefix("clip_"): getattr(self.cond_stage_model, tower) for tower in self.towers}
        outputs = [tower.encode_token_weights(tokens[key]) for key, tower in towers.items()]
        hidden = torch.cat([hidden for hidden, _ in outputs], dim=-1)
        return [[hidden, {"pooled_output": outputs[-1][1], **(add_dict or {})}]]


def made_clip(target, embedding_directory, tokenizer_data, model_options):
    """The host's way of making a CLIP."""
    return FakeClip(target.clip(dtype=model_options["dtype"], device="cpu"))
