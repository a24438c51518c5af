"""Weighting schemes: what each wants encoded, and how it folds the answers; `table.py` lists them all."""
