"""CLIP encoders: tensors in, tensors out. Knows nothing of weights, prompts or hosts."""
