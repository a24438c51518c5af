"""Noise, schedules and settings of A1111 and Forge, against draws, sigmas and infotexts of Forge's own."""

import math
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from weighted_clip.hosts.comfy.a1111.brownian import BrownianPath
from weighted_clip.hosts.comfy.a1111.image_text import read_image_text
from weighted_clip.hosts.comfy.a1111.noise import A1111Noise, batch_note
from weighted_clip.hosts.comfy.a1111.parameters import read_parameters
from weighted_clip.hosts.comfy.a1111.samplers import KINDS, Counting, _noise_of_paths, make_run, make_sampler
from weighted_clip.hosts.comfy.a1111.schedules import LcmSigmas, Sigmas, make_sigmas
from weighted_clip.hosts.comfy.clip.timed_prompts import stable_diffusion_sigma
from weighted_clip.weighting.infotext import read_infotext

from .fake_comfy import encode

INFOTEXT = (
    "a (red:1.3) cat AND a dog:0.5\nNegative prompt: blurry\nSteps: 20, Sampler: DPM++ 2M, Schedule type: Karras, CFG "
    "scale: 7, Seed: 4294967299, Size: 512x768, Model hash: 0123456789, Model: seeded, Variation seed: 5, Variation "
    "seed strength: 0.25, Seed resize from: 512x512, ENSD: 31337, RNG: CPU, Clip skip: 2, Emphasis: No norm, "
    "Version: f2"
)


def sd_sigmas(*, is_sdxl: bool = False) -> Sigmas:
    """Sigmas of SD 1.5: betas from 0.00085 to 0.012, even in their square roots."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    alphas = torch.cumprod(1.0 - betas, 0)
    table = ((1 - alphas) / alphas) ** 0.5
    return Sigmas(table.float(), table.log().float(), is_sdxl=is_sdxl)


class DiscreteSampling:
    """ComfyUI's `model_sampling` of SD 1.5."""

    sigmas, log_sigmas = sd_sigmas().table, sd_sigmas().logs

    @staticmethod
    def percent_to_sigma(percent: float) -> float:
        """Level at a share of the way."""
        return stable_diffusion_sigma(percent) if 0 < percent < 1 else (1e9 if percent <= 0 else 0.0)


SAMPLING = DiscreteSampling()


@pytest.mark.cases("webui_noise")
def test_noise_equals_forges(case: dict) -> None:
    noise, shape = A1111Noise(**case["noise"]), [case["batch"], *case["shape"]]
    draw = noise.step_noise(shape)
    found = [noise.generate_noise({"samples": torch.zeros(shape)}), draw(), draw()]
    assert torch.equal(torch.stack(found), torch.tensor(case["expected"]).view(3, *shape))


@pytest.mark.cases("webui_sigmas")
def test_sigmas_equal_forges(case: dict) -> None:
    sigmas = sd_sigmas(is_sdxl=case["model"] == "SDXL")
    sigmas = LcmSigmas(sigmas) if case["model"] == "LCM" else sigmas
    found = make_sigmas(case["schedule"], sigmas, case["steps"])
    # the last bits of exp and pow depend on the processor
    torch.testing.assert_close(found, torch.tensor(case["expected"]), rtol=3e-7, atol=0)


@pytest.mark.parametrize("steps", [4, 11])
def test_sigmas_of_align_your_steps_are_the_same_for_lcm(steps: int) -> None:
    """They are the model's own, SD's or SDXL's."""
    for sigmas in (sd_sigmas(), sd_sigmas(is_sdxl=True)):
        whole, kept = (make_sigmas("Align Your Steps", one, steps) for one in (sigmas, LcmSigmas(sigmas)))
        assert torch.equal(whole, kept)


