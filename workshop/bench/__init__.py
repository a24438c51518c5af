"""The command ``bench``: times of parsing, tokenizing and encoding, compared with other programs in the same run.

Speed is a ratio to a peer timed in turn with ours, on the same weights and the same machine; nothing here passes or
fails by the clock. It may import every other part of the pack, and none imports it.
"""

from .command import add_arguments, run

__all__ = ["add_arguments", "run"]
