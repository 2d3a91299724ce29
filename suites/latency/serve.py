"""Repeats in forked processes, for studies of many: ``python -m suites.latency.serve``, a JSON request a line.

This process only imports the engine. Each request ``{"arms": [...], "delay": 3}`` forks a child that loads the model,
measures and ends; its answer is printed as one line. A repeat is still a process with its own model, caches and
threads, but the interpreter and its libraries lie where they lay in the parent: what depends on that is not drawn anew.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from suites.latency import delay
from suites.latency.arms import ARMS_FILE, load_arms
from suites.latency.worker import measure


def answer(arms: Sequence[str], percent: str, arms_file: Path) -> bytes:
    """What a child measured, as the JSON that a worker prints; ``{"failed": status}`` when it did not end well."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os._exit(_child(arms, percent, arms_file, writer))
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        written = stream.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.dumps({"failed": status}).encode() if status else written


def _child(arms: Sequence[str], percent: str, arms_file: Path, writer: int) -> int:
    """Measure and write; whatever happens ends here, since a child may not go on as a second server."""
    try:
        os.environ[delay.VARIABLE] = percent
        known = load_arms(arms_file)
        with os.fdopen(writer, "wb") as stream:
            stream.write(json.dumps(measure([known[name] for name in arms])).encode())
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return 1
    return 0


def main(argv: list[str] | None = None) -> int:
    """Answer requests until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m suites.latency.serve", description=__doc__)
    parser.add_argument("--arms-file", type=Path, default=ARMS_FILE, help="where the arms are defined")
    options = parser.parse_args(argv)
    importlib.import_module("engine.llm")
    for line in sys.stdin:
        request = json.loads(line)
        sys.stdout.write(answer(request["arms"], str(request["delay"]), options.arms_file).decode() + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
