"""CLIP in safetensors files: every layout in use, read, checked and refused."""
