"""A small project to run the harness on: a copy of ``fixture_suites`` in a git work tree of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

collect_ignore_glob = ["fixture_suites/*"]

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent


@dataclass
class Ran:
    """How one ``python -m harness`` call ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line of standard output: the run folder of ``run``."""
        return self.out.strip().splitlines()[-1]


Harness = Callable[..., Ran]


def harness_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this repository importable, nothing that would make a fit run unfit."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_", "COVERAGE_"))}
    identity = {
        f"GIT_{role}_{what}": "nobody@example.org" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    return {**keep, **identity, "PYTHONPATH": str(REPOSITORY), **(extra or {})}


def call_harness(cwd: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run the command line as a person would."""
    argv = [sys.executable, "-m", "harness", *arguments]
    done = subprocess.run(argv, cwd=cwd, env=harness_environment(env), capture_output=True, text=True, timeout=120)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git work tree with ``suites/{green,faults,timed,empty}``, committed and clean."""
    root = tmp_path / "project"
    shutil.copytree(HERE / "fixture_suites", root / "suites", ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("__pycache__/\nartifacts/\nbaselines/\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=root, check=True, env=harness_environment())
    return root


@pytest.fixture
def harness(project: Path) -> Harness:
    """Call the command line in the project."""

    def call(*arguments: str, env: Mapping[str, str] | None = None) -> Ran:
        return call_harness(project, *arguments, env=env)

    return call
