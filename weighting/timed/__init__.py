"""Prompts that change with the steps: ``[from:to:when]``, ``[a|b]`` and ``AND``."""
