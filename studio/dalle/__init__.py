"""DALL·E: images as tokens by a discrete VAE, and its losses. Torch alone; what trains it is in ``studio/training/``."""
