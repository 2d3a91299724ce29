"""A gate that needs no GPU: what ptxas says of every kernel, against what a V100 has and against the baseline."""

from __future__ import annotations

from typing import Any

import pytest

from native import build, built, kernel_floors, loader
from suites.oracles import sm70
from suites.recording import Record

pytestmark = pytest.mark.group("build")

ELF_FLAGS_OFFSET = 0x30  # e_flags of a 64-bit ELF header


@pytest.fixture(scope="module")
def build_record(native_library: str) -> dict[str, Any]:
    """The record beside the loaded library."""
    folder = loader.library_path().parent
    record = built.read_record(folder)
    assert record is not None, f"{folder} has no {built.RECORD_NAME}: rebuild: python -m native.build"
    return record


@pytest.fixture
def kernels(build_record: dict[str, Any], record: Record) -> list[dict[str, Any]]:
    """One row per kernel; NOT_RUN where this build has no device images."""
    if not isinstance(build_record["device_images"], list):
        record.not_run(f"no device images in this build: {build_record['device_images']}")
    rows: list[dict[str, Any]] = build_record["kernels"]
    assert rows, "device images without a single kernel: what loops over kernels would look at nothing"
    return rows


def test_the_record_is_about_the_loaded_library(build_record: dict[str, Any]) -> None:
    assert build_record["library_sha256"] == loader.library_sha256(), "rebuild: python -m native.build"
    assert build_record["source_digest"] == build.source_digest(), "the library is older than its sources: rebuild"


def test_every_recorded_capability_is_in_the_library(build_record: dict[str, Any]) -> None:
    assert build_record["capabilities"]
    for op, number in build_record["capabilities"].items():
        assert loader.capability(op) == number, op


def test_an_unknown_op_has_no_capability(native_library: str) -> None:
    assert loader.capability("no_such_op") == 0
    with pytest.raises(loader.NativeLibraryError, match="rebuild: python"):
        loader.require("no_such_op", 1)


def test_a_newer_capability_than_the_library_has_is_refused(build_record: dict[str, Any]) -> None:
    op, number = min(build_record["capabilities"].items())
    with pytest.raises(loader.NativeLibraryError, match=f"{op} needs capability {number + 1}.*has capability {number}"):
        loader.require(op, number + 1)


def test_resources_fit_a_v100(kernels: list[dict[str, Any]], record: Record) -> None:
    """Registers, shared memory, stack and spills of every kernel; each is a metric that the baseline holds."""
    record.metric("kernels", len(kernels), "kernel", better="neither")
    for row in kernels:
        name = row["kernel"]
        shared = row["static_shared"] + row["dynamic_shared"]
        assert row["registers"] <= sm70.REGISTERS_A_THREAD, name
        assert row["static_shared"] <= sm70.STATIC_SHARED_BYTES, name
        assert shared <= sm70.SHARED_BYTES_A_BLOCK, f"{name}: {shared} bytes of shared memory, a V100 block has 98304"
        warps = sm70.resident_warps(registers=row["registers"], threads=row["max_threads"], shared=shared)
        assert warps > 0, f"{name}: one block of {row['max_threads']} threads does not fit an SM"
        record.metric(f"{name} registers", row["registers"], "register/thread", better="lower")
        record.metric(f"{name} shared", shared, "B/block", better="lower")
        record.metric(f"{name} stack", row["stack"], "B/thread", better="lower")
        record.metric(f"{name} spills", row["spill_stores"] + row["spill_loads"], "B/thread", better="lower")
        record.metric(f"{name} resident warps", warps, "warp/SM", better="higher")


def test_every_kernel_has_its_floor(kernels: list[dict[str, Any]], record: Record) -> None:
    """Bytes over 900 GB/s or operations over 125 TFLOP/s of one stated call: a prediction for a V100."""
    for row in kernels:
        floor, call = kernel_floors.kernel_floor(row["kernel"])
        assert floor.seconds() > 0, f"{row['kernel']}: {call}"
        record.metric(f"{row['kernel']} V100 floor", round(floor.seconds() * 1e6, 3), "us/call, predicted")


def test_machine_code(build_record: dict[str, Any], kernels: list[dict[str, Any]], record: Record) -> None:
    """What the optional disassembler sees: tensor-core products of SM70 alone, sixteen bytes a load of the cache."""
    mixes = build_record["machine_code"]
    if isinstance(mixes, str):
        record.not_run(f"no disassembly of this build: {mixes}")
    assert set(mixes) == {row["kernel"] for row in kernels}
    for name, mix in mixes.items():
        later = [op for op in mix if op.startswith("later than SM70")]
        assert not later, f"{name}: {later}"
        if name.startswith(("paged_attention_d", "linear_")):
            assert mix.get("HMMA.884", 0) > 0, f"{name}: no tensor-core product: {mix}"
        if name.startswith("paged_attention_d"):
            assert mix.get("LDG.128", 0) > 0, f"{name}: keys and values are not read sixteen bytes at a time: {mix}"


def test_images_are_for_sm_70(build_record: dict[str, Any], kernels: list[dict[str, Any]]) -> None:
    """The cubin's ELF header says 70, and the PTX that newer cards compile names no later target."""
    folder = loader.library_path().parent / "device"
    assert kernels
    for image in build_record["device_images"]:
        cubin = (folder / f"{image['name']}.cubin").read_bytes()
        flags = int.from_bytes(cubin[ELF_FLAGS_OFFSET : ELF_FLAGS_OFFSET + 4], "little")
        assert flags & 0xFF == 70, f"{image['name']}: ELF flags {flags:#x} are not sm_70"
        ptx = (folder / f"{image['name']}.ptx").read_text()
        assert ".target sm_70" in ptx, image["name"]
