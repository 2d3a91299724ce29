"""One repeat of arms that share a model, in a process of its own: ``python -m suites.latency.worker ARM...``.

Prints a JSON list, one object an arm. ``--list`` prints which arms can run here and which share a process,
``--fitness`` why this process would be unfit for timing; both load nothing. ``--gap`` explains why two sides took
different tokens.
``--turns`` makes steps wait for their turn (see ``turns.py``); the waits stand beside the runs, times are as they were.
``--wait`` imports the engine, prints a line and sleeps until one comes, so that workers can get ready side by side and
measure one after the other.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suites import defects
from suites.latency import delay, fitness, gpus, turns
from suites.latency.arms import ARMS_FILE, Arm, by_engine, groups, load_arms, load_prompts, runnable
from suites.latency.engines import load, measured
from suites.latency.ranks import measure_over_ranks

if TYPE_CHECKING:
    from suites.latency.turns import Turns

PROTOCOL = 3


def measure(arms: Sequence[Arm], shared: Turns | None = None) -> list[dict[str, Any]]:
    """Each engine in turn: load it, touch every weight once for each arm, generate the arm's prompts one by one.

    With ``shared`` turns, another process steps in between; it is let go when all is measured.
    """
    from native import loader

    percent = delay.asked_for(os.environ)
    if percent:
        delay.plant(percent)
    if shared is not None:
        turns.plant(shared)  # around the delay: a wait is no part of the step that is stretched
    found: list[tuple[Arm, dict[str, Any]]] = []
    watched: list[str] = []
    peaks: dict[str, int] = {}
    for wanted in by_engine(arms):
        if wanted[0].tp > 1:
            answers, reasons, peak = measure_over_ranks(wanted)
            found += zip(wanted, answers, strict=True)
            watched += reasons
            peaks |= dict.fromkeys((arm.name for arm in wanted), peak)
            continue
        llm = load(wanted[0], max(arm.batch for arm in wanted))
        found += [(arm, measured(llm, arm, shared)) for arm in wanted]
        watched += fitness.engine_reasons(llm)
        del llm
        gc.collect()  # the next engine shall not find this one's memory in use
    if shared is not None:
        shared.leave()
    unfit = [*fitness.unfit_reasons(), *dict.fromkeys(watched), *fitness.library_reasons(loader.library_path())]
    if delay.VARIABLE in os.environ:
        unfit.append(f"planted delay: {percent:g} % of each round")
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return [
        {"arm": arm.name, **answer, "peak_rss_bytes": peaks.get(arm.name, own), "unfit": unfit} for arm, answer in found
    ]


def gap(arm: Arm, prompt: str, emitted: Sequence[int], candidates: Sequence[int]) -> dict[str, float]:
    """Logits of ``candidates`` after a prompt and what was ``emitted`` so far: how far apart the two choices lay."""
    from engine.request import SamplingParams

    llm = load(arm)
    forward, seen = llm.runner.forward, []

    def noted(*arguments: Any, **named: Any) -> Any:
        logits = forward(*arguments, **named)
        seen.append(logits[-1].tolist())
        return logits

    llm.runner.forward = noted  # type: ignore[method-assign]
    ids = [*llm.chat_prompt(load_prompts(arm.prompts)[prompt]), *emitted]
    llm.generate(ids, SamplingParams(max_tokens=1))
    return {str(token): seen[-1][token] for token in candidates}


def sleep_until_asked(arms: Sequence[Arm]) -> None:
    """Import the engine and say so, then wait for a line: a sleeping process takes nothing from one that measures."""
    importlib.import_module("engine.llm")
    if any(arm.tp > 1 for arm in arms):
        importlib.import_module("engine.parallel.launch").start_fork_server()  # it imports the engine too
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("suites.latency.worker: whoever started this has gone without asking for a measurement")


def main(argv: list[str] | None = None) -> int:
    """Command line of the worker; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m suites.latency.worker", description=__doc__)
    parser.add_argument("arms", nargs="*", metavar="ARM", help="which arms to run once; --list names them")
    parser.add_argument("--arms-file", type=Path, default=ARMS_FILE, help="where the arms are defined")
    parser.add_argument("--fitness", action="store_true", help="print the reasons against timing this process, as JSON")
    parser.add_argument(
        "--list",
        action="store_true",
        help="print the arms that one process can run here, and which of them share one, as JSON",
    )
    parser.add_argument("--gap", metavar="JSON", help="prompt, emitted ids and candidates: print their logits, as JSON")
    parser.add_argument("--wait", action="store_true", help="get ready, say so, and measure when a line comes in")
    parser.add_argument(
        "--turns", metavar="IN,OUT", default="", help="descriptors through which the turn comes and goes"
    )
    options = parser.parse_args(argv)
    try:
        pipes = turns.parse(options.turns) if options.turns else None
    except ValueError as error:
        parser.error(str(error))
    arms = load_arms(options.arms_file)
    defect = defects.planted()
    if defect is not None:
        defect.plant()
    if options.fitness:
        print(json.dumps(fitness.unfit_reasons()))
        return 0
    if options.list:
        here = runnable(arms, gpus.count())
        # Arms over ranks take no turns: each of their ranks is a process of its own.
        in_turn = [name for name, arm in here.items() if arm.tp == 1]
        print(json.dumps({"protocol": PROTOCOL, "groups": groups(here), "turns": in_turn}))
        return 0
    unknown = [name for name in options.arms if name not in arms]
    if unknown or not options.arms:
        known = f"choose from {', '.join(arms)}"
        parser.error(f"invalid choice: {unknown[0]!r}; {known}" if unknown else f"name an arm: {known}")
    chosen = [arms[name] for name in options.arms]
    if len({(arm.model, arm.device) for arm in chosen}) > 1:
        parser.error(f"{', '.join(options.arms)} want different models; --list says which arms share a process")
    if options.gap:
        print(json.dumps(gap(chosen[0], **json.loads(options.gap))))
        return 0
    if options.wait:
        sleep_until_asked(chosen)
    print(json.dumps(measure(chosen, turns.Turns(*pipes) if pipes else None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
