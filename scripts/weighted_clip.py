"""The entry of the WebUI (A1111, Forge): an accordion in txt2img and img2img, and a tab.

The WebUI runs this file at its start and at every “Reload UI”. The package around it is loaded once, by path and under
a name of its own, so that other extensions with folders of the same names are not disturbed.
"""

import importlib
import importlib.util
import sys
from functools import partial
from pathlib import Path

from modules import scripts

NAME = "weighted_clip_webui"
ROOT = Path(__file__).resolve().parent.parent

if NAME not in sys.modules:
    spec = importlib.util.spec_from_file_location(NAME, ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(sys.modules[NAME])
    except BaseException:
        del sys.modules[NAME]
        raise

webui = importlib.import_module(f"{NAME}.hosts.webui")
accordion = importlib.import_module(f"{NAME}.web.lab.accordion")

try:
    from modules.ui_components import InputAccordion
except ImportError:
    InputAccordion = None


class WeightedCLIPScript(scripts.Script):
    """Encodes the prompts of a generation by a scheme of the user's choice."""

    def title(self):
        """The name in the page and, in lower case, in the API."""
        return "Weighted CLIP"

    def show(self, is_img2img):
        """Always there, in txt2img and img2img."""
        return scripts.AlwaysVisible

    def ui(self, is_img2img):
        """The controls, in the order in which the API takes their values."""
        controls = accordion.build_accordion(self.title(), self.elem_id, InputAccordion)
        self.infotext_fields = [(control, partial(webui.pasted, name)) for name, control in controls.items()]
        self.paste_field_names = [webui.infotext_key(name) for name in controls if name != "enabled"]
        return list(controls.values())

    def process(self, p, *values):
        """Before a generation."""
        webui.arm(p, values)
