"""Measures the engine from outside: runs scopes, seals evidence, compares, judges. Imports nothing that it measures."""
