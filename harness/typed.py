"""Our own command line as a person can paste it here: what messages say to do next. Standard library only."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path


def typed(*arguments: str) -> str:
    """``python -m harness …`` with the interpreter that runs now, told from the current folder where it lies in it."""
    python, here = Path(sys.executable), Path.cwd()
    shown = python.relative_to(here) if python.is_relative_to(here) else python
    return shlex.join([str(shown), "-m", "harness", *arguments])
