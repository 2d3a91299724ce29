"""How often a verdict finds a delay that was planted, and how often it raises a false alarm: ``harness power``.

``trial.py`` is one trial, ``study.py`` says which trial comes next and keeps the results, ``rivals.py`` holds the rules
that other tools use, ``summary.py`` the rates with their intervals, ``command.py`` the command line.
"""
