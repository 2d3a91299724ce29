"""The same bits again: over launches, threads, instruction sets, batch sizes, and the bound native call."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest

from native import ops as native_ops
from native.bindings.runtime import ISAS
from suites.kernels.calls import CALLS, MOST_ROWS, OpCall
from suites.oracles import judge
from suites.recording import Record
from suites.targets import CPU, Target

pytestmark = pytest.mark.group("determinism")

OPS = pytest.mark.parametrize("call", CALLS, ids=str)
LAUNCHES = 6


@pytest.fixture
def restored_runtime(native_library: str) -> Iterator[None]:
    """Threads and instruction set as they were, whatever the case did."""
    threads, isa = native_ops.threads(), native_ops.isa()
    yield
    native_ops.set_threads(threads)
    native_ops.set_isa(isa)


@OPS
def test_six_launches(targets: tuple[Target, ...], call: OpCall) -> None:
    for target in targets:
        first = call.run(target, MOST_ROWS)
        for launch in range(1, LAUNCHES):
            judge.assert_bits_equal(call.run(target, MOST_ROWS), first, f"{target.name} launch {launch + 1}")


@OPS
@pytest.mark.usefixtures("restored_runtime")
def test_thread_counts(call: OpCall) -> None:
    native_ops.set_threads(1)
    alone = {rows: call.run(CPU, rows) for rows in (1, MOST_ROWS)}
    for threads in (2, 3, 7):
        native_ops.set_threads(threads)
        for rows, expected in alone.items():
            judge.assert_bits_equal(call.run(CPU, rows), expected, f"{threads} threads, {rows} rows")


@OPS
@pytest.mark.usefixtures("restored_runtime")
def test_instruction_sets(record: Record, call: OpCall) -> None:
    """Every path this machine can take gives the bits of the portable one; their hash is held everywhere."""
    native_ops.set_isa("portable")
    portable = {rows: call.run(CPU, rows) for rows in (1, 8)}
    for name in ISAS[1 : ISAS.index(native_ops.best_isa()) + 1]:
        native_ops.set_isa(name)
        for rows, expected in portable.items():
            judge.assert_bits_equal(call.run(CPU, rows), expected, f"{name}, {rows} rows")
    digest = hashlib.sha256(b"".join(bits.tobytes() for bits in portable.values())).digest()
    record.metric("output bits (first 6 bytes of their SHA-256)", int.from_bytes(digest[:6], "big"), "1")


@OPS
def test_a_row_does_not_know_its_batch(targets: tuple[Target, ...], call: OpCall) -> None:
    """Row i of 1, 2, 3, 8 and 17 rows has the bits of row i of 64."""
    for target in targets:
        many = call.run(target, MOST_ROWS)
        for rows in (1, 2, 3, 8, 17):
            judge.assert_bits_equal(call.run(target, rows), many[:rows], f"{target.name} {rows} rows of {MOST_ROWS}")
