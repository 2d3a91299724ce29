"""A case that has nothing to run over is an error where it is collected, in every scope and in our own tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASE = """
import pytest

@pytest.mark.parametrize("value", {values})
def test_it(value: int) -> None:
    assert value
"""


@pytest.mark.parametrize(("values", "code"), [("[1]", pytest.ExitCode.OK), ("[]", pytest.ExitCode.INTERRUPTED)])
def test_an_empty_parametrisation_is_no_skip(tmp_path: Path, values: str, code: pytest.ExitCode) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(CASE.format(values=values))
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("Empty parameter set in 'test_it'" in done.stdout) == (values == "[]")
