"""Weighting schemes: the encodings each needs, and how it folds them; `table.py` lists them all."""
