"""The published tables, taken again of the model that the repository carries: ``python -m suites.tables``."""
