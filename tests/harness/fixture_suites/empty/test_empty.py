"""Nothing to collect."""
