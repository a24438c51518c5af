"""Pictures of the guides, help pages and templates, drawn by the pack."""
