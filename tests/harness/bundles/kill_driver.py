"""Kills a child at its n-th durable write, for n = 1, 2, ... until it gets through; checks what each leaves behind.

Run in a project that ``conftest.sealed`` made: ``python kill_driver.py seal|accept|attempt``. A process of its own, so
that it can fork without threads.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import report
from harness.accept import LEDGER, accept, read_ledger
from harness.baseline import load_file
from harness.bundles.bundle import open_bundle
from harness.bundles.seal import SealRequest, seal_run
from harness.collect import collect
from harness.errors import EvidenceError
from harness.files import sha256_file
from harness.rundir import open_run
from harness.verdict import Policy

LIMIT = 300


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run ``work`` in a child that is killed at its ``number``-th fsync, rename or mkdir; False if it got through."""
    child = os.fork()
    if child == 0:
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def counting(*arguments: Any, **keywords: Any) -> Any:
                step()
                return call(*arguments, **keywords)

            return counting

        for name in ("fsync", "rename", "replace", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child of fork must never return into the loop above
            import traceback

            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def seal_into(out: Path) -> Callable[[], object]:
    request = SealRequest(out=out, find_base=lambda _: None, policy=Policy(), today="2026-01-01")
    return lambda: seal_run(Path("runs/a"), request)


def try_seal() -> int:
    for number in range(1, LIMIT):
        out = Path(f"out-{number}")
        done = not killed_at(number, seal_into(out))
        sealed = [path for path in out.iterdir() if not path.name.endswith(".unfinished")] if out.exists() else []
        for path in sealed:
            open_bundle(path)
        if not sealed:
            assert not killed_at(0, seal_into(out))
            (path,) = out.iterdir()
            open_bundle(path)
        shutil.rmtree(out)
        if done:
            return number - 1
    raise AssertionError("never got through")


def try_accept() -> int:
    bundles = [open_bundle(path) for path in sorted(Path("artifacts/bundles").iterdir())]

    def work() -> object:
        return accept(bundles, Path("new"), "a reason", Policy())

    for number in range(1, LIMIT):
        done = not killed_at(number, work)
        assert not killed_at(0, work)
        lines = {line["scope"]: line for line in read_ledger(Path("new") / LEDGER)}
        for scope, line in lines.items():
            path = Path("new") / line["device_key"] / f"{scope}.json"
            load_file(path)
            assert sha256_file(path) == line["sha256"]
        assert set(lines) == {"green", "timed"}
        shutil.rmtree("new")
        if done:
            return number - 1
    raise AssertionError("never got through")


def try_attempt() -> int:
    """A third try begins and is killed: the two before it stay whole, each under its number, and the run is sound."""

    def work() -> object:
        with open_run(Path("runs/k")) as run:
            return run.begin_attempt("timed")

    def numbered(number: int) -> None:
        """The try that lies there is of this number."""
        about = Path("runs/k/timed/scope.json")
        about.write_text(json.dumps({**json.loads(about.read_text()), "attempt": number}))

    def tries() -> list[set[str]]:
        kept = [*sorted(Path("runs/k/timed/attempts").iterdir(), key=lambda path: int(path.name))]
        return [{path.name for path in folder.iterdir()} for folder in kept]

    for number in range(1, LIMIT):
        shutil.copytree("runs/a", "runs/k")
        shutil.copytree("runs/a/timed", "runs/k/timed/attempts/1")
        numbered(2)
        whole = {path.name for path in Path("runs/a/timed").iterdir()}
        done = not killed_at(number, work)
        try:  # as it was, or refused until the try is made: never sealed without what was there
            evidence = collect(Path("runs/k"), "k", [])
            assert evidence.scope("timed") is not None
        except EvidenceError:
            pass
        assert not killed_at(0, work)
        assert tries() == [whole, whole]
        assert list(Path("runs/k").glob("*.earlier")) == []
        shutil.copytree("runs/a/timed", "runs/k/timed", dirs_exist_ok=True)
        numbered(3)
        assert len(collect(Path("runs/k"), "k", []).scopes) == len(list(Path("runs/a").iterdir())) - 2
        shutil.rmtree("runs/k")
        if done:
            return number - 1
    raise AssertionError("never got through")


def main() -> None:
    report.draw_plots = lambda document: {}
    print({"seal": try_seal, "accept": try_accept, "attempt": try_attempt}[sys.argv[1]]())


if __name__ == "__main__":
    main()
