"""One repeat of one arm in a process of its own: ``python -m suites.latency.worker ARM`` prints one JSON object.

``--fitness`` prints only why this process would be unfit for timing, and loads nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
from typing import Any

from suites import defects
from suites.latency import fitness
from suites.latency.arms import Arm, load_arms, load_prompts

CONTEXT = 1024
WARMING_TOKENS = 4  # the first touch of the weights is no part of a time to the first token


def measure(arm: Arm) -> dict[str, Any]:
    """Load the engine, touch every weight once, generate the arm's prompts one after another."""
    # Here and not above: `--fitness` and a wrong arm name answer without loading torch.
    from engine.config import EngineConfig, read_environment
    from engine.llm import LLM
    from engine.request import SamplingParams
    from engine.result import GenerationResult

    llm = LLM(
        EngineConfig(
            model=read_environment(os.environ).model,
            draft=arm.draft,
            draft_tokens=arm.draft_tokens,
            threads=arm.threads,
            max_model_len=CONTEXT,
        )
    )

    def generate(message: str, max_tokens: int) -> GenerationResult:
        params = SamplingParams(
            temperature=arm.temperature, top_k=arm.top_k, top_p=arm.top_p, seed=arm.seed, max_tokens=max_tokens
        )
        return llm.generate(llm.chat_prompt(message), params)

    prompts = load_prompts(arm.prompts)
    generate(next(iter(prompts.values())), WARMING_TOKENS)
    runs = []
    for name, message in prompts.items():
        result = generate(message, arm.max_tokens)
        runs.append(
            {
                "prompt": name,
                "token_ids": result.token_ids,
                "finish": str(result.finish_reason),
                "arrival_ts": result.arrival_ts,
                "token_ts": result.token_ts,
                "emitted": result.emitted,
            }
        )
    return {
        "arm": arm.name,
        "runs": runs,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "unfit": fitness.unfit_reasons(),
    }


def main(argv: list[str] | None = None) -> int:
    """Command line of the worker; returns the exit status."""
    arms = load_arms()
    parser = argparse.ArgumentParser(prog="python -m suites.latency.worker", description=__doc__)
    parser.add_argument("arm", choices=[*arms, []], nargs="?", help="which arm to run once")
    parser.add_argument("--fitness", action="store_true", help="print the reasons against timing this process, as JSON")
    options = parser.parse_args(argv)
    defect = defects.planted()
    if defect is not None:
        defect.plant()
    if options.fitness:
        print(json.dumps(fitness.unfit_reasons()))
        return 0
    if options.arm is None:
        parser.error("name an arm, or ask for --fitness")
    print(json.dumps(measure(arms[options.arm])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
