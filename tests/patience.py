"""Limits of time in tests: against what never ends, never a measure of speed."""

SECONDS = 900
"""After so long it hangs. Each wait takes a second or a few; beside other load on two cores it has taken minutes."""
