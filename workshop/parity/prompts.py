"""The fixed prompts of the parity command: forty in each syntax, and more for long texts and for embeddings.

Short and long, nested, raised, lowered, zero and negative weights, odd brackets, escapes, several scripts. Weights stay
between -1 and 2, because a rounding error grows with the weight that multiplies it.
"""

from __future__ import annotations

_SCENE = (
    "an old harbour town at dusk, fishing boats with lanterns, wet cobblestones, a lighthouse on the cliff, gulls over "
    "the market hall, stacked crates, ropes, a sleeping dog beside a bakery door"
)
_STORY = (
    "a red fox walks through fresh snow. behind it the forest is dark; a cabin with one lit window stands on the hill. "
    "smoke rises from the chimney, the sky is green with northern lights. two children watch from the porch: one holds "
    "a lamp, the other a sledge"
)
_LIST = ", ".join(
    f"{colour} {thing}"
    for colour in ("crimson", "emerald", "golden", "violet")
    for thing in ("teapot", "bicycle", "umbrella", "violin", "lantern", "sparrow")
)

COMFY = (
    "",
    "a cat",
    "a photo of a (cat:1.3) on a (mat:0.4)",
    "(masterpiece), best quality, a (blue:1.2) house",
    "((nested)) and (((deeper))) brackets",
    "(a (b) c:1.2), oil painting",
    "((inner override:1.3):0.7) beside (outer (plain) text:0.8)",
    "a (faded:0.5) word",
    "a (gone:0) word and a (second gone:0.0) one",
    "a (negative:-0.5) weight",
    "(everything is raised in this prompt:1.4)",
    "(everything is lowered in this prompt:0.6)",
    "(one:0.1) (two:0.2) (three:0.3) (four:0.4)",
    "(same:0.5) level (twice:0.5) and (thrice:0.5)",
    "(up:1.5) and (down:0.5) and (up again:1.25)",
    "(a long weighted segment of many words that goes on:0.75), short tail",
    "(a long weighted segment of many words that goes on:1.35), short tail",
    "escaped \\(brackets\\) and (\\(inside\\):1.2)",
    "square [brackets] and {braces} are text",
    "unclosed (bracket here",
    "closed) too often (and then:1.3)",
    "(colon: in text) and (time 8:1.1)",
    "(:1.2) colon first",
    "empty () group and (space :1.3) before the colon",
    "punctuation!!! (really?!:1.2) ... -- ;;",
    "numbers 1234567890 (42:1.3) and (3.14:0.8)",
    "a (café:1.2) in (Zürich:0.7), naïve façade",
    "(一只猫:1.3)坐在(垫子:0.6)上",
    "emoji (🐱:1.2) and 🚀 with (👩‍🚀:0.5)",
    "(кошка:1.1) на (коврике:0.9)",
    "UPPER (CASE:1.2) MiXeD (cAsE:0.8)",
    "new\nlines and\ttabs (in\nside:1.2)",
    "supercalifragilisticexpialidocious (antidisestablishmentarianism:1.3)",
    f"{_SCENE}, (oil painting:1.2)",
    f"(storm clouds:1.4), {_SCENE}, {_SCENE}, (wide angle:0.7)",
    f"{_LIST}, (a small (mouse:0.5) in between:1.2), {_LIST}",
    f"({_SCENE}:0.8), ({_LIST}:1.15)",
    f"{_STORY}. (watercolour:1.3), (film grain:0.3), {_STORY}",
    "word " * 74 + "(edge:1.3)",
    "(first:0.5) " + "x y z, " * 40 + "(last:1.5)",
)
"""ComfyUI's syntax. No word in it means anything to prompt-control."""

