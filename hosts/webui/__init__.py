"""A1111, Forge and Forge Classic: their text encoders, replaced for one generation."""
