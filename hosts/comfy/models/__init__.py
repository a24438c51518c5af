"""Models that ComfyUI manages: our CLIP, DALL·E and the small world, and the files beside them."""
