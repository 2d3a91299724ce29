"""Commands about the machine: ``harness lease list|run`` and ``harness doctor``. Words go to ``say`` and ``show``."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.commands.options import wait
from harness.errors import UsageError
from harness.machine.doctor import Finding, Health, examine, look, worst
from harness.machine.gpu_processes import gpu_processes, refuse_foreign
from harness.machine.gpus import Gpu, choose, visible_gpus
from harness.machine.lease import CPU, DEFAULT_WAIT_S, Holder, Lease, acquire, gpu_resource, held, lease_folder
from harness.machine.observe import Watch, wanted_resources
from harness.verdict import ExitCode

Say = Callable[[str], None]
WAIT_TELL_S = 10.0
_MARKS = {Health.OK: "ok     ", Health.WARN: "warn   ", Health.BAD: "BAD    ", Health.UNKNOWN: "unknown"}


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``lease`` and ``doctor`` to the command line."""
    lease = add_parser(
        "lease",
        help="exclusive use of the CPU or of GPUs",
        description="Hold the CPU or GPUs exclusively while a command runs, or list who holds them.",
        epilog="""\
examples:
  harness lease list
  harness lease run -- python3 noxfile.py -s latency        the visible GPUs, or the CPU where there is none
  harness lease run --cpu -- ./bench                        the CPU
  harness lease run --gpu 4,5 --timeout 3600 -- ./train     wait up to an hour for GPUs 4 and 5
the lease ends with the command, or with whoever is killed; HARNESS_LEASE_DIR moves the locks
""",
    )
    lease.add_argument("action", choices=("list", "run"), help="who holds what, or hold it while COMMAND runs")
    lease.add_argument("--cpu", action="store_true", help="lease the CPU")
    lease.add_argument("--gpu", metavar="all|INDEX,...", default="", help="lease these of the visible GPUs")
    lease.add_argument(
        "--timeout", type=wait, default=DEFAULT_WAIT_S, metavar="SECONDS", help="longest wait (default: %(default)g)"
    )
    doctor = add_parser(
        "doctor",
        help="what on this machine will spoil a measurement",
        description="Look at the machine for about a second: what will spoil a measurement, and what to do about it.",
        epilog="""\
examples:
  harness doctor
  harness doctor --strict                                   before a measurement that must not be spoilt
exit codes: 0 nothing bad (or not --strict), 1 with --strict where something is bad
""",
    )
    doctor.add_argument("--strict", action="store_true", help="end with 1 where something is bad")
    doctor.add_argument(
        "--artifacts", type=Path, default=Path("artifacts"), metavar="DIR", help="whose disk to look at"
    )


def lease_command(options: argparse.Namespace, command: Sequence[str], say: Say, show: Say) -> int:
    """``harness lease``: ``command`` is what stands after ``--``."""
    folder = lease_folder(os.environ)
    if options.action == "list":
        if command:
            raise UsageError("harness lease list takes nothing after --")
        holders = held(folder)
        for name, holder in holders.items():
            show(f"{name}: {holder or 'held by a process that did not sign'}")
        if not holders:
            say("nothing is held")
        return ExitCode.OK
    if not command:
        raise UsageError("nothing to run", "harness lease run [--cpu] [--gpu all] -- COMMAND")
    gpus = _wanted_gpus(options.gpu, options.cpu)
    with take_lease(gpus, options.cpu or not gpus, " ".join(command), options.timeout, say) as lease:
        code = _run(command, lease)
        lease.check()
    return code


def take_lease(gpus: Sequence[Gpu], cpu: bool, command: str, timeout_s: float, say: Say) -> Lease:
    """The lease of ``gpus`` and of the CPU, telling ``say`` now and then whom it waits for."""
    told = [-WAIT_TELL_S]

    def waiting(resource: str, holder: Holder | None, waited: float) -> None:
        if waited - told[0] >= WAIT_TELL_S:
            told[0] = waited
            say(f"waiting for {resource}, held by {holder or 'another process'} ({waited:.0f} of {timeout_s:g} s)")

    return acquire(
        [*([CPU] if cpu else []), *(gpu_resource(gpu.uuid) for gpu in gpus)],
        folder=lease_folder(os.environ),
        command=command[:200],
        environ=os.environ,
        timeout_s=timeout_s,
        waiting=waiting,
        foreign=lambda: refuse_foreign(gpus),
    )


@contextlib.contextmanager
def watch(scopes: Sequence[str], options: argparse.Namespace, say: Say) -> Iterator[Watch]:
    """What ``harness run`` holds and looks at for these scopes; the lease ends with the block."""
    gpus, _ = visible_gpus(os.environ)
    wanted, cpu = wanted_resources(scopes, gpus)
    if options.lease == "none" or not (wanted or cpu):
        yield Watch(gpus=gpus)
        return
    command = f"harness run {' '.join(scopes)}"
    with take_lease(wanted, cpu, command, options.lease_timeout, say) as lease:
        yield Watch(lease, gpus, lease.environment())


def _wanted_gpus(text: str, cpu: bool) -> list[Gpu]:
    gpus, facts = visible_gpus(os.environ)
    if not text:
        return [] if cpu else gpus
    if text != "all":
        gpus, asked = choose(gpus, text), text
        if len(gpus) != len(asked.split(",")):
            raise UsageError(f"--gpu {text}: not all of these are visible here", facts.get("gpu.reason", ""))
    if not gpus:
        raise UsageError(f"--gpu {text}: no GPU is visible", facts.get("gpu.reason", ""))
    return gpus


def _run(command: Sequence[str], lease: Lease) -> int:
    """Run a command under the lease; it inherits the locks. Its exit code, or 128 + the signal that ended it."""
    environment: Mapping[str, str] = {**os.environ, **lease.environment()}
    try:
        child = subprocess.Popen(command, env=environment, pass_fds=tuple(lease.descriptors.values()))
    except OSError as error:
        raise UsageError(f"cannot run {command[0]}: {error.strerror}") from error
    signal.signal(signal.SIGTERM, lambda number, frame: child.terminate())
    while True:
        try:
            code = child.wait()
        except KeyboardInterrupt:  # the child got the same Ctrl-C and decides what it means
            continue
        return 128 - code if code < 0 else code


def doctor_command(options: argparse.Namespace, show: Say) -> int:
    """``harness doctor``."""
    gpus, facts = visible_gpus(os.environ)
    machine = look(
        options.artifacts,
        gpus,
        facts.get("gpu.reason", ""),
        gpu_processes(gpus) if gpus else ([], ""),
        held(lease_folder(os.environ)),
    )
    findings = examine(machine)
    for finding in findings:
        show(_line(finding))
    bad = worst(findings) is Health.BAD
    return ExitCode.REGRESSION if bad and options.strict else ExitCode.OK


def _line(finding: Finding) -> str:
    text = f"{_MARKS[finding.health]}  {finding.name:<16} {finding.seen}"
    return f"{text}\n{'':<9}{'':<16} -> {finding.do}" if finding.do else text
