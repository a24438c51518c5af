"""Prompts and weights: from strings to chunks and conditioning. An encoder is only a function here."""
