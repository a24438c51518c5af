"""Encoders of host programs as encode functions. Host modules are imported inside functions only."""
