"""Threads, instruction sets, programs and old libraries: what surrounds the CPU ops."""

from __future__ import annotations

import ctypes
import multiprocessing
import threading

import pytest
import torch

from engine.ops import functional
from native import ops
from native.bindings import call as binding
from native.bindings.call import Args
from native.loader import NativeLibraryError
from tests.native.cpu_paths import assert_same_bits, path
from tests.native.test_cpu_linear import q4_1


def test_settings_are_checked_and_kept() -> None:
    with path("portable", 3):
        assert ops.isa() == "portable"
        assert ops.threads() == 3
    for count in (0, -1, 257):
        with pytest.raises(ValueError, match=f"threads: saw {count}, allowed 1..256"):
            ops.set_threads(count)
    with pytest.raises(ValueError, match="isa: saw 'sse9', allowed portable, avx2, avx512"):
        ops.set_isa("sse9")
    if ops.best_isa() != "avx512":
        with pytest.raises(ValueError, match=f"isa: saw 'avx512', this machine has no more than '{ops.best_isa()}'"):
            ops.set_isa("avx512")


def test_several_callers_at_once() -> None:
    weight, x = q4_1(640, 256), torch.randn(8, 5, 256)
    expected = [functional.linear(rows, weight) for rows in x]
    wrong: list[int] = []

    def work(index: int) -> None:
        wrong.extend(index for _ in range(50) if not torch.equal(functional.linear(x[index], weight), expected[index]))

    with path(ops.best_isa(), 2):
        callers = [threading.Thread(target=work, args=(index,)) for index in range(8)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert wrong == []


def test_thread_counts_may_change_between_ops() -> None:
    weight, x = q4_1(640, 256), torch.randn(3, 256)
    expected = functional.linear(x, weight)
    for count in (1, 4, 2, 7, 1, 3) * 5:
        with path(ops.best_isa(), count):
            assert torch.equal(functional.linear(x, weight), expected)


def _child(call: ops.Call, results: multiprocessing.SimpleQueue[bytes]) -> None:
    # Only the bound op runs here: torch's own threads do not survive a fork.
    results.put(call().numpy().tobytes())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    with path(ops.best_isa(), 2):
        weight = q4_1(640, 256)
        call = ops.bind_linear_q4_1(torch.randn(3, 256), weight.data, weight.n)
        expected = call().clone()
        context = multiprocessing.get_context("fork")
        results: multiprocessing.SimpleQueue[bytes] = context.SimpleQueue()
        child = context.Process(target=_child, args=(call, results))
        child.start()
        assert results.get() == expected.numpy().tobytes()
        child.join(30)
        assert child.exitcode == 0


def test_a_program_runs_in_order_and_stops_at_what_fails() -> None:
    ids, table = torch.tensor([1, 2]), torch.randn(4, 64)
    hidden, normed, out = torch.empty(2, 64), torch.empty(2, 64), torch.zeros(2, 24)
    weight = q4_1(24, 64)
    program = ops.Program(
        [
            ops.bind_embedding_dense(ids, table, hidden),
            ops.bind_rms_norm(hidden, torch.ones(64), 1e-5, normed),
            ops.bind_linear_q4_1(normed, weight.data, weight.n, None, out),
        ]
    )
    program()
    expected = functional.linear(functional.rms_norm(table[1:3], torch.ones(64), 1e-5), weight)
    assert_same_bits(out, expected, "program")
    ids[1] = 4
    out.zero_()
    with pytest.raises(ValueError, match=r"embedding: ids\[1\] is 4, allowed 0..3"):
        program()
    assert (out == 0).all()


def test_an_op_that_the_library_lacks_or_has_too_old() -> None:
    class Newer(Args):
        OP = "rms_norm_cpu"
        CAPABILITY = 999

    class Unknown(Args):
        OP = "no_such_op_cpu"
        CAPABILITY = 1

    class Misshapen(Args):
        OP = "rms_norm_cpu"
        CAPABILITY = 1
        _fields_ = (("x", ctypes.c_void_p),)

    for record, message in (
        (Newer, "rms_norm_cpu needs capability 999, .* rebuild: python -m native.build"),
        (Unknown, "no_such_op_cpu needs capability 1, .* does not have it: rebuild: python -m native.build"),
        (Misshapen, "rms_norm_cpu takes 64 argument bytes, this Python passes 8: rebuild: python -m native.build"),
    ):
        with pytest.raises(NativeLibraryError, match=message):
            binding.Call(record(), torch.empty(0), ())