A1111 = (
    "",
    "a cat",
    "a photo of a (cat:1.3) on a (mat:0.4)",
    "(masterpiece), best quality, [low contrast], a (blue:1.2) house",
    "((nested)) and (((deeper))) brackets, [[quiet]]",
    "((cat:1.2):1.5) multiplies, ((dog:0.8)) too",
    "([both]) cancel and [(both)] again",
    "a (faded:0.5) word",
    "a (gone:0) word and a (second gone:0.0) one",
    "a (negative:-0.5) weight",
    "(everything is raised in this prompt:1.4)",
    "(everything is lowered in this prompt:0.6)",
    "(one:0.1) (two:0.2) (three:0.3) (four:0.4)",
    "escaped \\(brackets\\), \\[these\\] and a lone \\ backslash \\\\ twice",
    "(unclosed bracket here",
    "[unclosed square, (and round",
    "closed) too] often (and then:1.3)",
    "crossed (one [two) three] four",
    "(colon: in text), a:b, (time 8:30 pm)",
    "(spaces around : 1.3 ) the number (plus:+1.2)",
    "a wall BREAK a (door:1.3) BREAK a window",
    "BREAK leading and trailing BREAK",
    "double BREAK BREAK break, (inside:1.2) BREAK(after)",
    "(weighted BREAK inside:1) and breakfast, noBREAK",
    "(two words BREAK inside a round bracket)",
    "() (:1.2) [] empty groups",
    "punctuation!!! (really?!:1.2) ... -- ;;",
    "numbers 1234567890 (42:1.3) and (3.14:0.8)",
    "a (café:1.2) in (Zürich:0.7), naïve façade",
    "(一只猫:1.3)坐在[垫子]上",
    "emoji (🐱:1.2) and 🚀 with [👩‍🚀]",
    "(кошка:1.1) на (коврике:0.9)",
    "UPPER (CASE:1.2) MiXeD [cAsE]",
    "new\nlines and\ttabs (in\nside:1.2)",
    f"{_SCENE}, (oil painting:1.2)",
    f"(storm clouds:1.4), {_SCENE}, {_SCENE}, (wide angle:0.7)",
    f"{_LIST}, (a small [mouse] in between:1.2), {_LIST}",
    f"({_SCENE}:0.8) BREAK ({_LIST}:1.15)",
    "word " * 70 + "comma, (edge case:1.3) " + "word " * 10,
    "(first:0.5) " + "x y z, " * 40 + "(last:1.5)",
)
"""Syntax of A1111 and Forge, with BREAK."""

CLEANED = (
    "a woman’s “red” hat",
    "(“nested” quotes:1.3), [a ‘single’ one] and «guillemets»",
    "rock &amp; roll, (caf&eacute;:1.2), &lt;b&gt;",
    "a <b> stays &amp; (so do &quot;entities&quot; here:0.8)",
    "an oﬃce in (ﬂorence:1.2), ＦＵＬＬ ＷＩＤＴＨ",
    "schÃ¶n, (donâ€™t:1.2), cafÃ© au lait",
    "<|EndOfText|> inside (a “prompt”:1.2)",
    "zero\x00width\u200b and (soft\u00adhyphen:1.3)\ufeff",
    "# the subject\na cat # (ugly:1.3)\nin a (bowl:1.2)",
    "#\n##\n(a # comment\nin a group:1.3)",
    "a “quoted” # comment with “quotes”\nBREAK (an &amp; b:0.7) # BREAK",
)
"""The same with text that Forge repairs, and comments, which it removes."""

