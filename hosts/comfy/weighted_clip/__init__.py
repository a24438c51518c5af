"""The node Weighted CLIP: a CLIP whose tokens carry weights and whose text towers follow a scheme of ours."""
