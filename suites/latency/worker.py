"""One repeat of arms that share a model, in a process of its own: ``python -m suites.latency.worker ARM...``.

Prints a JSON list, one object an arm. ``--list`` prints which arms can run here and which share a process,
``--fitness`` why this process would be unfit for timing; both load nothing. ``--gap`` explains why two sides took
different tokens.
``--turns`` makes steps wait for their turn (see ``turns.py``); the waits stand beside the runs, times are as they were.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suites import defects
from suites.latency import delay, fitness, gpus, turns
from suites.latency.arms import ARMS_FILE, ENGINE_FIELDS, Arm, by_engine, groups, load_arms, load_prompts, runnable
from suites.latency.ranks import measure_over_ranks

if TYPE_CHECKING:
    from engine.llm import LLM
    from engine.parallel.group import Group
    from suites.latency.turns import Turns

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = 3
CONTEXT = 1024
WARMING_TOKENS = 4  # the first touch of the weights is no part of a time to the first token


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


def load(arm: Arm, batch: int = 1, group: Group | None = None) -> LLM:
    """The engine that ``arm`` asks for (a rank's of ``group``), with room for ``batch`` sequences at a time."""
    # Here and not above: `--list`, `--fitness` and a wrong arm name answer without loading torch.
    from engine.config import EngineConfig, read_environment
    from engine.llm import LLM

    same: dict[str, Any] = {name: getattr(arm, name) for name in ENGINE_FIELDS if name not in ("model", "draft_model")}
    config = EngineConfig(
        model=ROOT / arm.model if arm.model else read_environment(os.environ).model,
        draft_model=ROOT / arm.draft_model if arm.draft_model else None,
        max_model_len=CONTEXT,
        kv_cache_tokens=batch * (CONTEXT + arm.draft_tokens + 1),
        **same,
    )
    return LLM(config, group)


def measured(llm: LLM, arm: Arm, shared: Turns | None) -> dict[str, Any]:
    """The runs of one arm and, where turns are taken, every wait among them and the steps made without the other."""
    if shared is None:
        return {"runs": _runs(llm, arm)}
    waits, alone = len(shared.waits), shared.alone
    runs = _runs(llm, arm)
    turn = {"steps": turns.STEPS, "waits": shared.waits[waits:], "alone": shared.alone - alone}
    return {"runs": runs, "turns": turn}


def _runs(llm: LLM, arm: Arm) -> list[dict[str, Any]]:
    from engine.request import SamplingParams

    def params(max_tokens: int) -> SamplingParams:
        return SamplingParams(
            temperature=arm.temperature, top_k=arm.top_k, top_p=arm.top_p, seed=arm.seed, max_tokens=max_tokens
        )

    prompts = {name: llm.chat_prompt(message) for name, message in load_prompts(arm.prompts).items()}
    names = list(prompts)
    llm.generate(prompts[names[0]], params(WARMING_TOKENS))
    runs = []
    for start in range(0, len(names), arm.batch):
        together = names[start : start + arm.batch]
        results = llm.generate_batch([prompts[name] for name in together], params(arm.max_tokens))
        runs += [
            {
                "prompt": name,
                "token_ids": result.token_ids,
                "finish": str(result.finish_reason),
                "arrival_ts": result.arrival_ts,
                "token_ts": result.token_ts,
                "emitted": result.emitted,
            }
            for name, result in zip(together, results, strict=True)
        ]
    return runs


def gap(arm: Arm, prompt: str, emitted: Sequence[int], candidates: Sequence[int]) -> dict[str, float]:
    """Logits of ``candidates`` behind a prompt and what was ``emitted`` so far: how far apart the two choices lay."""
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
    print(json.dumps(measure(chosen, turns.Turns(*pipes) if pipes else None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
