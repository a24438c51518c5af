"""Bytes written whole or not at all: exports and shards."""
