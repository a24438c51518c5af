"""ComfyUI's CLIP as encoders: its towers and tokens, and the conditionings made with them."""
