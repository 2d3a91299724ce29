"""Every test gets a repository and a lease folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.ab.project import Project
from tests.harness.conftest import Ran, call_here


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.fixture
def ab(project: Project, tmp_path: Path) -> Callable[..., Ran]:
    """``ab("BASE", "HEAD", ...)`` in the project, for the arm ``fast`` alone."""

    def run(*arguments: str, arms: tuple[str, ...] = ("fast",)) -> Ran:
        chosen = [word for arm in arms for word in ("--arm", arm)]
        return call_here(
            project.root, "ab", *arguments, *chosen, "--keep-all", env={"HARNESS_LEASE_DIR": str(tmp_path / "leases")}
        )

    return run
