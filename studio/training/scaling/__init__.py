"""Runs over several processes, in less memory, and in lower precision."""
