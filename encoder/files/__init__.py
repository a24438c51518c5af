"""CLIP in safetensors files: every common layout, read, checked or refused."""
