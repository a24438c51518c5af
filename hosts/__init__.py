"""Encoders that belong to a host program, as encode functions. Host modules are imported inside functions only."""
