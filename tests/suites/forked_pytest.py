"""Runs pytest once for each planted defect, each in a fork of one process that has already imported what is slow.

``python -m tests.suites.forked_pytest FOLDER`` reads ``{name: [node ids]}`` from stdin and writes ``FOLDER/<name>.xml``
(JUnit) and ``FOLDER/<name>.log``; the name ``clean`` plants nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  imported for its side effect: seconds are paid once, not once a defect

from suites.defects import PLANT_VARIABLE

CLEAN = "clean"


def run_planted(name: str, nodes: list[str], folder: Path) -> int:
    """pytest over ``nodes`` in this process with the defect ``name`` planted; its exit code."""
    os.environ[PLANT_VARIABLE] = "" if name == CLEAN else name
    arguments = ["-q", "-p", "no:cacheprovider", f"--junitxml={folder / name}.xml", *nodes]
    with (folder / f"{name}.log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        return int(pytest.main(arguments))


def main() -> int:
    """Fork, wait, next."""
    folder = Path(sys.argv[1])
    jobs: dict[str, list[str]] = json.load(sys.stdin)
    for name, nodes in jobs.items():
        child = os.fork()
        if child == 0:
            os._exit(run_planted(name, nodes, folder))
        os.waitpid(child, 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
