"""The extension ADetailer, which redraws parts of an image with only those scripts that its setting names.

Source: behaviour of adetailer 25.3.0 (36189cb).
"""

from __future__ import annotations

import contextlib

from .engines import host_option
from .settings import INFOTEXT
from .types import Generation

TITLE = "ADetailer"
SCRIPT = "weighted_clip"
"""File name of our script, by which ADetailer knows it."""
LEFT_OUT = (
    f"ADetailer redraws parts of this image without {INFOTEXT}, by the WebUI's own weights. To have both, add "
    f"{SCRIPT} to its setting “Script names to apply to ADetailer (separated by comma)”."
)


def leaves_us_out(p: Generation) -> bool:
    """Whether ADetailer will redraw parts of a generation's image without our script."""
    if not host_option("ad_only_selected_scripts", default=True):
        return False
    names = str(host_option("ad_script_names", default="")).split(",")
    if SCRIPT in (name.strip() for name in names) or getattr(p, "_ad_disabled", False):
        return False
    scripts = getattr(getattr(p, "scripts", None), "alwayson_scripts", ())
    for script in scripts:
        if script.title() == TITLE:
            with contextlib.suppress(Exception):  # its values are its own business, and may change
                values = list(getattr(p, "script_args", ()))[script.args_from : script.args_to]
                return bool(script.is_ad_enabled(*values))
    return False
