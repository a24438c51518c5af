"""The maintainers' workshop: other programs as peers, comparisons with them, times beside theirs, and single tools.

The archive of the Comfy Registry leaves it out, and no other part of the pack imports it, but for the commands
``bench`` and ``parity``.
"""
