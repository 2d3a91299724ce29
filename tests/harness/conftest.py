"""A small project to run the harness on: a copy of ``fixture_suites`` in a git work tree of its own."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.cli import main

collect_ignore_glob = ["fixture_suites/*"]

HERE = Path(__file__).parent
SECRET = "hunter2-never-in-a-bundle"
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
    # A lease folder of our own: a test must not wait for whoever measures on this machine.
    leases = {"HARNESS_LEASE_DIR": str(Path(tempfile.gettempdir()) / f"harness-tests-{os.getpid()}")}
    return {**keep, **identity, **leases, "PYTHONPATH": str(REPOSITORY), **(extra or {})}


def call_harness(cwd: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """Run the command line as a person would. What hangs is ended by the limit that every test has (pyproject.toml)."""
    argv = [sys.executable, "-m", "harness", *arguments]
    done = subprocess.run(argv, cwd=cwd, env=harness_environment(env), capture_output=True, text=True)
    return Ran(done.returncode, done.stdout, done.stderr)


def call_here(cwd: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Ran:
    """The same in this process: no second interpreter to start."""
    said, told = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in harness_environment(env).items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told), pytest.raises(SystemExit) as ended:
            main(arguments)
    return Ran(int(ended.value.code or 0), said.getvalue(), told.getvalue())


def make_project(root: Path) -> Path:
    """A git work tree with ``suites/{green,faults,timed,empty}``, committed and clean."""
    shutil.copytree(HERE / "fixture_suites", root / "suites", ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("__pycache__/\nartifacts/\nbaselines/\nruns/\nR/\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=root, check=True, env=harness_environment())
    return root


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: no waiting for the disk (``kill_driver`` tries that), no plots (``sealed_once`` has some)."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr("harness.report.draw_plots", lambda _: {})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of this test alone."""
    return make_project(tmp_path / "project")


@pytest.fixture(scope="session")
def sealed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with two runs of ``green`` and ``timed`` (the second a copy), sealed, the baseline accepted."""
    root = make_project(tmp_path_factory.mktemp("sealed") / "project")
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI_JOB_TOKEN": SECRET, "AWS_SECRET_ACCESS_KEY": SECRET}
    assert call_here(root, "run", "green", "timed", "--run-dir", "runs/a", env=environment).code == 0
    shutil.copytree(root / "runs" / "a", root / "runs" / "b")
    for name in ("a", "b"):
        assert call_here(root, "seal", f"runs/{name}", "--against", "none").code == 0
    bundles = [str(path) for path in sorted((root / "artifacts" / "bundles").iterdir())]
    assert call_here(root, "accept", *bundles, "--reason", "first").code == 0
    return root


@pytest.fixture
def sealed(sealed_once: Path, tmp_path: Path) -> Path:
    """A copy of that project to spoil."""
    return shutil.copytree(sealed_once, tmp_path / "project")


@pytest.fixture
def bundle(sealed: Path) -> Path:
    """One sealed bundle of it, whose members may be written to."""
    path = next(path for path in sorted((sealed / "artifacts" / "bundles").iterdir()))
    for member in path.rglob("*"):
        member.chmod(0o755 if member.is_dir() else 0o644)
    return path


@pytest.fixture
def harness(project: Path) -> Harness:
    """Call the command line in the project."""

    def call(*arguments: str, env: Mapping[str, str] | None = None) -> Ran:
        return call_harness(project, *arguments, env=env)

    return call