@pytest.mark.cases("webui_brownian")
def test_a_brownian_path_equals_torchsdes(case: dict) -> None:
    first, last = case["ends"]
    path = BrownianPath(case["seed"], case["source"], (first, last), (2, 2, 3))
    for (low, high), expected in zip(case["times"], case["expected"], strict=True):
        # torchsde subtracts in float32, whatever the length of the interval
        found = path.between(low, high).flatten().float()
        torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_noise_of_a_step_down_is_the_increment_the_other_way() -> None:
    """Increments of unit variance, of a path for each picture, as in k-diffusion's `BrownianTreeNoiseSampler`."""
    latents, ends = torch.zeros(2, 4, 3, 3), (0.03, 14.6)
    draw = _noise_of_paths(latents, A1111Noise(5, "CPU"), ends, {})
    paths = [BrownianPath(seed, "CPU", ends, latents.shape[1:]) for seed in (5, 6)]
    expected = torch.stack([path.between(0.5, 2.5) for path in paths]).float() / 2**0.5
    torch.testing.assert_close(draw(2.5, 0.5), -expected)
    torch.testing.assert_close(draw(0.5, 2.5), expected)


def test_increments_of_a_brownian_path_add_up() -> None:
    path = BrownianPath(7, "NV", (0.0, 4.0), (50, 50))
    whole, parts = path.between(0.5, 3.7), path.between(0.5, 1.0) + path.between(1.0, 3.7)
    torch.testing.assert_close(whole, parts, rtol=1e-12, atol=1e-12)
    assert path.between(1.0, 3.0).std().item() == pytest.approx(2**0.5, rel=0.05)


@pytest.mark.parametrize(
    ("shape", "index", "message"),
    [((1, 4, 3, 8, 8), None, r"\[1, 4, 3, 8, 8\]"), ((2, 4, 8, 8), [1, 2], r"pictures \[1, 2\]")],
)
def test_latents_that_a1111_does_not_have_are_refused(shape: tuple, index: Any, message: str) -> None:
    latent = {"samples": torch.zeros(shape), **({"batch_index": index} if index else {})}
    with pytest.raises(ValueError, match=message):
        A1111Noise(1).generate_noise(latent)


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_a_picture_of_a_batch_is_drawn_alone_by_the_seed_of_its_text(strength: float) -> None:
    """As A1111 counts: the seed moves, or with a variation its seed."""
    first = A1111Noise(5, "CPU", subseed=50, subseed_strength=strength)
    alone = A1111Noise(5 if strength else 7, "CPU", subseed=52 if strength else 50, subseed_strength=strength)
    latents = [noise.generate_noise({"samples": torch.zeros(n, 4, 8, 8)}) for noise, n in ((first, 4), (alone, 1))]
    assert torch.equal(latents[0][2:3], latents[1])
    assert torch.equal(first.step_noise([4, 4, 8, 8])()[2:3], alone.step_noise([1, 4, 8, 8])())
    note = batch_note(alone, "4", "2", "Euler a")
    assert "picture 3 of 4" in note and f"from {50 if strength else 5};" in note


def test_a_picture_of_a_batch_whose_noise_was_one_is_not_promised() -> None:
    assert "another" in batch_note(A1111Noise(7), "4", "2", "DPM++ SDE Karras")


@pytest.mark.parametrize(("size", "position"), [("4", "4"), ("4", "-1"), ("x", "0"), ("4", "9" * 5000), ("2", "?")])
def test_a_place_in_no_batch_is_named(size: str, position: str) -> None:
    note = batch_note(A1111Noise(7), size, position, "Euler")
    assert "not a place in a batch" in note and len(note) < 200


@pytest.mark.parametrize("strength", [float("nan"), -0.1, 1.5])
def test_an_impossible_strength_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        A1111Noise(1, subseed_strength=strength)


@pytest.mark.parametrize("sampler", KINDS)
def test_denoise_does_a_share_of_the_steps_or_all_of_them(sampler: str) -> None:
    """8 steps at 0.6: 5 of 8 sigmas, or the last 8 of 13, as Forge; those of steps are one less."""
    sigmas, by_steps = sd_sigmas(), not isinstance(KINDS[sampler].run, str)
    for exact, calls in ((False, 5), (True, 8)):
        run = make_run(sigmas, sampler, "Automatic", 8, 0.6, exact=exact)
        assert len(run.steps) == calls - 1 if by_steps else len(run.sigmas) == calls + 1
        assert run.sigmas[0] < sigmas.largest


