"""What a V100's multiprocessor can hold, from NVIDIA's compute-capability tables (7.0)."""

from __future__ import annotations

REGISTERS_A_THREAD = 255
STATIC_SHARED_BYTES = 48 * 1024
SHARED_BYTES_A_BLOCK = 96 * 1024  # after opting in; also the most an SM gives to shared memory
THREADS_A_BLOCK = 1024
WARPS_A_SM = 64
BLOCKS_A_SM = 32
_WARP = 32
_PARTITIONS = 4
_REGISTERS_A_PARTITION = 16384
_REGISTER_UNIT = 256  # registers are given to a warp in units of 256
_SHARED_UNIT = 256


def _ceil(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def resident_warps(*, registers: int, threads: int, shared: int) -> int:
    """Warps of one SM that blocks of ``threads`` threads keep resident at once; 0 where a block does not fit.

    ``registers`` a thread, ``shared`` bytes per block (static and dynamic together).
    """
    warps = -(-threads // _WARP)
    if registers > REGISTERS_A_THREAD or threads > THREADS_A_BLOCK or shared > SHARED_BYTES_A_BLOCK:
        return 0
    a_warp = _ceil(max(registers, 1) * _WARP, _REGISTER_UNIT)
    by_registers = _REGISTERS_A_PARTITION // a_warp * _PARTITIONS // warps
    by_shared = SHARED_BYTES_A_BLOCK // _ceil(shared, _SHARED_UNIT) if shared else BLOCKS_A_SM
    return min(by_registers, by_shared, WARPS_A_SM // warps, BLOCKS_A_SM) * warps
