"""What every scope shares: the native library, the machines to run on, and the planting of defects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from native import emulation, loader
from native.cuda_bindings import launch
from suites import defects
from suites.recording import Record
from suites.targets import CPU, CUDA, EMULATED, Target

EMULATION_VARIABLE = "SM70_EMULATION"
_PLANTED = pytest.StashKey[defects.Defect]()


def pytest_configure(config: pytest.Config) -> None:
    """Plant before any module is imported, so that ``from module import name`` sees the spoilt name too."""
    try:
        defect = defects.planted()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if defect is not None:
        defect.plant()
        config.stash[_PLANTED] = defect
    _refuse_an_absent_model()


def _refuse_an_absent_model() -> None:
    """Who names a model means it: cases without it would be NOT_RUN, as on a machine that has none, or fail one by one.

    So the run is refused before its first case, in every scope alike.
    """
    from engine.config import MODEL_VARIABLE

    model = os.environ.get(MODEL_VARIABLE, "")
    if model and not Path(model).exists():
        raise pytest.UsageError(
            f"{MODEL_VARIABLE} is {model!r}, where there is nothing; name a GGUF file or a model's folder, or unset it"
        )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say loudly that results of this run are about a defect, or about an emulation."""
    defect = config.stash.get(_PLANTED, None)
    lines = [] if defect is None else [f"PLANTED DEFECT {defect.name}: {defect.description}"]
    return [*lines, "SM70 DEVICE CODE IN EMULATION: only cases over devices run"] if _emulation_wanted() else lines


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In the emulation CPU tensors go to the device code, so cases about the CPU ops mean nothing."""
    if _emulation_wanted():
        over_devices = [item for item in items if "targets" in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=[item for item in items if item not in over_devices])
        items[:] = over_devices


def _emulation_wanted() -> bool:
    return os.environ.get(EMULATION_VARIABLE, "0") == "1"


@pytest.fixture(autouse=True)
def _unusual_runs_are_unfit(pytestconfig: pytest.Config, record: Record) -> None:
    defect = pytestconfig.stash.get(_PLANTED, None)
    if defect is not None:
        record.unfit(f"planted defect: {defect.name}")
    if _emulation_wanted():
        record.unfit("device code ran in the CPU emulation")


@pytest.fixture(scope="session")
def native_library() -> str:
    """Path of the loaded native library; without one, every case that needs it errs with what to type."""
    loader.library()
    return str(loader.library_path())


@pytest.fixture(scope="session")
def quasar(native_library: str) -> Path:
    """The trained hybrid target that the repository carries: what drafting and ranks are tried on."""
    from engine.model.bundled import quasar_tiny_path

    return quasar_tiny_path()


@pytest.fixture(scope="session")
def quasar_draft() -> Path:
    """Its DFlash2 draft: blocks of 8, 16 candidates."""
    from engine.model.bundled import quasar_tiny_draft_path

    return quasar_tiny_draft_path()


@pytest.fixture(scope="session")
def emulated() -> Iterator[bool]:
    """Whether the SM70 device code runs on the CPU, thread by thread, because SM70_EMULATION=1 asks for it.

    It shows the logic of a kernel (indices, masks, barriers) where there is no GPU and is slow: no part of a usual run.
    """
    if not _emulation_wanted():
        yield False
        return
    with launch.emulated(emulation.build()):
        yield True


@pytest.fixture(scope="session")
def targets(native_library: str, emulated: bool) -> tuple[Target, ...]:
    """Where a case runs: the CPU always, and the GPU too where there is one; in the emulation, only that.

    A case loops over them instead of being parametrised, so that node ids are the same on every machine and worker.
    """
    if emulated:
        return (EMULATED,)
    return (CPU, CUDA) if torch.cuda.is_available() else (CPU,)


@pytest.fixture
def sm70(targets: tuple[Target, ...], record: Record) -> Target:
    """The device that the CUDA ops run on; NOT_RUN where there is none."""
    if targets[-1] is CPU:
        record.not_run(f"needs a CUDA device ({EMULATION_VARIABLE}=1 emulates the device code, slowly)")
    return targets[-1]


@pytest.fixture
def gpu(targets: tuple[Target, ...], record: Record) -> Target:
    """For cases that only exist on a GPU (capture, streams, large memory): NOT_RUN elsewhere."""
    if CUDA not in targets:
        record.not_run("needs a CUDA device")
    return CUDA
