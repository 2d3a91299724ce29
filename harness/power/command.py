"""``harness power run|show``: trials side by side, each on its own cores; then the rates and their picture."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

from harness.commands.options import core_numbers, count, wait
from harness.errors import UsageError
from harness.typed import typed
from harness.verdict import ExitCode

Say = Callable[[str], None]
SAME = ("cpu.model", "cpu.count", "power.replicate")
"""What must agree before trials go into one file."""

DEFAULT_RESULTS = Path("artifacts/power/power.jsonl")


def add_commands(add_parser: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``power`` to the command line."""
    power = add_parser(
        "power",
        help="how often the A/B verdict finds a planted delay",
        description="Plant delays of 0, 2, 3 and 5 % in the round loop and count what three rules say about them.",
        epilog="""\
examples:
  harness power run                                     go on with artifacts/power/power.jsonl on all cores
  harness power run --cores 4,5 --cores 6,7 --seconds 540   two trials side by side, for nine minutes at most
  harness power show docs/power/results.jsonl           the rates and whether the targets are met
a study that was interrupted goes on where it stopped; results of two machines do not go into one file
""",
    )
    power.add_argument("action", choices=("run", "show"), help="go on with the trials, or print what they say")
    power.add_argument(
        "results",
        nargs="?",
        type=Path,
        default=DEFAULT_RESULTS,
        metavar="RESULTS",
        help="the file of all trials (default: %(default)s)",
    )
    power.add_argument(
        "--cores",
        action="append",
        type=core_numbers,
        default=[],
        metavar="N,...",
        help="cores of one lane of trials (may be repeated)",
    )
    power.add_argument(
        "--arm", default="smollm2", metavar="NAME", help="an arm of suites/latency/power.toml (default: %(default)s)"
    )
    power.add_argument(
        "--seconds",
        type=wait,
        default=float("inf"),
        metavar="SECONDS",
        help="stop after; unfinished trials do not count (default: when none is left)",
    )
    power.add_argument(
        "--forked", action="store_true", help="repeats are forks of a process that has imported the engine: faster"
    )
    power.add_argument(
        "--trials", type=count, default=0, metavar="N", help="most trials to run now (default: all that are left)"
    )
    power.add_argument("--picture", type=Path, metavar="FILE", help="show: draw the rates as SVG")
    power.add_argument("--report", type=Path, metavar="FILE", help="show: the whole study as one HTML page")


def power_command(options: argparse.Namespace, say: Say, show: Say) -> int:
    """``harness power``."""
    if options.action == "run":
        _run(options, say)
    return _show(options, show)


def _run(options: argparse.Namespace, say: Say) -> None:
    from harness.machine.environment import look
    from harness.power.lanes import Lanes, side_by_side
    from harness.power.study import append, machine_line, next_trials, read_study
    from harness.power.trial import Setup

    root = Path.cwd()
    facts = {**look(root), "power.replicate": "forked process" if options.forked else "process"}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    study = read_study(options.results)
    machine = machine_line(facts)
    for key in SAME:
        if study.machines and study.machines[0].get(key) != facts.get(key):
            there = f"{key} {study.machines[0].get(key)}, here {facts.get(key)}"
            raise UsageError(f"{options.results}: {there}: two studies do not mix", "name another file")
    left = next_trials(study.results)
    left = left[: options.trials] if options.trials else left
    append(options.results, machine)
    cores = tuple(options.cores) or (tuple(sorted(os.sched_getaffinity(0))),)
    deadline = time.monotonic() + options.seconds
    say(f"{len(left)} trials left, {len(cores)} side by side")
    lanes = Lanes(root, cores, dict(os.environ), options.forked)
    side_by_side(Setup(options.arm, deadline=deadline), left, lanes, options.results, say)


def _show(options: argparse.Namespace, show: Say) -> int:
    from harness.power.study import read_study
    from harness.power.summary import accuracy_of, rates, targets_of

    study = read_study(options.results)
    if not study.results:
        raise UsageError(f"{options.results} holds no trial", f"run some: {typed('power', 'run')}")
    for facts in study.machines:
        words = [facts.get(key, "?") for key in ("cpu.model", "cpu.count", "torch.version", "git.commit")]
        show("measured on {}, {} processors, torch {}, commit {}".format(*words))
    found = rates(study)
    for rate in found:
        show(
            f"{rate.delay} %  {rate.alarms:>3} of {rate.trials:<3} alarms "
            f"[{100 * rate.low:.0f}, {100 * rate.high:.0f}] %  {rate.rule}"
        )
    for line in accuracy_of(study):
        show(line)
    targets = targets_of(study)
    for target in targets:
        show(str(target))
    if options.picture or options.report:
        from harness import report
        from harness.files import write_atomic
        from harness.power.page import FIGURE, build_power_document

        document = build_power_document(study, found, targets)
        plots = report.draw_plots(document)
        if options.picture:
            write_atomic(options.picture, plots[f"{FIGURE}.svg"])
            show(f"drawn  {options.picture}")
        if options.report:
            write_atomic(options.report, report.render_html(document, plots).encode())
            show(f"written  {options.report}")
    return ExitCode.OK
