"""The emulation itself, on kernels made for it: warps, barriers, shared memory, and mistakes it must notice."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from native import emulation

KERNELS = """
#include "device.cuh"
// Sum of a block's indices by warp shuffles and shared memory.
SM70_KERNEL((64), sum_kernel, int* out) {
  __shared__ float partial[2];
  const float total = block_sum<64>(static_cast<float>(threadIdx.x), partial);
  out[blockIdx.x * 64 + threadIdx.x] = static_cast<int>(total);
}
// A = B = identity-like tiles: element i of a lane's accumulator tells its row and column.
SM70_KERNEL((32), mma_kernel, float* out) {
  const int lane = threadIdx.x % 32, r = (lane & 3) + 4 * (lane >> 4), pair = (lane >> 2) & 3;
  const uint32_t a = half2_bits(__floats2half2_rn(static_cast<float>(r), 0.0f));
  const uint32_t b = half2_bits(__floats2half2_rn(static_cast<float>(10 * r + 100 * pair + 1), 0.0f));
  float c[8] = {};
  mma_m8n8k4(c, a, 0, b, 0);
  for (int i = 0; i < 8; ++i) out[lane * 8 + i] = c[i];
}
// Reads its neighbour's shared slot with no barrier: right in one order of threads, wrong in another.
SM70_KERNEL((64), racy_kernel, int* out) {
  __shared__ int slot[64];
  slot[threadIdx.x] = threadIdx.x;
  out[threadIdx.x] = slot[(threadIdx.x + 63) % 64];
}
SM70_KERNEL((64), unwritten_kernel, int* out) {
  __shared__ int slot[64];
  if (threadIdx.x == 0) slot[0] = 5;
  __syncthreads();
  out[threadIdx.x] = slot[threadIdx.x];
}
SM70_KERNEL((64), lopsided_kernel, int* out) {
  if (threadIdx.x < 40) __syncthreads();
  out[threadIdx.x] = 1;
}
SM70_KERNEL((32), torn_kernel, int* out) {
  out[threadIdx.x] = threadIdx.x < 16 ? __shfl_xor_sync(kFullMask, 1, 1) : __shfl_down_sync(kFullMask, 1, 1);
}
"""
LAUNCHER = """
#include <cstring>
#include "cuda/driver.h"
static const sm70::Kernel kernels[] = {{"t", "sum_kernel"}, {"t", "mma_kernel"}, {"t", "racy_kernel"},
                                       {"t", "unwritten_kernel"}, {"t", "lopsided_kernel"}, {"t", "torn_kernel"}};
SM70_EXPORT int launch(const char* name, unsigned blocks, unsigned threads, void* out, char* err, int64_t err_len) {
  sm70::Error error{err, err_len};
  for (const sm70::Kernel& kernel : kernels)
    if (std::strcmp(kernel.name(), name) == 0) return kernel.launch({blocks}, {threads}, 0, {0, nullptr}, error, out);
  return error.fail("no kernel %s", name);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("emulation")
    (folder / "made.cu").write_text(KERNELS)
    (folder / "made_launch.cpp").write_text(LAUNCHER)
    return emulation.build(folder / "out", kernels=[folder / "made.cu", folder / "made_launch.cpp"])


def _launch(
    library: Path,
    name: str,
    blocks: int,
    threads: int,
    out: np.ndarray[tuple[int, ...], np.dtype[np.generic]],
    order: int = 0,
) -> None:
    lib = ctypes.CDLL(str(library))
    lib.sm70_emulation_order(order)
    message = ctypes.create_string_buffer(256)
    status = lib.launch(name.encode(), blocks, threads, ctypes.c_void_p(out.ctypes.data), message, ctypes.c_int64(256))
    assert status == 0, message.value


@pytest.mark.parametrize("order", [0, 1, 7])
def test_reductions_meet_in_any_order_of_threads(library: Path, order: int) -> None:
    out = np.zeros(128, dtype=np.int32)
    _launch(library, "sum_kernel", 2, 64, out, order)
    assert (out == 64 * 63 // 2).all()


def test_fragments_lie_where_the_hardware_puts_them(library: Path) -> None:
    """Product of row r by column (p, c): r * (10 c + 100 p + 1), at the lane and element of the documented map."""
    out = np.zeros((32, 8), dtype=np.float32)
    _launch(library, "mma_kernel", 1, 32, out)
    for lane in range(32):
        for i in range(8):
            row, column = (lane & 1) + (i & 2) + 4 * (lane >> 4), (i & 4) + (lane & 2) + (i & 1)
            assert out[lane, i] == row * (10 * column + 100 * ((lane >> 2) & 3) + 1)


def test_a_missing_barrier_shows_when_threads_take_turns_otherwise(library: Path) -> None:
    expected = (np.arange(64) + 63) % 64
    results = []
    for order in (0, 1, 5):
        out = np.zeros(64, dtype=np.int32)
        _launch(library, "racy_kernel", 1, 64, out, order)
        results.append(bool((out == expected).all()))
    assert not all(results)


def test_shared_memory_starts_as_nan(library: Path) -> None:
    out = np.zeros(64, dtype=np.int32)
    _launch(library, "unwritten_kernel", 1, 64, out)
    assert out[0] == 5
    assert np.isnan(out[1:].view(np.float32)).all()


@pytest.mark.parametrize(
    ("kernel", "threads", "said"),
    [
        ("lopsided_kernel", 64, "different barriers, or some have left"),
        ("torn_kernel", 32, "lanes of one warp met in different warp-wide operations"),
    ],
)
def test_threads_that_part_stop_the_program(library: Path, kernel: str, threads: int, said: str) -> None:
    code = (
        "import ctypes, sys; out = (ctypes.c_int * 64)(); message = ctypes.create_string_buffer(64);"
        f"ctypes.CDLL(sys.argv[1]).launch(b'{kernel}', 1, {threads}, out, message, ctypes.c_int64(64))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(library)], capture_output=True, text=True)
    assert done.returncode != 0
    assert said in done.stderr
