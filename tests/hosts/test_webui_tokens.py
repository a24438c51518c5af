"""Tokens by a real WebUI's own tokenizer and default settings, compared with ours: comments, quotes, entities."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import ftfy
import pytest
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading.prompt_reader import read_prompt
from weighted_clip.workshop.find_hosts import Host
from weighted_clip.workshop.job import own_environment, run_in_host

from ..patience import SECONDS

pytestmark = pytest.mark.host

REAL = json.loads((Path(__file__).parents[1] / "data" / "conversion_prompts.json").read_text(encoding="utf-8"))
NUM_PROMPTS = 30_000
CAUSES: dict[str, Callable[[str], bool]] = {
    # its contractions are looked for in any case, and in any case ſ is an s: "'ſt" is the word "'s" to it, and then "t"
    "a long s behind an apostrophe": lambda prompt: "'ſ" in ftfy.fix_text(prompt),
}
"""Allowed causes of differences, each with a test of the prompt."""
MOST = 0.001
"""Part of the prompts that may differ for one cause."""
ODD = (
    *("“red”", "woman’s", "‘a’", "„low“", "‹x›", "«y»", "′", "″", "`", "´", "ʼ", "l’été", "¿qué?"),
    *(
        "&amp;",
        "&lt;b&gt;",
        "&quot;x&quot;",
        "&#39;",
        "&nbsp;",
        "&AMP;",
        "&eacute;t&eacute;",
        "&#x41;",
        "&copy",
        "&;",
        "A&B",
    ),
    *("schÃ¶n", "cafÃ©", "â€œquotedâ€\x9d", "â€™", "Ã", "Â°", "ÃƒÂ©", "ï»¿", "ﬁne", "oﬃce", "ﬀ", "ﬅ", "ǆ", "ﷺ"),
    *(
        "ＡＢＣ",
        "ｈｅｌｌｏ",
        "：1.2",
        "（重）",
        "【x】",
        "，",
        "。",
        "\u3000",
        "①",
        "Ⅳ",
        "㎏",
        "℃",
        "™",
        "©",
        "½",
        "²",
    ),
    *("猫", "東京", "한국어", "مرحبا", "שלום", "नमस्ते", "ไทย", "Ω", "ß", "İstanbul", "é", "e\u0301", "Å"),
    *("😀", "👩‍🚀", "🏳️‍🌈", "‼", "�", "\u00a0", "\u200b", "\u00ad", "\ufeff", "\x00", "\x07", "\x1c", "\x85", "\u2028"),
    *("\u2009", "\x1b[31mred\x1b[0m", "…", "—", "–", "<|endoftext|>", "<|startoftext|>", "<|EndOfText|>", "<b>"),
    *("# note", "#1", "##", "a\nb", "\n#", "\r\n", "\t", "  ", "(a:1.2)", "[b]", "((c))", "\\(d\\)", "\\", "BREAK"),
    *("it's", "IT'S", "1girl", "2000s", "rock & roll", "!!", "???", "__", "~", "^"),
)
PROGRAM = """
import json, sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
given, out = Path(sys.argv[1]), Path(sys.argv[2])
sys.argv[1:] = ["--always-cpu"]
sys.path.insert(0, str(Path("packages_3rdparty").resolve()))
shared = sys.modules["modules.shared"] = ModuleType("modules.shared")  # the real one starts the user interface
shared.opts = SimpleNamespace(emphasis="Original", enable_prompt_comments=True)
shared.options_templates, shared.options_section = {}, lambda *_: {}
shared.OptionInfo = lambda *_: SimpleNamespace(info=lambda _: None)
from backend.text_processing import parsing
from modules.processing_scripts.comments import strip_comments
from transformers import CLIPTokenizer
tokenizer = CLIPTokenizer.from_pretrained(Path("backend/huggingface/runwayml/stable-diffusion-v1-5/tokenizer"))
tokens = []
for prompt in json.loads(given.read_text()):
    parsed = parsing.parse_prompt_attention(strip_comments(prompt), "Original")
    parsed = [(text, weight) for text, weight in parsed if (text, weight) != ("BREAK", -1)]
    texts = [text for text, _ in parsed] or [""]
    ids = tokenizer(texts, truncation=False, add_special_tokens=False)["input_ids"]
    tokens.append([[one, weight] for some, (_, weight) in zip(ids, parsed) for one in some])
out.write_text(json.dumps(tokens))
"""


def prompts() -> Iterator[str]:
    """Prompts that people wrote, and words of theirs with odd ones among them."""
    dice = random.Random(7)
    real = [prompt["prompt"] for prompt in REAL]
    yield from real
    words = [word for prompt in real for word in prompt.split() if "<" not in word]
    for _ in range(NUM_PROMPTS - len(real)):
        picked = dice.choices(words, k=dice.randint(1, 25))
        for _ in range(dice.choice([0, 1, 2, 3, 12])):
            picked.insert(dice.randint(0, len(picked)), dice.choice(ODD))
        if dice.random() < 0.3:
            start = dice.randint(0, len(picked))
            picked.insert(start, dice.choice("(["))
            picked.insert(dice.randint(start + 1, len(picked)), dice.choice([")", "]", ":1.3)", ":0.5)", ": 1.1 )"]))
        yield dice.choice([" ", " ", ", ", ""]).join(picked)


def tokens_of_webui(host: Host, given: Iterable[str], folder: Path) -> list[list[list[float]]]:
    if host.kind != "Forge":
        pytest.skip("the program that asks the host's tokenizer is written for Forge's modules")
    (folder / "prompts.json").write_text(json.dumps(list(given)))
    out = folder / "tokens.json"
    arguments = ["-c", PROGRAM, folder / "prompts.json", out]
    done = run_in_host(host.python, arguments, folder=host.folder, environment=own_environment(), seconds=SECONDS)
    assert done.returncode == 0, done.stdout[-2000:]
    return json.loads(out.read_text())


def our_tokens(prompt: str) -> list[list[object]]:
    read = read_prompt(prompt, EncodeOptions(syntax="a1111"), default_tokenizer())
    return [[token.id, token.weight] for chunk in read.chunks for token in chunk.content]


def test_nearly_all_prompts_have_the_tokens_and_weights_of_the_webui(
    webui_host: Host, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    given = list(prompts())
    assert len(given) == NUM_PROMPTS
    theirs = tokens_of_webui(webui_host, given, tmp_path)
    different = [prompt for prompt, expected in zip(given, theirs, strict=True) if our_tokens(prompt) != expected]
    causes = Counter(next((name for name, is_it in CAUSES.items() if is_it(one)), one) for one in different)
    record_property("different", dict(causes))
    assert set(causes) <= set(CAUSES), [one for one in different if not any(is_it(one) for is_it in CAUSES.values())]
    assert all(count <= MOST * NUM_PROMPTS for count in causes.values()), causes


def test_each_cause_is_one(webui_host: Host, tmp_path: Path) -> None:
    reproducers = ["'ſt"]
    assert all(is_it(prompt) for prompt, is_it in zip(reproducers, CAUSES.values(), strict=True))
    theirs = tokens_of_webui(webui_host, reproducers, tmp_path)
    assert all(our_tokens(prompt) != expected for prompt, expected in zip(reproducers, theirs, strict=True))
