"""stable-diffusion-webui-forge: its ClassicTextProcessingEngine on its IntegratedCLIP, in float32 on the CPU.

Settings: ``emphasis``, a name of the WebUI's option. Our script's path leads through the same engine. Comments are
removed by Forge's own function, as in its default settings. ``modules.shared`` is replaced by the two options needed,
because the real one starts the user interface.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


def open_peer(job: dict[str, Any]) -> tuple[dict[str, str], Any, Any]:
    """Load the weights into Forge's text encoder and build the engine; the working directory is its checkout."""
    sys.path.insert(0, str(Path("packages_3rdparty").resolve()))  # as its launcher does
    sys.argv.append("--always-cpu")
    shared = sys.modules["modules.shared"] = ModuleType("modules.shared")
    options = shared.__dict__["opts"] = SimpleNamespace(emphasis="Original", enable_prompt_comments=True)
    shared.__dict__.update(  # where the setting for comments is declared
        options_templates={}, options_section=lambda *_: {}, OptionInfo=lambda *_: SimpleNamespace(info=lambda _: None)
    )

    import torch
    import transformers
    from backend.nn.clip import IntegratedCLIP
    from backend.text_processing.classic_engine import ClassicTextProcessingEngine
    from modules.processing_scripts.comments import strip_comments
    from safetensors.torch import load_file
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    files = Path.cwd() / "backend" / "huggingface" / "runwayml" / "stable-diffusion-v1-5"
    encoder = IntegratedCLIP(CLIPTextModel, CLIPTextConfig.from_pretrained(files / "text_encoder")).float().eval()
    missing = encoder.transformer.load_state_dict(load_file(job["weights"]), strict=False)
    assert not missing.unexpected_keys, missing
    assert all(key.endswith("position_ids") for key in missing.missing_keys), missing
    tokenizer = CLIPTokenizer.from_pretrained(files / "tokenizer")
    engine = ClassicTextProcessingEngine(encoder, tokenizer, embedding_dir=job["embeddings"])
    names = {path.stem for path in Path(job["embeddings"]).iterdir()}
    assert engine.embeddings.word_embeddings.keys() == names, engine.embeddings.skipped_embeddings

    def encode(settings: dict[str, Any], prompt: str) -> torch.Tensor:
        options.emphasis = settings["emphasis"]
        return engine([strip_comments(prompt)])

    match = re.search(r"version = '(.+)'", Path("modules_forge", "forge_version.py").read_text(encoding="utf-8"))
    versions = {"Forge": match[1] if match else "unknown", "transformers": transformers.__version__}
    return versions, encode, lambda options, prompt: ours(engine, options, strip_comments(prompt))


def ours(engine: Any, options: dict[str, Any], prompt: str) -> Any:
    """Result of our script for the prompt with this engine."""
    from ...hosts.webui.conditioning import swapped
    from ...hosts.webui.engines import engines_of
    from ...weighting.options import EncodeOptions

    model: Any = SimpleNamespace(text_processing_engine=engine)
    with swapped(engines_of(model), EncodeOptions(**options)):
        return engine([prompt])
