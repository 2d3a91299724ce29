"""Starts the processes of a tensor-parallel run, watches them, and ends all of them when one ends badly.

`run_ranks` is the launcher: it holds no model and takes part in no collective, so that it can tell which rank died. Its
ranks learn the port from it; the port is rank 0's own choice unless one is asked for, so that two runs never meet.
A rank also watches the launcher: if that is killed, its ranks leave at once. Nobody is orphaned either way.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import InputError
from engine.parallel.rank import WORLD_SIZE_VARIABLE, current_rank

if TYPE_CHECKING:
    from engine.parallel.group import Group

HOST = "127.0.0.1"
END_SECONDS = 5.0
"""A run ends at most so long after one of its ranks was killed or failed."""

_SETTLE_SECONDS = 0.5  # a rank that lost its neighbour reports an error too: wait for the one that began it
_POLITE_SECONDS = 1.0  # between asking a rank to end and ending it
_ALLOWED_IDLE = timedelta(days=7)  # followers wait in a collective for the next request, however long it takes
_PRELOADED = ["engine.loading", "engine.llm", "engine.parallel.fork_server"]  # the last one is the first to end

_LAST_PORT = 65535

Device = Literal["cpu", "cuda"]
Task = Callable[..., Any]


class RankFailed(RuntimeError):
    """A rank was killed or raised. ``rank`` is the one that began it."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(f"rank {rank} {how}; the run was ended")
        self.rank = rank


@dataclass(frozen=True, slots=True)
class RankError:
    """What a rank sends when its task raised: the message of an ``InputError``, or a traceback; ``at`` is when."""

    text: str
    is_input: bool
    at: float


@dataclass(slots=True)
class _Rank:
    number: int
    process: ForkServerProcess
    channel: Connection
    result: Any = None
    done: bool = False
    error: RankError | None = None

    @property
    def killed_by(self) -> int:
        """The signal that ended it, 0 for none."""
        code = self.process.exitcode
        return -code if code is not None and code < 0 else 0


def run_ranks(
    size: int, task: Task, arguments: Sequence[Any] = (), *, device: Device = "cpu", port: int = 0
) -> list[Any]:
    """Run ``task(group, *arguments)`` in ``size`` processes; their results in order of rank.

    ``task`` is a function of a module, ``arguments`` and results can be pickled. ``port`` 0 takes a free one.

    Raises:
        InputError: the port is in use, there are fewer devices than ranks, or what a rank raised as ``InputError``
            (rank 0's message, where several did).
        RankFailed: a rank was killed, left early or raised something else. All others were ended by then.
    """
    if size < 1:
        raise InputError(f"tp is {size}; allowed: 1 or more")
    if not 0 <= port <= _LAST_PORT:
        raise InputError(f"port is {port}; allowed: 1 to {_LAST_PORT}, or 0 for a free one")
    if port:
        _require_free(port)
    start_fork_server()
    context = multiprocessing.get_context("forkserver")
    ranks: list[_Rank] = []
    try:
        ranks += (_start(context, rank, size, task, tuple(arguments), device, port) for rank in range(size))
        _exchange_port(ranks)
        _await(ranks)
    except KeyboardInterrupt:
        # Rank 0 has words to say before it leaves, and then its result stands.
        if not ranks or not _interrupted(ranks[0]):
            raise
    finally:
        _end(ranks)
    return [rank.result for rank in ranks]


def start_fork_server() -> None:
    """Start the process that ranks fork off, unless it runs. `run_ranks` does; who calls it earlier waits less there.

    It pays for the imports once, touches no device and starts no thread before a rank forks off. Interrupts are held
    back meanwhile: it inherits that, and a key pressed while it imports is the launcher's to answer.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    resource_tracker.ensure_running()  # it lets interrupts through again when it has started its own process
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _start(
    context: ForkServerContext, rank: int, size: int, task: Task, arguments: tuple[Any, ...], device: Device, port: int
) -> _Rank:
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_rank_main, args=(rank, size, theirs, task, arguments, device, port), name=f"rank {rank}", daemon=True
    )
    process.start()
    theirs.close()
    return _Rank(rank, process, ours)


def _exchange_port(ranks: Sequence[_Rank]) -> None:
    """Rank 0 opens the meeting point and says where; the others are told."""
    first = ranks[0]
    while not first.channel.poll(0.05):
        if not first.process.is_alive():
            raise _verdict(ranks)
    try:
        message = first.channel.recv()
    except EOFError:
        first.process.join(_POLITE_SECONDS)
        raise _verdict(ranks) from None
    if isinstance(message, RankError):
        first.error = message
        raise _verdict(ranks)
    for rank in ranks[1:]:
        with suppress(BrokenPipeError):  # it is gone, and `_await` says so
            rank.channel.send(message)


def _await(ranks: Sequence[_Rank]) -> None:
    """Until every rank has sent its result. Raises for the first that does not."""
    while not all(rank.done for rank in ranks):
        open_ranks = [rank for rank in ranks if not rank.done]
        wait([rank.channel for rank in open_ranks] + [rank.process.sentinel for rank in open_ranks])
        if not all(_heard(rank) for rank in open_ranks):
            deadline = time.monotonic() + _SETTLE_SECONDS
            while time.monotonic() < deadline and not any(rank.killed_by for rank in ranks):
                time.sleep(0.02)
                for rank in ranks:
                    _heard(rank)
            raise _verdict(ranks)


def _heard(rank: _Rank) -> bool:
    """Read what a rank has sent; False once it cannot end well any more."""
    if rank.done or rank.error is not None:
        return rank.done
    alive = rank.process.is_alive()  # asked before the pipe: what it sent before it left is still there
    with suppress(EOFError, ConnectionResetError):
        if rank.channel.poll():
            message = rank.channel.recv()
            if isinstance(message, RankError):
                rank.error = message
                return False
            rank.result, rank.done = message, True
            return True
    return alive


def _verdict(ranks: Sequence[_Rank]) -> Exception:
    """Why the run ended: a kill before a complaint about the user's input (lowest rank) before the first error."""
    for rank in ranks:
        if rank.killed_by:
            return RankFailed(rank.number, f"was killed by {signal.Signals(rank.killed_by).name}")
    for rank in ranks:
        if rank.error is not None and rank.error.is_input:
            where = f"rank {rank.number}: " if rank.number else ""
            return InputError(f"{where}{rank.error.text}")
    failed = [(rank.error.at, rank.number, rank.error.text) for rank in ranks if rank.error is not None]
    if failed:
        _, number, text = min(failed)
        return RankFailed(number, f"failed:\n{text}")
    left = next(rank for rank in ranks if not rank.done and not rank.process.is_alive())
    return RankFailed(left.number, f"left with exit code {left.process.exitcode} before it was done")


