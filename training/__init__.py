"""Training of CLIP's towers by the contrastive loss: data, steps, checkpoints. No host and no front end loads it."""
