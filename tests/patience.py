"""How long tests wait for what should happen: a limit is against what never ends, and says nothing of speed."""

SECONDS = 900
"""After so long it hangs. Each wait takes a second or a few; beside other load on two cores it has taken minutes."""
