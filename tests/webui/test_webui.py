"""Conditioning of the WebUI made by us, on stand-ins for its engines: numbers against our native encoder with the same
weights, and what is left of us afterwards, which must be nothing."""

import copy
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.encoding import Encoding
from weighted_clip.encoder.files.checkpoint import load_text_models
from weighted_clip.encoder.models.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.webui.engines import Engine, UnknownEncodersError, WebUIError, engines_of
from weighted_clip.hosts.webui.generation import arm
from weighted_clip.hosts.webui.settings import INFOTEXT, Settings, infotext_key, pasted
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.text.embeddings import SizedVectors

from ..door import encode_prompt
from . import fake_webui as fake

PROMPT = "a (red:1.4) cat and a (dog:0.5) in a [bowl] (far:0.0) away"
LONG = "a (photo:1.2) of a (cat (on a:0.6) mat:0.8), " * 9
KINDS = ("forge", "a1111")


def native(tmp_path: Path, clip_skip: int = 1, seed: int = 0) -> TextEncoder:
    """Our own encoder with the weights of `fake.text_model`."""
    fake.text_model(seed).save_pretrained(tmp_path / str(seed))
    models, _ = load_text_models(tmp_path / str(seed) / "model.safetensors")
    return TextEncoder(models["clip_l"], clip_skip=clip_skip)


def expected(encoder: TextEncoder, text: str, **options: Any) -> Tensor:
    options = {"syntax": "a1111", "scheme": "a1111", **options}
    read = read_prompt(text, EncodeOptions(**options), default_tokenizer())
    return encode_prompt(read, encoder, default_tokenizer()).hidden


