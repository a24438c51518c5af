"""Phrases of a prompt: found by their tokens, bound, cut off, hidden."""
