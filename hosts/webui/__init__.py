"""A1111, Forge and Forge Classic: their text encoders, swapped for one generation."""
