"""The entry of the WebUI (A1111, Forge): an accordion in txt2img and img2img, and a tab.

The WebUI runs it at its start and at every “Reload UI”. The package is loaded once, by path and by a name of its own.
"""
# pyright: reportMissingImports=false

import importlib.util
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

from modules import script_callbacks, scripts, ui_components

NAME, ROOT = "weighted_clip_webui", Path(__file__).resolve().parent.parent

if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec and spec.loader
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])

HOST_PARTS = ("settings", "generation", "script.lab", "script.exchange", "script.axes", "script.routes")
settings, generation, lab, exchange, axes, routes = (import_module(f"{NAME}.hosts.webui.{part}") for part in HOST_PARTS)
accordion, markup, page = (import_module(f"{NAME}.web.lab.{module}") for module in ("accordion", "markup", "page"))
pictures = import_module(f"{NAME}.web.pictures")


class WeightedCLIPScript(scripts.Script):
    """Encodes the prompts of a generation by a scheme of the user's choice."""

    def title(self):
        """The name in the page and, in lower case, in the API."""
        return settings.INFOTEXT

    def show(self, is_img2img):
        """Always there, in txt2img and img2img."""
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        """The controls, in the order in which the API takes their values."""
        input_accordion, first = getattr(ui_components, "InputAccordion", None), settings.first_values()
        give = exchange.values_for_script
        controls, said = accordion.build_accordion(self.title(), self.elem_id, first, input_accordion, give)
        self.infotext_fields = [
            *((control, partial(settings.pasted, name)) for name, control in controls.items()),
            (said, lambda parameters: markup.passing(markup.problems(settings.untaken(parameters)))),
        ]
        self.paste_field_names = [settings.infotext_key(name) for name in controls if name != "enabled"]
        return list(controls.values())

    def process(self, p, *values):
        """Before a generation."""
        generation.arm(p, values)

    def process_before_every_sampling(self, p, *values, x, **named):
        """Called before the first pass and before hires. fix."""
        generation.begin_pass(p, x)

    def postprocess(self, p, processed, *values):
        """After a generation that went well."""
        generation.report(p, processed)
        generation.add_word_maps(p, processed, pictures.draw_word_maps)


def _tabs():
    shared = {"run": lab.run_in_queue, "options": lab.base_options(), "take": exchange.options_for_tab}
    return [(page.build_page(lab.loaded_model, is_in_webui=True, **shared), settings.INFOTEXT, "weighted_clip")]


script_callbacks.on_ui_tabs(_tabs)
script_callbacks.on_before_ui(axes.add_axes)
script_callbacks.on_infotext_pasted(lambda _, parameters: settings.take(parameters))
routes.add_to(script_callbacks)
