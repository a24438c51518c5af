"""The lab's tabs, and what they compute."""
