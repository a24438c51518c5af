"""How each family of ComfyUI's diffusion models is built: its attention layers, queries and connectors."""
