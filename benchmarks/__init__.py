"""The command ``bench``: how long parsing, tokenizing and encoding take, beside other programs in the same run.

Speed is a ratio against a peer that was timed in turn with ours, on the same weights and the same machine; nothing
here passes or fails by the clock. Knows every other part of the pack, and nothing of the pack knows it.
"""

from .command import add_options, run

__all__ = ["add_options", "run"]
