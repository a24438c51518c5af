"""The command line: one module per command, which adds its options and the function that runs it."""
