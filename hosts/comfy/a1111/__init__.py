"""Noise, schedules and samplers of A1111 and Forge for ComfyUI's samplers."""
