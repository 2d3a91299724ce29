"""Which facts forbid comparing times: each of them by name, so that none leaves the contract unseen."""

from __future__ import annotations

import pytest

from harness.comparability import differences, samples_obstacle
from tests.harness.build import MACHINE, SHA, samples

FORBIDS = (
    "cpu.model",
    "cpu.signature",
    "cpu.count",
    "cpu.usable",
    "cpu.flags",
    "cpu.governor",
    "gpu.names",
    "gpu.uuids",
    "gpu.count",
    "gpu.ecc",
    "gpu.driver",
    "torch.version",
    "numpy.version",
    "triton.version",
    "python.version",
    "python.implementation",
    "python.debug_build",
    "python.optimize",
    "native.compiler",
    "workload.request_rate",
    "env.CUDA_LAUNCH_BLOCKING",
    "env.OMP_NUM_THREADS",
    "env.SM70_THREADS",
    "env.VLLM_SM70_TUNE",
)
SHOWN = (
    "env.CI",
    "env.PYTHONUNBUFFERED",
    "env.PYTEST_ADDOPTS",
    "env.CUDA_VISIBLE_DEVICES",
    "env.SM70_NATIVE_LIBRARY",
    "env.SM70_RUN_DIR",
    "os.kernel",
    "memory.total_gib",
)


def without(key: str) -> dict[str, str]:
    return {name: value for name, value in MACHINE.items() if name != key}


@pytest.mark.parametrize(("key", "fatal"), [*((key, True) for key in FORBIDS), *((key, False) for key in SHOWN)])
def test_another_value_and_a_value_on_one_side_only(key: str, fatal: bool) -> None:
    there, other = {**MACHINE, key: "1.1"}, {**MACHINE, key: "2.2"}
    for one, two in ((there, other), (without(key), there), (there, without(key))):
        assert [(row.key, row.fatal) for row in differences(one, two)] == [(key, fatal)]


@pytest.mark.parametrize(("other", "fatal"), [("3.11.9", False), ("3.12.1", True), ("4.11.1", True)])
def test_another_minor_release_of_python_is_another_python(other: str, fatal: bool) -> None:
    rows = differences({**MACHINE, "python.version": "3.11.1"}, {**MACHINE, "python.version": other})
    assert [(row.key, row.fatal) for row in rows] == [("python.version", fatal)]


TIMES = (1.0, 2.0)


@pytest.mark.parametrize("place", [0, 31, 63])
def test_token_hashes_are_compared_in_whole(place: int) -> None:
    other = SHA[:place] + "b" + SHA[place + 1 :]
    assert samples_obstacle(samples("n", TIMES), samples("n", TIMES), (True, True)) == ""
    said = samples_obstacle(samples("n", TIMES), samples("n", TIMES, other), (True, True))
    assert said == f"other tokens were generated: base {SHA}, head {other}"


def test_either_side_may_be_at_fault() -> None:
    fit, unfit = samples("n", TIMES), samples("n", TIMES, unfit=("profiled",))
    assert samples_obstacle(unfit, fit, (True, True)) == "base is unfit for timing: profiled"
    assert samples_obstacle(fit, unfit, (True, True)) == "head is unfit for timing: profiled"
    assert samples_obstacle(fit, fit, (False, True)).startswith("base did not stop naturally")
    assert samples_obstacle(fit, fit, (True, False)).startswith("head did not stop naturally")
