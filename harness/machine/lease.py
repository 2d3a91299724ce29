"""Exclusive use of what a measurement runs on: a lock for each GPU, named by its UUID, and one for the CPU.

A lease is a ``flock`` on a file every user of the machine agrees on. The kernel drops it when the last process that
holds the descriptor is gone, however that ended; a measured child inherits the descriptor, so that killing the harness
does not free a GPU that pytest still uses. Whoever waits is told who holds it. Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.errors import UsageError, file_error
from harness.files import utc_now
from harness.verdict import ExitCode

SCHEMA = 1
FOLDER_VARIABLE = "HARNESS_LEASE_DIR"
TOKEN_VARIABLE = "HARNESS_LEASE_TOKEN"
CPU = "cpu"
POLL_S = 0.2
DEFAULT_WAIT_S = 600.0


class LeaseError(UsageError):
    """What was asked for is in use, or was lost while it was held."""


class LeaseLost(LeaseError):
    """A lease that was held is ours no more: what was measured meanwhile proves nothing."""

    code = ExitCode.EVIDENCE_BROKEN


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as it told itself when it took it. ``count`` numbers the takers of this lock."""

    pid: int
    command: str
    since: str
    token: str
    count: int

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command}) since {self.since}"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a bundle keeps of a lease (``lease.json``).

    ``resources``: ``cpu``, or ``gpu-<UUID>``. ``counts``: the number of the taker of each; two leases of one resource
    with consecutive numbers had nobody between them. ``inherited``: held by a process that started this one.
    ``foreign``: other processes on the GPUs when the lease began, or why they are not known.
    """

    resources: tuple[str, ...]
    counts: tuple[int, ...]
    acquired: str
    waited_s: float
    inherited: bool
    visible_devices: str
    foreign: str
    schema: int = SCHEMA

    def json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)


Waiting = Callable[[str, Holder | None, float], None]
"""Called while waiting: the resource, who holds it, and the seconds waited so far."""


def _silent(resource: str, holder: Holder | None, waited: float) -> None:
    """Waiting that nobody watches."""


def gpu_resource(uuid: str) -> str:
    """The name under which a GPU is leased; the UUID stays the same whatever the numbering is."""
    return uuid.lower() if uuid.lower().startswith("gpu-") else f"gpu-{uuid.lower()}"


def lease_folder(environ: Mapping[str, str]) -> Path:
    """Where the locks of this machine lie, for all its users. ``HARNESS_LEASE_DIR`` moves it."""
    return Path(environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir()) / "harness-leases")


@dataclass
class Lease:
    """Locks that this process holds, all or none. Leave the ``with`` block or end the process to give them back."""

    folder: Path
    record: LeaseRecord
    token: str
    descriptors: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give everything back. A second call does nothing."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)
        self.descriptors = {}

    def environment(self) -> dict[str, str]:
        """What a child needs so that it counts as a part of this lease instead of waiting for it."""
        return {TOKEN_VARIABLE: self.token, FOLDER_VARIABLE: str(self.folder)}

    def check(self) -> None:
        """Raise ``LeaseLost`` unless every lock is still ours: the file in place, and our name in it."""
        for resource, count in zip(self.record.resources, self.record.counts, strict=True):
            path = self.folder / f"{resource}.lock"
            found = read_holder(path)
            if found is None or (found.token, found.count) != (self.token, count):
                raise LeaseLost(
                    f"the lease on {resource} was lost: it is now held by {found or 'nobody'}",
                    f"somebody removed or replaced {path}; measure again",
                )
            descriptor = self.descriptors.get(resource)
            if descriptor is not None and not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise LeaseLost(f"the lease on {resource} was lost: {path} is another file now", "measure again")


def acquire(
    resources: Sequence[str],
    *,
    folder: Path,
    command: str,
    environ: Mapping[str, str],
    timeout_s: float = DEFAULT_WAIT_S,
    waiting: Waiting = _silent,
    foreign: Callable[[], str] = lambda: "",
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Lease:
    """Take every lock in ``resources``, waiting up to ``timeout_s`` seconds for all of them together.

    Locks are taken in one order on the whole machine, so that two who want the same GPUs cannot block each other for
    ever. ``foreign`` is asked once they are held: it names processes that use a GPU without a lease (``LeaseError``
    from it gives everything back). Raises ``LeaseError`` naming the holder when the time is over.
    """
    wanted = sorted(set(resources))
    if not wanted:
        raise UsageError("a lease of nothing", "name the CPU or at least one GPU")
    _make_folder(folder)
    started = clock()
    inherited = _inherited(wanted, folder, environ)
    if inherited is not None:
        return inherited
    token = secrets.token_hex(8)
    with contextlib.ExitStack() as undo:
        descriptors: dict[str, int] = {}
        counts = []
        for resource in wanted:
            path = folder / f"{resource}.lock"
            descriptor = _wait_for(path, resource, started + timeout_s, started, waiting, clock, sleep)
            undo.callback(os.close, descriptor)
            descriptors[resource] = descriptor
            counts.append(_sign(descriptor, command, token))
        record = LeaseRecord(
            tuple(wanted),
            tuple(counts),
            utc_now(),
            round(clock() - started, 3),
            False,
            environ.get("CUDA_VISIBLE_DEVICES", ""),
            foreign(),
        )
        undo.pop_all()
    return Lease(folder, record, token, descriptors)


def _inherited(wanted: Sequence[str], folder: Path, environ: Mapping[str, str]) -> Lease | None:
    """The lease of the process that started us, where it covers all that is wanted and still stands."""
    token = environ.get(TOKEN_VARIABLE, "")
    standing = held(folder) if token else {}
    ours = [holder for name in wanted if (holder := standing.get(name)) is not None and holder.token == token]
    if not ours:
        return None
    if len(ours) < len(wanted):
        missing = [name for name in wanted if standing.get(name) not in ours]
        raise LeaseError(
            f"the lease this process runs under does not cover {', '.join(missing)}",
            "take one lease for all of it: harness lease run --cpu --gpu all -- COMMAND",
        )
    record = LeaseRecord(
        tuple(wanted),
        tuple(holder.count for holder in ours),
        ours[0].since,
        0.0,
        True,
        environ.get("CUDA_VISIBLE_DEVICES", ""),
        "looked for when the lease was taken",
    )
    return Lease(folder, record, token)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o1777)  # every user of the machine must be able to lock, none to remove another's lock
    except OSError as error:
        raise file_error(error, folder, "make") from error


def _open(path: Path) -> int:
    """The lock file, opened for everybody. A link in its place is refused: in a shared folder it is an attack."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            # Without O_CREAT first: Linux refuses it for another user's file in a world-writable folder.
            descriptor = os.open(path, flags)
        except FileNotFoundError:
            descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            os.close(descriptor)
            raise LeaseError(f"{path} is no regular file", "remove it")
        if about.st_uid == os.getuid():
            os.fchmod(descriptor, 0o666)
        return descriptor
    except OSError as error:
        raise file_error(error, path, "open") from error


