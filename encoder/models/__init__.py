"""Networks of CLIP: its layers, its towers, and the ways to run them."""
