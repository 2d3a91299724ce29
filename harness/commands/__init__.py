"""The command line's grammar and its commands. What they have to say goes to a callable; `harness.cli` prints it."""
