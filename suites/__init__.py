"""What the harness runs: one folder per scope, oracles that import nothing they judge, planted defects."""
