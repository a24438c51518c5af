"""Weights, places and word maps in the attention of the WebUI's diffusion models."""
