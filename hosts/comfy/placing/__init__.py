"""Phrases and prompts placed in ComfyUI's pictures, their maps, and how people see them."""
