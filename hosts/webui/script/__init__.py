"""What the WebUI's page and its API see: axes, infotext, the lab, notes and routes."""
