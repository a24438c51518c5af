"""ComfyUI: its CLIP as an encoder, and everything related to it."""