def _interrupted(first: _Rank) -> bool:
    """Whether rank 0 ended with a result. A terminal interrupts every process; whoever interrupts the launcher alone
    means the ranks as well.
    """
    first.process.join(_POLITE_SECONDS)
    if first.process.is_alive() and first.process.pid is not None:
        os.kill(first.process.pid, signal.SIGINT)
        first.process.join(END_SECONDS)
    return _heard(first) and first.done


def _end(ranks: Sequence[_Rank]) -> None:
    """End whoever still runs, and wait for all of them."""
    if all(rank.done for rank in ranks):
        for rank in ranks:
            rank.process.join(_POLITE_SECONDS)
    for rank in ranks:
        if rank.process.is_alive():
            rank.process.terminate()
    deadline = time.monotonic() + _POLITE_SECONDS
    for rank in ranks:
        rank.process.join(max(0.0, deadline - time.monotonic()))
        if rank.process.is_alive():
            rank.process.kill()
        rank.process.join()
        rank.channel.close()


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise InputError(
                f"port {port} of {HOST} cannot be used: {error.strerror}; allowed: a free port, or no port at all"
            ) from error


def _rank_main(
    rank: int, size: int, channel: Connection, task: Task, arguments: tuple[Any, ...], device: Device, port: int
) -> None:
    """The life of one rank."""
    # What ps and top show; the command line is the fork server's.
    Path("/proc/self/comm").write_text(f"rank {rank} of {size}")
    if rank:
        # Rank 0 answers an interrupt; the others would only leave it alone in a collective.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_leave_with_launcher, daemon=True).start()
    with _Reporting(channel):
        group = _join(rank, size, channel, device, port)
        channel.send(task(group, *arguments))


class _Reporting:
    """Tells the launcher what was raised, then leaves without a farewell to the other ranks.

    They may be waiting for this one in a collective that will never be complete.
    """

    def __init__(self, channel: Connection) -> None:
        self._channel = channel

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        is_input = isinstance(error, InputError)
        text = str(error) if is_input else "".join(traceback.format_exception(error))
        self._channel.send(RankError(text, is_input, time.monotonic()))
        self._channel.close()
        os._exit(1)


def _leave_with_launcher() -> None:
    launcher = multiprocessing.parent_process()
    assert launcher is not None  # a rank is always somebody's child
    wait([launcher.sentinel])
    os._exit(1)


def join_started(device: Device) -> Group:
    """Meet the other ranks where somebody else has started all of them and says so in the environment (``torchrun``).

    Raises ``InputError`` for an environment that does not say where.
    """
    rank = current_rank(None, os.environ)
    missing = [name for name in (WORLD_SIZE_VARIABLE, "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise InputError(f"{', '.join(missing)} not set; allowed: all that torchrun sets, or no {WORLD_SIZE_VARIABLE}")
    return _init(rank, int(os.environ[WORLD_SIZE_VARIABLE]), device, None)


def _join(rank: int, size: int, channel: Connection, device: Device, port: int) -> Group:
    """Meet the other ranks. Raises ``InputError`` where there are fewer devices than ranks."""
    import torch.distributed as dist

    _require_devices(size, device)  # before anybody waits for anybody
    if rank == 0:
        store = dist.TCPStore(HOST, port, size, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        channel.send(store.port)
    else:
        store = dist.TCPStore(HOST, channel.recv(), size, is_master=False)  # type: ignore[attr-defined]
    return _init(rank, size, device, store)


def _require_devices(size: int, device: Device) -> None:
    import torch

    count = torch.cuda.device_count() if device == "cuda" else size
    if count < size:
        allowed = f"--tp {count}" if count else "--device cpu"
        raise InputError(f"{size} ranks need {size} CUDA devices, this machine has {count}; allowed: {allowed}")


def _init(rank: int, size: int, device: Device, store: Any) -> Group:
    import torch
    import torch.distributed as dist

    from engine.parallel.group import ProcessGroup

    _require_devices(size, device)
    if device == "cuda":
        torch.cuda.set_device(rank)
    # All ranks are on this machine; without this gloo asks the name service who it is.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # multicast needs a fabric manager that not every machine runs
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_ALLOWED_IDLE)
    group = dist.group.WORLD
    assert group is not None  # it was made a line ago
    joined = ProcessGroup(group)
    # Rank 0 keeps the addresses: with a short task it would leave before the others have met each other.
    joined.all_gather(torch.zeros(size, 1), torch.zeros(1))
    return joined
