"""Prompts and weights: strings in, chunks and conditioning out. Knows an encoder only as a function."""