def _wait_for(
    path: Path,
    resource: str,
    deadline: float,
    started: float,
    waiting: Waiting,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> int:
    """A descriptor that holds the lock of ``path``, which is still the file of that name."""
    while True:
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
            os.close(descriptor)  # the file was replaced between opening and locking
            continue
        except BlockingIOError:
            os.close(descriptor)
        holder = read_holder(path)
        now = clock()
        if now >= deadline:
            raise LeaseError(
                f"{resource} is in use by {holder or 'another process'}; waited {now - started:.0f} s",
                "wait for it, use other devices (CUDA_VISIBLE_DEVICES), or give a longer --lease-timeout",
            )
        waiting(resource, holder, now - started)
        sleep(min(POLL_S, max(0.0, deadline - now)))


def _sign(descriptor: int, command: str, token: str) -> int:
    """Write who holds the lock now; gives the number of this taker."""
    previous = _parse(os.pread(descriptor, 1 << 16, 0))
    count = 1 if previous is None else previous.count + 1
    holder = Holder(os.getpid(), command, utc_now(), token, count)
    content = json.dumps(asdict(holder)).encode() + b"\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, content, 0)
    return count


def _parse(content: bytes) -> Holder | None:
    try:
        return Holder(**json.loads(content))
    except (ValueError, TypeError):
        return None


def read_holder(path: Path) -> Holder | None:
    """Who took this lock last; ``None`` where that cannot be read. Holding it now is another question (``held``)."""
    try:
        return _parse(path.read_bytes())
    except OSError:
        return None


def _is_held(path: Path) -> bool:
    """Whether somebody holds the lock of ``path`` at this moment."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def held(folder: Path) -> dict[str, Holder | None]:
    """Every lock of the machine that somebody holds at this moment, with whoever took it."""
    paths = sorted(folder.glob("*.lock")) if folder.is_dir() else []
    return {path.stem: read_holder(path) for path in paths if _is_held(path)}


def worker_device(worker: str, visible: Sequence[str]) -> str:
    """The ``CUDA_VISIBLE_DEVICES`` of xdist worker ``gw<n>``: one of the caller's own devices, in turn.

    ``visible`` are the caller's entries (indices or UUIDs), never all GPUs of the machine: worker 0 of a call that may
    use GPUs 4 to 7 gets GPU 4. Raises ``ValueError`` for a name that is no worker's, or where nothing is visible.
    """
    number = worker.removeprefix("gw")
    if not (worker.startswith("gw") and number.isdigit()):
        raise ValueError(f"{worker!r} is no xdist worker; they are called gw0, gw1, ...")
    if not visible:
        raise ValueError("no device is visible to map workers onto")
    return visible[int(number) % len(visible)]
