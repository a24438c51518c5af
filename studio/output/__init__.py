"""Atomic writing of files: exports and shards."""