COMPEL = (
    "",
    "a cat",
    "a cat+ on a mat-",
    "a red++ cat and a blue-- dog",
    "(two words)+ then plain",
    "(two words)1.3 then (faded pair)0.4",
    "(gone)0.0 and (almost gone)0.05",
    "a (faded)0.5 word",
    "((nested plus)+ and more)+ brackets",
    "((nested)0.5 inside (a raised group)1.2)0.8",
    "(everything is raised in this prompt)1.4",
    "(everything is lowered in this prompt)0.6",
    "(one)0.1 (two)0.2 (three)0.3 (four)0.4",
    "(same)0.5 level (twice)0.5 and (thrice)0.5",
    "(up)1.5 and (down)0.5 and (up again)1.25",
    '"a quoted string"1.2 and "another one"--',
    "a (b c)+ d (e f)- g",
    "(ends with a weight)0.7",
    "(starts)0.7 with a weight",
    "(first)0.9 (neighbours)0.8 (of different)0.7 (weight)0.6",
    "escaped \\(brackets\\) and (\\(inside\\))1.2",
    "unclosed (bracket here",
    "closed) too often (and then)1.3",
    "mid-century chair, c++ code, a-b-c",
    "commas,without,spaces (in, side)+ , and dots. (a. b.)0.8",
    "numbers 1234567890 (42)1.3 and (three)0.8",
    "a café+ in Zürich--, naïve façade",
    "(一只猫)1.3 坐在 (垫子)0.6 上",
    "emoji (🐱)1.2 and 🚀 with (👩‍🚀)0.5",
    "(кошка)1.1 на (коврике)0.9",
    "UPPER (CASE)1.2 MiXeD (cAsE)0.8",
    "punctuation!!! really?! ... -- ;;",
    "cat.attend(1.2) and (a dog).attend(0.5)",
    '("a cat", "a dog").blend(0.7, 0.3)',
    '("a red+ cat", "a dog--", "a bird").blend(1, 1, 0.5)',
    '("a cat", "a dog").blend(1, -0.4, no_normalize)',
    '("a cat on a mat", "a (dog)0.5 in the garden").and()',
    '("a cat", "a dog in the garden").and(1, 0.5)',
    f"{_SCENE}, (oil painting)1.2",
    "(the harbour)0.8 at dusk, (the lighthouse)0.5, (fishing boats)1.3, wet cobblestones, (gulls)0.3 over the roofs",
)
"""compel's syntax; each fits into one chunk."""

COMPEL_LONG = (
    f"{_STORY}. {_STORY}",
    f"{_STORY}. (watercolour)1.3, (film grain)0.3, {_STORY}",
    f"{_SCENE}, {_SCENE}, {_SCENE}",
    f"(storm clouds)1.4, {_SCENE}, {_SCENE}, (wide angle)0.7",
    f"{_SCENE}, ({_LIST})0.6, (at the end)0.8",
    f"{_LIST}, a (small mouse)0.5 in between, {_LIST}",
    "word " * 75 + "(edge)0.6",
    "(first)0.5 " + "x y z, " * 40 + "(last)1.5",
    "antidisestablishmentarianism " * 20 + "(end)0.8",
    f'("{_STORY}", "a dog").blend(0.6, 0.4)',
)
"""compel's syntax, longer than a chunk; a lowered group extends across the end of one."""

EMBEDDINGS = (
    "zqone",
    "a photo of zqone",
    "(zqeight:1.3), a [zqone] cat",
    "zqeight and zqone, zqeight again, (zqone:0.6)",
    "ZQEIGHT Long beside zqeight, (zqeight long:1.2), zqeight longer",
    "azqone zqoneb zqone,zqone",
    "a wall BREAK zqeight BREAK (zqone:1.3) window",
    "embedding:zqone, a cat",
    "(zqeight:0) and (zqone:-0.5)",
    "zqeight <|endoftext|> zqone",
    "word " * 67 + "zqeight (end:1.3)",
    "word " * 68 + "(zqeight:0.7) end",
    "word " * 74 + "zqone (end:1.3)",
    "zqeight " * 10,
    f"zqone, {_SCENE}, ({_SCENE}:1.2), (zqeight:1.2), {_SCENE}, zqone",
)
"""Syntax of A1111 and Forge with names of the embeddings in ``embeddings.py``, including at the end of a chunk."""

EMBEDDINGS_MOVED = (
    "word " * 60 + ", zqeight " + "end " * 20,
    "word " * 60 + ", one (zqeight:1.3) " + "end " * 20,
    "(zqone:1.2), " + "word " * 54 + ", zqone a zqeight long zqone " + "end " * 20,
    f"{_SCENE}, {'word ' * 24}, [zqone] {'end ' * 20}",
)
"""The same where the comma rule moves a name to the next chunk."""

PROMPTS = {
    "comfy": COMFY,
    "a1111": A1111,
    "cleaned": CLEANED,
    "compel": COMPEL,
    "compel long": COMPEL_LONG,
    "embeddings": EMBEDDINGS,
    "embeddings moved": EMBEDDINGS_MOVED,
}
"""All lists by name."""
