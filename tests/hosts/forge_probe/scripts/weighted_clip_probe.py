"""An extension for the tests of Weighted CLIP: it shows the conditioning of a generation, and can make encoding fail.

Its values in the API: the file to write the conditioning to, or nothing; and which call of a layer in the middle of the
text encoder shall raise, counted from 1, or 0. At a number below 0 that call presses Interrupt instead.
"""

# pyright: reportMissingImports=false

import json
import sys

import gradio as gr
import torch
from modules import script_callbacks, scripts, shared
from safetensors.torch import save_file

LAYERS = ("layers.5.mlp.fc1", "resblocks.5.mlp.c_fc")
"""In the middle of the text model of transformers, and of open_clip."""
PACKAGE = "weighted_clip_webui."


class WeightedCLIPProbe(scripts.Script):
    """Looks at a generation."""

    def title(self):
        """Its name."""
        return "Weighted CLIP probe"

    def show(self, is_img2img):
        """Always there."""
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        """Controls that nobody sees."""
        return [
            gr.Textbox(label="file", value="", visible=False, elem_id=self.elem_id("file")),
            gr.Number(label="fail at", value=0, visible=False, elem_id=self.elem_id("fail_at")),
        ]

    def process(self, p, file, fail_at):
        """Before a generation."""
        if file:
            p.weighted_clip_probe = {"tensors": {}, "ends": {}, "steps": 0}
        if fail_at:
            fail_in_text_encoder(int(fail_at))

    def post_sample(self, p, ps, file, fail_at):
        """After sampling; after hires. fix these are already pictures."""
        if file and torch.is_tensor(ps.samples):
            p.weighted_clip_probe["tensors"]["samples"] = ps.samples

    def postprocess(self, p, processed, file, fail_at):
        """After a generation that went well."""
        if file:
            probe = p.weighted_clip_probe
            tensors = {name: tensor.detach().float().cpu().clone() for name, tensor in probe["tensors"].items()}
            metadata = {
                "ends": json.dumps(probe["ends"]),
                "steps": str(probe["steps"]),
                "comments": processed.comments,
            }
            save_file(tensors, file, metadata=metadata)


def look(params):
    """Take what a sampling step is given."""
    p = params.denoiser.p
    probe = getattr(p, "weighted_clip_probe", None)
    if probe is None:
        return
    step = probe["steps"]
    probe["steps"] += 1
    probe["tensors"][f"step.{step}.cond"] = hidden(params.text_cond)
    probe["tensors"][f"step.{step}.uncond"] = hidden(params.text_uncond)
    positive, negative = p.get_conds()
    number = int(bool(getattr(p, "is_hr_pass", False)))
    for image, (parts, schedule) in enumerate(zip(positive.batch, negative, strict=True)):
        named = {**{str(index): part.schedules for index, part in enumerate(parts)}, "negative": schedule}
        for name, entries in named.items():
            key = f"{number}.{image}.{name}"
            probe["ends"][key] = [int(entry.end_at_step) for entry in entries]
            for index, entry in enumerate(entries):
                probe["tensors"][f"schedule.{key}.{index}"] = hidden(entry.cond)


def hidden(cond):
    """Hidden states; SDXL has pooled ones, too."""
    return cond["crossattn"] if isinstance(cond, dict) else cond


def fail_in_text_encoder(number):
    """Make a call of a layer raise, or press Interrupt, once."""
    calls = []

    def fail(module, args):
        calls.append(None)
        if len(calls) == abs(number):
            handle.remove()
            if number < 0:
                shared.state.interrupt()
                return
            raise RuntimeError(f"the probe was told to fail at call {number}, inside of: {callers() or 'no one else'}")

    handle = text_layer().register_forward_pre_hook(fail)


def text_layer():
    """A layer in the middle of the loaded model's text encoder."""
    model = shared.sd_model
    if not isinstance(model, torch.nn.Module):
        model = model.forge_objects.clip.cond_stage_model
    (layer,) = [module for name, module in model.named_modules() if name.endswith(LAYERS)]
    return layer


def callers():
    """Names of our modules that are at work."""
    frame, names = sys._getframe(), set()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(PACKAGE):
            names.add(name[len(PACKAGE) :])
        frame = frame.f_back
    return ", ".join(sorted(names))


def add_route(demo, app):
    """Let tests do what the button “Reload UI” does."""
    app.add_api_route("/weighted-clip-probe/reload", lambda: shared.state.request_restart(), methods=["POST"])


script_callbacks.on_cfg_denoiser(look)
script_callbacks.on_app_started(add_route)
