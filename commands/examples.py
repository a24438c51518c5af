"""Examples for the help of each command: the text after its name. A test parses each of them as the program would."""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": ("", 'inspect "a (red:1.4) cat"', "lab --weights sd15.safetensors"),
    "inspect": (
        '"a (red:1.4) cat, [blurry]"',
        '"a (red)1.4 cat" --syntax compel',
        "- --json < prompt.txt > tokens.json",
        '"a red cat" --attention cat --layer 6 --weights sd15.safetensors',
    ),
    "schedule": ('"a [cat:dog:0.5] in a [red|blue] hat" --steps 20', '"a cat AND a dog:0.5" --counter "as written"'),
    "convert": ('"a ((red)) [cat]" --to compel', '"(cat:0.8)" --from comfy --to a1111'),
    "encode": (
        '"a (red:1.4) cat" --scheme masked_blend --weights sd15.safetensors',
        '"a red cat and a blue dog" --bind "red cat" --bind "blue dog" --weights sd15.safetensors',
        "--batch prompts.txt --weights sdxl.safetensors --save-dtype fp16 --out encoded",
    ),
    "rerank": ('"a red cat" images --weights clip.safetensors --keep 4 --chart best.png',),
    "similarity": (
        'images --text "a red cat" --text "a blue dog" --weights clip.safetensors --chart matrix.png',
        'photo.jpg --texts captions.txt --weights clip.safetensors --softmax "over texts" --json',
    ),
    "sort": (
        'photos --labels "cat,dog,no animal" --weights clip.safetensors --out sorted',
        "photos --examples known --weights clip.safetensors --out sorted --move animals",
    ),
    "stretch": ("clip.safetensors", "clip.safetensors --positions 305 --out long.safetensors"),
    "train": ("data --weights clip.safetensors --out run",),
    "dalle": ("demo out", 'sample dalle.safetensors "a small red ring" --out images'),
    "dalle shapes": ("shapes",),
    "dalle train-vae": ("shapes/train --recipe small --out vae",),
    "dalle train": ("shapes/train --dvae vae/dvae.safetensors --recipe small --out prior",),
    "dalle sample": ('prior/dalle.safetensors "a small red ring at the top" --out images --count 16',),
    "dalle demo": ("demo",),
    "convert-dvae": ("encoder.pkl decoder.pkl dvae.safetensors",),
    "convert-rudalle": ("pytorch_model.bin rudalle.safetensors",),
    "lab": (
        "--weights sd15.safetensors",
        "--models ComfyUI/models --model sdxl.safetensors --embeddings ComfyUI/models/embeddings",
        "--no-browser --port 8000",
    ),
    "parity": ("--hosts hosts", "--quick"),
    "bench": ("", "--quick"),
}
"""Examples by command, for parts of ``dalle`` including the part's name; "" is the program itself."""


def examples(prog: str) -> str:
    """Examples of a command, one per line.

    Args:
        prog: Program and command as typed, such as ``weighted-clip dalle train``.

    >>> print(examples("weighted-clip dalle demo"))
    examples:
      weighted-clip dalle demo demo
    """
    name = max((name for name in EXAMPLES if prog.endswith(f" {name}")), key=len, default="")
    return "\n".join(["examples:", *(f"  {prog} {example}".rstrip() for example in EXAMPLES[name])])
