"""Weights, fields, regions and watched words in the attention of ComfyUI's diffusion models."""
