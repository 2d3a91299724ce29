"""Where the SM70 device code runs: on a GPU, or, when asked for, in the emulation of its logic."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from native import emulation
from native.cuda_bindings import launch
from suites.recording import Record
from suites.targets import CUDA, EMULATED, Target

EMULATION_VARIABLE = "SM70_EMULATION"


@pytest.fixture
def sm70(native_library: str, record: Record) -> Iterator[Target]:
    """The device that the CUDA ops run on; NOT_RUN without one.

    With SM70_EMULATION=1 and no GPU, the same device code runs on the CPU, thread by thread. It shows the logic
    (indices, masks, barriers) and is slow, so it is no part of a usual run.
    """
    if torch.cuda.is_available():
        yield CUDA
        torch.cuda.synchronize()
    elif os.environ.get(EMULATION_VARIABLE, "0") == "1":
        record.unfit("device code ran in the CPU emulation")
        with launch.emulated(emulation.build()):
            yield EMULATED
    else:
        record.not_run(f"needs a CUDA device ({EMULATION_VARIABLE}=1 emulates the device code, slowly)")
