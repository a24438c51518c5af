"""A small world of coloured shapes that a program can judge, and a small Stable Diffusion that draws it."""
