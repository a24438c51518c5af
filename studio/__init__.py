"""Makes and measures models; no host needs it to encode."""
