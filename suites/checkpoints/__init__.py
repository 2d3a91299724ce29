"""Small random checkpoints that suites and tests write to disk and load as a user would."""
