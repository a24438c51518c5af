"""Parts of a model that are trained, and what keeps the rest as it was."""
