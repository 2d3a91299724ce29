"""What every scope shares: the native library, the machines to run on, and the planting of defects."""

from __future__ import annotations

import pytest
import torch

from native import loader
from suites import defects
from suites.recording import Record
from suites.targets import CPU, CUDA, Target

_PLANTED = pytest.StashKey[defects.Defect]()


def pytest_configure(config: pytest.Config) -> None:
    """Plant before any module is imported, so that ``from module import name`` sees the spoilt name too."""
    defect = defects.planted()
    if defect is not None:
        defect.plant()
        config.stash[_PLANTED] = defect


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say loudly that results of this run are about a defect."""
    defect = config.stash.get(_PLANTED, None)
    return None if defect is None else f"PLANTED DEFECT {defect.name}: {defect.description}"


@pytest.fixture(autouse=True)
def _planted_runs_are_unfit(pytestconfig: pytest.Config, record: Record) -> None:
    defect = pytestconfig.stash.get(_PLANTED, None)
    if defect is not None:
        record.unfit(f"planted defect: {defect.name}")


@pytest.fixture(scope="session")
def native_library() -> str:
    """Path of the loaded native library; without one, every case that needs it errs with what to type."""
    loader.library()
    return str(loader.library_path())


@pytest.fixture(scope="session")
def targets(native_library: str) -> tuple[Target, ...]:
    """Where a case runs: the CPU always, and the GPU too where there is one.

    A case loops over them instead of being parametrised, so that node ids are the same on every machine and worker.
    """
    return (CPU, CUDA) if torch.cuda.is_available() else (CPU,)


@pytest.fixture
def gpu(targets: tuple[Target, ...], record: Record) -> Target:
    """For cases that only exist on a GPU (capture, streams): NOT_RUN elsewhere."""
    if CUDA not in targets:
        record.not_run("needs a CUDA device")
    return CUDA
