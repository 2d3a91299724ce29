"""Measures an engine from outside: runs its suites, seals what they showed, compares, and decides.

The flow is ``run -> seal -> compare -> gate -> report``; ``harness.model`` holds the words. Only ``harness.cli`` prints
or exits. ``run`` and the pytest plugin need nothing but the standard library and pytest.
"""

__version__ = "0.1.0"
