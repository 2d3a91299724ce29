"""What the harness runs: one folder a scope, oracles that import nothing they judge, planted defects."""
