"""DALL·E: images as tokens by a discrete VAE, and its losses. Torch alone; ``studio/training/`` trains it."""
