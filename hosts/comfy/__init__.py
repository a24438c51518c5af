"""ComfyUI: its CLIP as an encoder, and what hangs on it."""
