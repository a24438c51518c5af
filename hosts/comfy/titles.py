"""Display names of nodes that messages quote: they may change, and stand here alone."""

WEIGHTED_CLIP = "Weighted CLIP"
WEIGHTED_PROMPT = "Weighted Prompt"
PLACE_PHRASE = "Place Phrase"
REGIONAL_PROMPT = "Regional Prompt"
WATCH_WORDS = "Watch Words"
READ_GENERATION_DATA = "Read Generation Data"