class Bell:
    """A model in ComfyUI's sampler that denoises for pictures whose pixels have mean 0 and this variance."""

    variance = 0.25
    inner_model = SimpleNamespace(conds={})
    noise, latent_image = torch.ones(1, 4, 2, 2), torch.full((1, 4, 2, 2), 0.3)

    def __call__(self, x: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
        return x * self.variance / (self.variance + sigma.view(-1, 1, 1, 1) ** 2)


@pytest.mark.parametrize("denoise", [1.0, 0.6])
@pytest.mark.parametrize(("sampler", "limit"), [("DDIM", 0.03), ("PLMS", 0.005), ("UniPC", 0.01)])
def test_samplers_of_steps_follow_the_exact_path(
    sampler: str, limit: float, denoise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two times a latent of `Bell` grows as the standard deviation of noised pictures does."""
    ksampler = SimpleNamespace(KSAMPLER=lambda function: SimpleNamespace(sampler_function=function))
    monkeypatch.setattr("weighted_clip.hosts.comfy.a1111.samplers.host", lambda _: ksampler)
    sigmas, by_time = sd_sigmas(), sampler == "UniPC"
    run = make_run(sigmas, sampler, "Automatic", 100, denoise, exact=False)
    sample = make_sampler(sampler, run, A1111Noise(1), sigmas).sampler_function
    result = sample(Bell(), Bell.noise, run.sigmas, extra_args={}, callback=lambda _: None, disable=True)

    share = 1 / (sigmas.table**2 + 1)
    deviation = (share * Bell.variance + 1 - share).sqrt()
    assert (run.start is None) == (denoise == 1)
    first, begin = Bell.noise, 999 if by_time else run.steps[0]
    if run.start is not None:
        first, begin = share[run.start].sqrt() * Bell.latent_image + (1 - share[run.start]).sqrt() * first, run.steps[0]
    end = 0 if by_time else run.steps[-1]
    torch.testing.assert_close(result, first * deviation[end] / deviation[begin], rtol=limit, atol=0)


def test_settings_become_inputs_of_nodes() -> None:
    found = read_parameters(read_infotext(INFOTEXT), "NV")
    assert found.noise == A1111Noise(4294967299, "CPU", 31337, 5, 0.25, 512, 512)
    assert (found.sampler, found.schedule, found.steps, found.cfg) == ("DPM++ 2M", "Karras", 20, 7 * 1.5)
    assert (found.width, found.height, found.clip_skip) == (512, 768, -2)
    assert (found.prompt, found.negative) == ("a (red:1.3) cat AND a dog:0.5", "blurry")
    assert (found.model, found.model_hash) == ("seeded", "0123456789")
    assert [row.name for row in found.rows if row.advice] == []
    assert [line.split(":")[0] for line in found.notes] == ["AND"]


def test_what_was_left_out_or_guessed_is_in_the_report() -> None:
    found = read_parameters(read_infotext("a cat. Steps: 20, Sampler: Euler a, Seed: 7, CFG scale: 7, x"), "NV")
    assert found.prompt == "a cat."
    assert [words in line for words, line in zip(("within a line", "“x”"), found.notes, strict=False)] == [True, True]
    with pytest.raises(ValueError, match=r"(?s)there are no settings .* cannot be split"):
        read_parameters(read_infotext("a cat\nSteps: 20 Seed: 7"), "NV")


def test_templates_of_dynamic_prompts_are_no_false_alarm() -> None:
    lines = "Template: a {cat|dog}, x: y\nNegative Template: b"
    rows = {row.name: row.advice for row in read_parameters(read_infotext(f"{INFOTEXT}\n{lines}"), "NV").rows}
    assert rows["Template"] == rows["Negative Template"] == ""


def test_a_batch_is_no_false_alarm() -> None:
    found = read_parameters(read_infotext(f"{INFOTEXT}, Batch size: 4, Batch pos: 2"), "NV")
    assert [line.split(":")[0] for line in found.notes] == ["AND", "Batch"]
    assert [row.name for row in found.rows if row.advice] == []


def test_weights_of_parts_that_cannot_be_used_are_refused_or_give_a_finite_cfg() -> None:
    nines = "9" * 400
    with pytest.raises(ValueError, match="the parts between ANDs weigh 1e\\+30 together, and cfg"):
        read_parameters(read_infotext(INFOTEXT.replace("a dog:0.5", f"a AND b:{nines}")), "NV")
    opposite = read_infotext(INFOTEXT.replace("a dog:0.5", f"a:{nines} AND b:-{nines}"))
    assert math.isfinite(read_parameters(opposite, "NV").cfg)


def test_every_setting_that_can_change_the_picture_is_reported() -> None:
    more = 'Eta: 0.5, Hires upscale: 2, Denoising strength: 0.6, ADetailer model: face, Lora hashes: "x: 1"'
    report = read_parameters(read_infotext(f"{INFOTEXT}, {more}"), "NV").report()
    assert [line.split(":")[0] for line in report][:4] == ["Hires. fix", "Eta", "ADetailer model", "AND"]
    assert "Denoising strength 0.6" in report[0]


SECOND_ORDER = ("DPM++ SDE", "DPM++ 2S a", "Heun", "DPM2", "DPM2 a")


def levels_of_calls(sampler: str, sigmas: list[float], steps: int) -> list[float]:
    """Noise levels at which Forge asks the model, written out from its samplers' loops."""
    if sampler in ("DDIM", "UniPC"):
        # steps that do not divide 1000 make one more time, of which DDIM uses all but one
        times = len(range(0, 1000, 1000 // steps))
        return sigmas[: times - (sampler == "DDIM")]
    if sampler == "PLMS":
        return [*sigmas[:2], *sigmas[1:-1]]
    found = []
    for before, after in pairwise(sigmas):
        found.append(before)
        if after > 0 and sampler in ("DPM++ SDE", "DPM2"):
            found.append((before * after) ** 0.5)
        elif after > 0 and sampler in SECOND_ORDER:
            found.append(after)
    return found


class Asked:
    """A model in ComfyUI's sampler, that answers with what it reads at a noise level."""

    def __init__(self, conditioning: Any) -> None:
        entries = [{"hidden": hidden, **values} for hidden, values in conditioning]
        for entry in entries:
            for end in {"start", "end"} & {key.removesuffix("_percent") for key in entry}:
                entry[f"timestep_{end}"] = SAMPLING.percent_to_sigma(entry[f"{end}_percent"])
        self.inner_model = SimpleNamespace(conds={"positive": entries, "negative": []})

    def __call__(self, sigma: float) -> list[torch.Tensor]:
        entries = self.inner_model.conds["positive"]
        return [
            entry["hidden"]
            for entry in entries
            if entry.get("timestep_end", -1.0) <= sigma <= entry.get("timestep_start", math.inf)
        ]


EDITED = {"a [red:blue:0.5] cat": (0.5, "red", "blue"), "a [red:blue:0.95] cat": (0.95, "red", "blue")}


@pytest.mark.parametrize("steps", [6, 8])
@pytest.mark.parametrize("sampler", KINDS)
@pytest.mark.parametrize("prompt", [*EDITED, "[red|blue]", "[red:blue:4]"])
def test_texts_change_at_the_call_at_which_forge_changes_them(sampler: str, steps: int, prompt: str) -> None:
    counted = steps * (2 if sampler in SECOND_ORDER else 1)
    if prompt in EDITED:
        share, before, after = EDITED[prompt]
        expected = [before if call <= int(share * counted) else after for call in range(2 * steps + 9)]
    elif "|" in prompt:
        expected = [("red", "blue")[(max(call, 1) - 1) % 2] for call in range(2 * steps + 9)]
    else:
        expected = ["red" if call <= 4 else "blue" for call in range(2 * steps + 9)]

    model = SimpleNamespace(get_model_object=lambda _: SAMPLING)
    run = make_run(sd_sigmas(), sampler, "Automatic", steps, 1.0, exact=False)
    sigmas = run.timed(sampler, steps)
    conditioning = encode("A1111Encode", None, prompt, sigmas=sigmas, model=model)["result"][0]
    rows = {word: encode("A1111Encode", None, reading(prompt, word))["result"][0][0][0] for word in ("red", "blue")}
    asked = Asked(conditioning)
    counting = Counting(asked, run.levels_of_calls(KINDS[sampler]))
    for call, level in enumerate(levels_of_calls(sampler, sigmas.tolist(), steps)):
        [hidden] = counting(level)
        assert torch.equal(hidden, rows[expected[call]]), call


def reading(prompt: str, word: str) -> str:
    """The prompt with one of its edits' texts."""
    return re.sub(r"\[.*\]", word, prompt)


def test_ensd_that_forge_does_not_write_is_reported() -> None:
    for more, reported in (("", True), (", ENSD: 31337", False)):
        text = f"a\nSteps: 20, Sampler: LCM, CFG scale: 7, Seed: 1, Size: 64x64, RNG: NV{more}"
        notes = read_parameters(read_infotext(text), "NV").notes
        assert [line.split(":")[0] for line in notes] == ["ENSD"] * reported


def test_a_prompt_of_megabytes_is_refused_at_once() -> None:
    text = f"{'([' * 5_000_000}\nSteps: 20, Sampler: Heun, CFG scale: 7, Seed: 1"
    with pytest.raises(ValueError, match=r"the prompt “(\(\[){20}…” has 10,000,000 characters; at most 65,536"):
        read_parameters(read_infotext(text), "NV")


def test_names_of_before_schedules_had_their_own_setting_are_read() -> None:
    for name, expected in (
        ("DPM++ 2M SDE Heun Karras", ("DPM++ 2M SDE Heun", "Karras")),
        ("Euler a", ("Euler a", "Automatic")),
    ):
        found = read_parameters(read_infotext(f"a\nSteps: 20, Sampler: {name}, CFG scale: 7, Seed: 1"), "CPU")
        assert (found.sampler, found.schedule) == expected
        assert found.noise.source == "CPU" and (found.width, found.height) == (512, 512)
        assert [line.split(" ")[0] for line in found.notes] == ["RNG", "Size"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Sampler: DPM++ 2M", "Sampler: Restart", "“Restart” is not among ours"),
        ("Karras", "Kerras", "“Kerras” is not among ours"),
        ("CFG scale: 7", "CFG scale: nan", "CFG scale must be a number from -1000 to 1000; got “nan”"),
        ("Steps: 20", "Steps: 1e9", "Steps must be a whole number from 1 to 1000; got “1e9”"),
        ("Seed: 4294967299", "Seed: -1", "Seed must be a whole number from 0"),
        ("Seed: 4294967299", f"Seed: {'9' * 5000}", "got “9{40}…”"),
        ("512x768", "512x99999", "Size must be like 512x768, up to 16384 pixels; got “512x99999”"),
        ("Steps: 20, ", "", "“Steps” is missing"),
        ("RNG: CPU", "RNG: TPU", "RNG must be one of: NV, GPU, CPU; got “TPU”"),
        ("Clip skip: 2", "Clip skip: 0", "Clip skip must be a whole number from 1"),
    ],
)
def test_a_setting_that_cannot_be_read_is_quoted(old: str, new: str, message: str) -> None:
    assert old in INFOTEXT
    with pytest.raises(ValueError, match=message):
        read_parameters(read_infotext(INFOTEXT.replace(old, new)), "NV")


def test_a_prompt_alone_is_no_generation_data() -> None:
    with pytest.raises(ValueError, match="there are no settings in “a cat”"):
        read_parameters(read_infotext("a cat"), "NV")


@pytest.mark.parametrize("kind", ["png", "jpg", "webp"])
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip))
def test_generation_data_of_an_image_comes_back(kind: str, text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / f"picture.{kind}"
    picture = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
    if kind == "png":
        info = PngImagePlugin.PngInfo()
        info.add_itxt("parameters", text)
        picture.save(path, pnginfo=info)
    else:
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0x9286] = b"UNICODE\0" + text.encode("utf-16-be")
        picture.save(path, exif=exif)
    assert read_image_text(path)[0] == text


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_generation_data_in_ascii_is_read(suffix: str, tmp_path: Path) -> None:
    exif, path = Image.Exif(), tmp_path / f"picture.{suffix}"
    exif.get_ifd(0x8769)[0x9286] = b"ASCII\0\0\0a cat\nSteps: 20"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path, exif=exif)
    assert read_image_text(path)[0] == "a cat\nSteps: 20"


def test_a_picture_without_generation_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "copy.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(path)
    with pytest.raises(ValueError, match=r"“copy\.png” holds no generation data"):
        read_image_text(path)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 100)
    with pytest.raises(ValueError, match=r"copy\.png"):
        read_image_text(path)
