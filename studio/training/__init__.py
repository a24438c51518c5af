"""Contrastive training of CLIP's towers: data, steps, checkpoints. No host and no front end imports it."""