def conditioning(model: Any, *prompts: str, negative: str = "", **settings: Any) -> list[Any]:
    return fake.armed(model, **settings).setup_conds(*prompts, negative=negative)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_that_of_the_native_encoder(
    kind: str, scheme: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model, encoder = request.getfixturevalue(kind), native(tmp_path)
    for text in ("", PROMPT, LONG):
        [ours] = conditioning(model, text, scheme=scheme)
        if SCHEMES[scheme].is_signed:  # keys and values, alike without weights below 0
            assert torch.equal(ours[:, 0::2], ours[:, 1::2])
            ours = ours[:, 0::2]
        torch.testing.assert_close(ours, expected(encoder, text, scheme=scheme), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "settings",
    [
        {"padding": "mask"},
        {"padding": "mask EOS too"},
        {"padding": "drop"},
        {"padding": "clean"},
        {"scheme": "comfy", "padding": "clean EOS too"},
        {"scheme": "masked_blend", "law": "compel"},
        {"scheme": "masked_blend", "mask_method": "remove", "padding": "mask"},
        {"scheme": "masked_blend", "mask_method": "token"},
        {"scheme": "comfy", "normalization": "length+mean", "syntax": "comfy"},
    ],
    ids=lambda settings: " ".join(settings.values()),
)
def test_every_setting_acts_as_on_the_native_encoder(
    kind: str, settings: dict[str, str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model, encoder = request.getfixturevalue(kind), native(tmp_path)
    for text in (PROMPT, LONG):
        [ours] = conditioning(model, text, **settings)
        torch.testing.assert_close(ours, expected(encoder, text, **settings), atol=2e-5, rtol=0)


def test_of_texts_that_change_with_the_steps_each_has_its_own_padding(forge: fake.ForgeModel) -> None:
    texts, settings = ("a (cat:1.2)", "a (dog:1.2) in a bowl on a mat"), {"scheme": "a1111_no_norm", "padding": "clean"}
    [together] = conditioning(forge, "=>".join(texts), **settings)
    alone = [conditioning(forge, text, **settings)[0] for text in texts]
    torch.testing.assert_close(together, torch.cat(alone), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_clip_skip_of_the_host_holds_for_masked_passes_too(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model, encoder = request.getfixturevalue(kind), native(tmp_path, clip_skip=2)
    next(iter(engines_of(model).values())).owner.clip_skip = 2
    [ours] = conditioning(model, PROMPT, scheme="masked_blend", padding="mask")
    theirs = expected(encoder, PROMPT, scheme="masked_blend", padding="mask")
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_a1111_is_that_of_all_texts_of_a_prompt(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    texts = ["a (cat:1.5) on a mat", "a (dog:0.5) on a mat, " * 20, "plain"]
    [ours] = conditioning(model, "=>".join(texts))
    assert ours.shape == (3, 154, fake.WIDTH)

    tokenize, options = default_tokenizer(), EncodeOptions(syntax="a1111", scheme="a1111")
    empty = read_prompt("", options, tokenize).chunks[0]
    chunks = [read_prompt(text, options, tokenize).chunks for text in texts]
    engine = next(iter(engines_of(model).values())).owner
    for column in range(2):
        some = [chunk[column] if column < len(chunk) else empty for chunk in chunks]
        with torch.no_grad():
            plain = engine.encode_with_transformers(torch.tensor([chunk.ids for chunk in some])).double()
        scaled = plain * torch.tensor([chunk.weights for chunk in some]).double().unsqueeze(-1)
        theirs = scaled * (plain.mean() / scaled.mean())
        torch.testing.assert_close(ours[:, 77 * column :][:, :77].double(), theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_embeddings_of_the_host_are_read_and_named(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model, encoder = request.getfixturevalue(kind), native(tmp_path)
    engine = next(iter(engines_of(model).values()))
    vectors = torch.randn(3, fake.WIDTH, generator=torch.Generator().manual_seed(7))
    engine.database.add("my style", vectors)
    engine.database.add("both", {"clip_l": vectors[:1], "clip_g": vectors[:2]})

    class Known:
        def names(self) -> tuple[str, ...]:
            return ("my style", "both")

        def find(self, name: str) -> list[Tensor]:
            return list(vectors) if name == "my style" else SizedVectors(vectors[:1], 2)

    text = "a cat in (my style:0.5) and both"
    for scheme in ("a1111", "masked_blend"):
        options = EncodeOptions(syntax="a1111", scheme=scheme)
        read = read_prompt(text, options, default_tokenizer(), embeddings=Known())
        theirs = encode_prompt(read, encoder, default_tokenizer()).hidden
        [ours] = conditioning(model, text, scheme=scheme)
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
        assert engine.owner.used_embeddings == ["my style", "both"]
        assert engine.fixes_owner.fixes is None


def test_an_embedding_for_another_model_is_told(forge: fake.ForgeModel) -> None:
    database = forge.text_processing_engine.embeddings
    database.skipped_embeddings["wide"] = SimpleNamespace(name="wide")
    database.add("only-g", {"clip_g": torch.zeros(1, fake.WIDTH)})
    generation = fake.armed(forge)
    generation.setup_conds("a wide only-g cat")
    told = "\n".join(generation.comments)
    assert "“wide” is for another model" in told
    assert "“only-g” is for another model: it has vectors for clip_g, this encoder is clip_l" in told


@pytest.mark.parametrize("kind", ["forge_xl", "a1111_xl"])
def test_both_encoders_of_sdxl_are_ours(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model = request.getfixturevalue(kind)
    for text in (PROMPT, LONG):
        [ours] = conditioning(model, text, scheme="comfy")
        parts = [expected(native(tmp_path, seed=seed), text, scheme="comfy") for seed in (0, 1)]
        torch.testing.assert_close(ours["crossattn"], torch.cat(parts, dim=-1), atol=2e-5, rtol=0)
        [stock] = fake.get_learned_conditioning(model, [text.replace("(", "").replace(")", "")], 20)
        assert ours["vector"].shape == stock["vector"].shape


def test_towers_get_equally_many_chunks_though_only_one_knows_an_embedding(forge_xl: fake.ForgeXLModel) -> None:
    forge_xl.text_processing_engine_l.embeddings.add("long", torch.zeros(70, fake.WIDTH))
    [ours] = conditioning(forge_xl, "a long cat and a dog in a bowl on a mat")
    assert ours["crossattn"].shape == (1, 154, 2 * fake.WIDTH)


def test_open_clip_cannot_hide_and_says_so(a1111_xl: fake.A1111XLModel) -> None:
    for settings in ({"scheme": "masked_blend"}, {"padding": "mask"}):
        with pytest.raises(WebUIError, match="clip_g through open_clip, where Weighted CLIP cannot hide"):
            conditioning(a1111_xl, PROMPT, **settings)
    conditioning(a1111_xl, "nothing to fade", scheme="masked_blend")


@pytest.mark.parametrize("kind", [*KINDS, "forge_xl", "a1111_xl"])
def test_nothing_is_left_after_success_and_error(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = request.getfixturevalue(kind)
    owners = [engine.owner for engine in engines_of(model).values()]
    before = [dict(vars(owner)) for owner in owners]
    plain = fake.Generation(model).setup_conds(PROMPT)

    def is_plain() -> bool:
        monkeypatch.setattr(fake.Generation, "cached_c", [None, None, None])
        now = fake.Generation(model).setup_conds(PROMPT)
        pairs = zip(plain, now, strict=True)
        return all(
            all(torch.equal(a[key], b[key]) for key in a) if isinstance(a, dict) else torch.equal(a, b)
            for a, b in pairs
        )

    conditioning(model, PROMPT)
    for owner, known in zip(owners, before, strict=True):
        assert set(vars(owner)) - {"used_embeddings"} == set(known) - {"used_embeddings"}
    assert is_plain()

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no room for one more")

    with monkeypatch.context() as patch:
        patch.setattr("weighted_clip.weighting.encoders.Prepared.run_tower", fail)
        with pytest.raises(RuntimeError, match="no room for one more"):
            conditioning(model, PROMPT)
    for owner in owners:
        assert not {"process_texts", "process_tokens"} & set(vars(owner))
    assert not any(engine.fixes_owner.fixes for engine in engines_of(model).values())
    text_models = [engine.text_model for engine in engines_of(model).values() if engine.text_model is not None]
    layers = [layer for text in text_models for layer in text.get_submodule("encoder.layers").children()]
    assert not any(layer.self_attn._forward_pre_hooks for layer in layers)
    assert is_plain()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_call_follows_an_interrupt(forge: fake.ForgeModel, monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """However many calls there were: of every pass, of every text, and of what a scheme needs besides."""
    from modules import shared

    calls: list[int] = []

    def counted(self: Any, ids: Any, mask: Any = None, *, is_causal: bool = True) -> Encoding:
        calls.append(len(ids))
        shared.state.interrupted = len(calls) == last
        return Encoding(torch.ones(len(ids), fake.LENGTH, 2), torch.ones(len(ids), 2))

    monkeypatch.setattr(Engine, "__call__", counted)
    monkeypatch.setattr("weighted_clip.hosts.webui.conditioning.MAX_CHUNKS", 1)
    monkeypatch.setattr(shared, "state", SimpleNamespace(interrupted=False), raising=False)
    last = 0
    text = "a (red:0.5) cat, a (blue:1.2) dog=>a (red:0.5) cat, a (blue:1.2) cow"
    settings = {"scheme": scheme, "padding": "clean", "bind": "red cat"}
    conditioning(forge, text, **settings)
    total = len(calls)
    assert total >= 3
    for last in range(1, total):
        calls.clear()
        shared.state.interrupted = False
        conditioning(forge, text, **settings)  # the host's own from there, which it does not sample with
        assert len(calls) == last


def test_caches_are_never_shared_with_plain_generations(forge: fake.ForgeModel) -> None:
    [plain] = fake.Generation(forge).setup_conds(PROMPT)
    cached = list(fake.Generation.cached_c)
    [ours] = conditioning(forge, PROMPT)
    assert not torch.equal(plain, ours)
    assert all(a is b for a, b in zip(cached, fake.Generation.cached_c, strict=True))
    [again] = fake.Generation(forge).setup_conds(PROMPT)
    assert again is plain
    [other] = conditioning(forge, PROMPT, scheme="comfy")
    assert not torch.equal(ours, other)


def test_script_that_is_off_touches_nothing(forge: fake.ForgeModel) -> None:
    generation = fake.Generation(forge)
    before = dict(vars(generation))
    arm(generation, list(vars(Settings()).values()))
    assert vars(generation) == before
    assert not generation.extra_generation_params


def test_one_generation_object_is_used_again_and_again(forge: fake.ForgeModel) -> None:
    """As img2img batches, Loopback and SD upscale do: ``process`` comes again for the same object."""
    [plain] = fake.Generation(forge).setup_conds(PROMPT)
    [ours] = conditioning(forge, PROMPT, scheme="comfy")
    generation = fake.Generation(forge)
    for padding in ("attend", "drop", "attend"):
        arm(generation, [True, "comfy", "none", "nested", "attention", padding])
        [again] = generation.setup_conds(PROMPT)
        assert torch.equal(again, ours) is (padding == "attend")
    twin = copy.copy(generation)
    for one in (generation, twin):
        arm(one, [False])
        assert not one.extra_generation_params
        assert torch.equal(one.setup_conds(PROMPT)[0], plain)
    arm(generation, [])
    assert torch.equal(generation.setup_conds(PROMPT)[0], plain)


def test_token_counters_of_other_threads_get_the_hosts_own_chunks(
    forge: fake.ForgeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = forge.text_processing_engine
    counts: list[int] = []

    def count(*args: Any, **named: Any) -> Any:
        thread = threading.Thread(target=lambda: counts.append(engine.process_texts(["one two three"])[1]))
        thread.start()
        thread.join()
        return original(*args, **named)

    from weighted_clip.weighting.encoders import Prepared

    original = Prepared.run_tower
    monkeypatch.setattr(Prepared, "run_tower", count)
    conditioning(forge, PROMPT)
    assert set(counts) == {3}


def test_dropped_padding_leaves_the_same_rows_to_all_prompts_of_a_batch(forge: fake.ForgeModel) -> None:
    texts = ["a cat", "a (red:1.2) cat on a mat=>a dog", LONG]
    conds = conditioning(forge, *texts, padding="drop")
    assert {cond.shape[1] for cond in conds} == {conds[-1].shape[1]}
    assert conds[-1].shape[1] < 154
    [alone] = conditioning(forge, "a cat", padding="drop")
    assert alone.shape[1] == 4
    torch.testing.assert_close(conds[0][:, :4], alone, atol=2e-5, rtol=0)


def test_a_scheme_without_padding_fills_the_prompts_of_a_batch_with_eos(forge: fake.ForgeModel, tmp_path: Path) -> None:
    texts = ["a (cat:1.4)", "a (red:1.2) cat on a mat=>a dog"]
    conds = conditioning(forge, *texts, scheme="lerp_last")
    assert [cond.shape[1] for cond in conds] == [8, 8]
    filled = "a (cat:1.4)" + "<|endoftext|>" * 4
    torch.testing.assert_close(conds[0], expected(native(tmp_path), filled, scheme="lerp_last"), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_repeated_in_every_text_of_a_prompt(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model, encoder = request.getfixturevalue(kind), native(tmp_path)
    [ours] = conditioning(model, "a (cat:1.5)=>a (dog:1.5)", scheme="repeat")
    assert ours.shape[:2] == (2, 155)
    for cond, text in zip(ours, ("a (cat:1.5)", "a (dog:1.5)"), strict=True):
        theirs = expected(encoder, text, scheme="unweighted")[0]
        rows = sorted([*range(77), *range(77), 2])
        torch.testing.assert_close(cond, theirs[rows], atol=2e-5, rtol=0)
    [coarse] = conditioning(model, "a (cat:1.5)", scheme="repeat", finest_step="1")
    assert coarse.shape[1] == 78


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "prompts",
    [("a (cat:1.5)", "a (cat:1.5) and a (dog:0.5)"), ("a (cat:1.5)=>a (dog:1.25)",), ("a cat", "a (cat:2)")],
    ids=["batch", "editing", "weights or none"],
)
def test_texts_of_different_numbers_of_rows_are_refused_by_name(
    kind: str, prompts: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    """The host would fill the shorter one with copies of its last row, each of which would count."""
    model = request.getfixturevalue(kind)
    with pytest.raises(WebUIError, match=r"makes \d+ rows of one text and \d+ of another.*ANDs"):
        conditioning(model, *prompts, scheme="repeat")
    assert len(conditioning(model, *[prompts[0].split("=>")[0]] * 2, scheme="repeat")) == 2
    assert len(conditioning(model, "a cat", LONG.replace("(", "").replace(":1.2)", ""), scheme="repeat")) == 2


@pytest.mark.parametrize("name", ["pad_cond_uncond", "pad_cond_uncond_v0"])
def test_a_host_that_pads_prompts_cannot_repeat_rows_or_pair_them(
    forge: fake.ForgeModel, host_options: SimpleNamespace, name: str
) -> None:
    setattr(host_options, name, True)
    with pytest.raises(WebUIError, match="“Pad prompt/negative prompt"):
        conditioning(forge, "a (cat:1.5)", scheme="repeat")
    with pytest.raises(WebUIError, match="“Pad prompt/negative prompt"):
        conditioning(forge, "a cat", scheme="negpip")
    [plain] = conditioning(forge, "a cat", scheme="repeat")
    assert plain.shape[1] == 77


@pytest.mark.parametrize("padding", ["attend", "drop"])
def test_problems_are_shown_below_the_image_once(forge: fake.ForgeModel, padding: str) -> None:
    generation = fake.armed(forge, "a1111", "none", "nested", "attention", padding)
    generation.setup_conds("a ((cat:1.2)=>a ((cat:1.2)")
    assert len(generation.comments) == 1
    assert next(iter(generation.comments)).startswith("Weighted CLIP: at ")


def test_many_problems_are_counted(forge: fake.ForgeModel) -> None:
    generation = fake.armed(forge, "a1111")
    generation.setup_conds("a ) " * 20)
    assert len(generation.comments) == 20
    assert list(generation.comments)[-1].startswith("Weighted CLIP: at 78: ")
    generation = fake.armed(forge, "a1111")
    generation.setup_conds("a ) " * 40)
    assert len(generation.comments) == 21
    assert list(generation.comments)[-1] == "Weighted CLIP: and 20 more problems."


def test_setting_emphasis_none_makes_brackets_text(
    forge: fake.ForgeModel, host_options: SimpleNamespace, tmp_path: Path
) -> None:
    host_options.emphasis = "None"
    [ours] = conditioning(forge, PROMPT)
    theirs = expected(native(tmp_path), PROMPT, syntax="none", scheme="unweighted", chunking="a1111")
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_comma_setting_counts_where_the_hosts_encoder_reads_it(
    a1111: fake.A1111Model, forge: fake.ForgeModel, host_options: SimpleNamespace, tmp_path: Path
) -> None:
    host_options.comma_padding_backtrack = 0
    text = "word " * 70 + ", " + "other " * 20
    neo = fake.ForgeModel(fake.ReadingForgeEngine(fake.text_model()))
    for model, backtrack in ((a1111, 0), (forge, 20), (neo, 0)):
        [ours] = conditioning(model, text)
        theirs = expected(native(tmp_path), text, comma_backtrack=backtrack)
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_wrong_values_of_the_api_stop_the_generation(forge: fake.ForgeModel) -> None:
    with pytest.raises(WebUIError, match=r"Scheme must be one of: comfy, a1111.*got 'A1111'"):
        conditioning(forge, PROMPT, scheme="A1111")
    generation = fake.armed(forge, *["a1111"] * 21)
    with pytest.raises(WebUIError, match=r"takes 21 values .*got 22"):
        generation.setup_conds(PROMPT)
    assert not generation.extra_generation_params


def test_unknown_models_are_the_hosts_and_changed_engines_are_refused(
    forge: fake.ForgeModel, a1111: fake.A1111Model, host_options: SimpleNamespace
) -> None:
    unknown = SimpleNamespace(
        cond_stage_model=None, get_learned_conditioning=lambda texts: torch.ones(len(texts), 2, 3)
    )
    with pytest.raises(UnknownEncodersError, match=r"no CLIP text encoder it knows in this model \(SimpleNamespace\)"):
        engines_of(unknown)
    stock = forge.get_learned_conditioning([PROMPT])
    forge.__dict__["text_processing_engine_t5"] = object()
    with pytest.raises(UnknownEncodersError, match=r"another kind of text encoder \(t5\): switch Weighted CLIP off"):
        engines_of(forge)
    for model, expected in ((unknown, torch.ones(1, 2, 3)), (forge, stock)):
        generation = fake.armed(model, scheme="masked_blend")
        assert torch.equal(generation.setup_conds(PROMPT)[0], expected)
        assert any(f"does not know this WebUI's {type(model).__name__}" in line for line in generation.comments)
    del forge.__dict__["text_processing_engine_t5"]

    def theirs(tokens: Any, multipliers: Any) -> Any:
        raise AssertionError

    a1111.cond_stage_model.process_tokens = theirs
    with pytest.raises(WebUIError, match=r"Another extension \(.*test_webui\) has replaced process_tokens"):
        conditioning(a1111, PROMPT)
    del a1111.cond_stage_model.process_tokens
    host_options.use_old_emphasis_implementation = True
    with pytest.raises(WebUIError, match="Use old emphasis implementation"):
        conditioning(a1111, PROMPT)


def test_a_host_that_does_not_ask_is_noticed(forge: fake.ForgeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.ForgeModel, "get_learned_conditioning", lambda self, texts: torch.zeros(1, 77, 4))
    with pytest.raises(WebUIError, match="encoded without asking"):
        conditioning(forge, PROMPT)


def test_a_host_without_the_way_in_is_told() -> None:
    comments: list[str] = []
    generation = SimpleNamespace(comment=comments.append, extra_generation_params={})
    arm(generation, [True])
    assert "is not used" in comments[0]
    assert not generation.extra_generation_params


LINES = "red cat: left half ~0.1, 0-0.4\nblue dog: 0 0.5, 0 1, outside 0.2"


@pytest.mark.parametrize(
    ("changes", "written"),
    [
        ({}, {}),
        ({"padding": "mask", "law": "compel"}, {"padding": "mask", "law": "compel"}),
        ({"places": LINES}, {"places": LINES}),
        ({"word_maps": True}, {"word maps": "True"}),
        ({"bind": "a\nb", "bind_strength": 0.35}, {"bind": "a\nb", "bind strength": "0.35"}),
        ({"joins": "neutral-prompt"}, {"joins": "neutral-prompt"}),
        ({"glides": "prompt-fusion"}, {"glides": "prompt-fusion"}),
    ],
)
def test_settings_go_into_the_parameters_and_come_back(
    forge: fake.ForgeModel, changes: dict[str, Any], written: dict[str, str]
) -> None:
    settings = Settings(True, "masked_blend", **changes)
    generation = fake.Generation(forge)
    arm(generation, list(vars(settings).values()))
    parameters = {key: str(value) for key, value in generation.extra_generation_params.items()}
    assert parameters == {INFOTEXT: "masked_blend", **{f"Weighted CLIP {name}": text for name, text in written.items()}}
    assert Settings(**{name: pasted(name, parameters) for name in vars(settings)}) == settings


def test_parameters_without_ours_switch_the_script_off() -> None:
    foreign = {"Steps": "20"}
    assert pasted("enabled", foreign) is False
    assert {pasted(name, foreign) for name in vars(Settings()) if name != "enabled"} == {None}
    assert infotext_key("mask_method") == "Weighted CLIP mask method"
