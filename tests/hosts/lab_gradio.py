"""The lab's page in the gradio of a WebUI, in that gradio's own Python, without the WebUI.

    python lab_gradio.py FOLDER_OF_THE_PACK RESULTS.json     call the handlers, write what they gave
    python lab_gradio.py FOLDER_OF_THE_PACK PORT             serve the page until it is ended

As in a WebUI the page is a tab of a larger one, style sheet and scripts are put into the head by replacing gradio's
TemplateResponse, and files are fetched from ``extensions`` in the working directory.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import gradio as gr

PACK = Path(sys.argv[1]).resolve()
EXTENSION = "extensions/weighted-clip"
PROMPT = "a (red:1.4) cat and a (dog:0.5) in a bowl"


def small_model() -> Any:
    """A text encoder of four narrow layers."""
    from weighted_clip.encoder.models.config import TextConfig
    from weighted_clip.web.lab.native import LoadSettings, random_model

    return random_model(LoadSettings(), config=TextConfig(hidden_dim=64, num_layers=4, num_heads=4, mlp_dim=128))


def page_as_tab() -> gr.Blocks:
    """The page between others, as a WebUI puts it there."""
    from weighted_clip.web.lab.page import build_page

    model = small_model()
    page = build_page(lambda: model)
    with gr.Blocks(analytics_enabled=False) as demo, gr.Tabs():
        with gr.Tab("txt2img"):
            box = gr.Textbox(label="Another extension's box", elem_id="other_box")
            box.change(lambda text: text, inputs=box, outputs=box)
        with gr.Tab("Weighted CLIP", elem_id="tab_weighted_clip"):
            page.render()
    return demo


def add_files_to_head() -> None:
    original = gr.routes.templates.TemplateResponse
    script = f'<script type="module" src="file={EXTENSION}/javascript/weighted_clip.mjs?1.5"></script>'
    style = f'<link rel="stylesheet" property="stylesheet" href="file={EXTENSION}/style.css?1.5">'

    def template_response(*arguments: Any, **named: Any) -> Any:
        response = original(*arguments, **named)
        response.body = response.body.replace(b"</head>", f"{script}</head>".encode())
        response.body = response.body.replace(b"</body>", f"{style}</body>".encode())
        response.init_headers()
        return response

    gr.routes.templates.TemplateResponse = template_response


def serve(port: int) -> None:
    folder = Path.cwd() / EXTENSION
    folder.parent.mkdir(exist_ok=True)
    if not folder.exists():
        folder.symlink_to(PACK, target_is_directory=True)
    add_files_to_head()
    demo = page_as_tab().queue(64)
    demo.launch(server_name="127.0.0.1", server_port=port, share=False, quiet=True, allowed_paths=[str(Path.cwd())])


def call_handlers() -> dict[str, Any]:
    """Result of each handler of the page, by name."""
    from weighted_clip.web.lab.handlers import OPTIONS, Handlers
    from weighted_clip.web.lab.tabs.prompt_tabs import CompareTab, ConvertTab, ExportTab, MasksTab, TokensTab
    from weighted_clip.weighting.options import EncodeOptions

    base = EncodeOptions(syntax="a1111", scheme="masked_blend")
    model = small_model()
    handlers = Handlers(lambda: model, base)
    values = [getattr(base, name) for name in OPTIONS]
    job: dict[str, Any] = {}
    exporting = ExportTab(handlers)
    path, report = exporting.export(PROMPT, *values)
    return {
        "gradio": gr.__version__,
        "ids": sorted(block.elem_id for block in page_as_tab().blocks.values() if getattr(block, "elem_id", None)),
        "read": handlers.read(PROMPT, *values)[:3],
        "tokens": TokensTab(handlers).show(PROMPT, *values)[0],
        "masks": MasksTab(handlers).show(1, PROMPT, *values)[1],
        "converted": ConvertTab(handlers).show("compel", PROMPT, *values)[0],
        "compared": list(CompareTab(handlers).compare(job, ["comfy", "masked_blend"], PROMPT, *values))[-1][2],
        "exported": Path(path).stat().st_size,
        "report": report,
    }


if __name__ == "__main__":
    runpy.run_path(str(PACK / "__main__.py"))["load_package"]()
    if sys.argv[2].isdigit():
        serve(int(sys.argv[2]))
    else:
        Path(sys.argv[2]).write_text(json.dumps(call_handlers()), encoding="utf-8")
