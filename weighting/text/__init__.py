"""Records of a prompt's text: its fragments, tags, embeddings, tokens and problems."""
