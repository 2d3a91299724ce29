"""Commit against commit: two builds measured in turn on the same cores or GPU, and a verdict that may stop early.

``command.py`` is the command line; ``trees.py`` makes a work tree of each commit, ``builds.py`` its environment and
native library; ``repeat.py`` is one worker process; ``session.py`` interleaves them and stops; ``folder.py`` leaves a
run folder of each side that ``seal`` accepts; ``bisect.py`` asks the same question along a history.
"""
