"""The first commit that is slower than GOOD, by the same verdict at every step. ``find_first`` is pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil, log2
from typing import TYPE_CHECKING

from harness.ab.trees import history, repository, resolve
from harness.errors import UsageError
from harness.verdict import ExitCode, MetricOutcome

if TYPE_CHECKING:
    from harness.ab.compare import Answer, Comparing


class Step(Enum):
    """What one commit turned out to be. ``UNKNOWN``: undecided, not comparable, or it does not build."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Found:
    """``first`` is the first bad commit; with unknown ones before it, any of ``suspects`` may be it."""

    first: str
    suspects: tuple[str, ...]
    asked: int


def find_first(commits: Sequence[str], judge: Callable[[str], Step]) -> Found:
    """Bisect ``commits`` (oldest first), of which the last is known to be bad and all before the first to be good.

    An unknown commit is set aside and its neighbours are asked, as ``git bisect skip`` does.
    """
    low, high, asked = 0, len(commits) - 1, 0
    unknown: set[int] = set()
    while True:
        left = [at for at in range(low, high) if at not in unknown]
        if not left:
            return Found(commits[high], tuple(commits[low : high + 1]), asked)
        middle = min(left, key=lambda at: abs(at - (low + high - 1) / 2))
        asked += 1
        step = judge(commits[middle])
        if step is Step.BAD:
            high = middle
        elif step is Step.GOOD:
            low = middle + 1
        else:
            unknown.add(middle)


def verdicts_at_most(commits: int) -> int:
    """How many verdicts a search takes if every commit can be judged: the first, and one a halving."""
    return 1 + ceil(log2(commits)) if commits > 1 else 1


def step_of(answer: Answer) -> Step:
    """Bad is a regression of any judged quantity (or a crash); good is that none got worse and one was decided."""
    if answer.code == ExitCode.REGRESSION:
        return Step.BAD
    decided = (MetricOutcome.SAME, MetricOutcome.BETTER)
    rounds = [outcome for name, outcome in answer.outcomes.items() if name.endswith(" round")]
    return Step.GOOD if rounds and all(outcome in decided for outcome in rounds) else Step.UNKNOWN


def bisect(comparing: Comparing, good: str, bad: str) -> int:
    """Find the commit. Every step compares with GOOD itself, so that small losses of several commits add up."""
    with repository(comparing.root) as repo:
        start, end = resolve(repo, good), resolve(repo, bad)
        commits = history(repo, start.commit, end.commit)
        titles = {commit: str(repo.git.log("-1", "--format=%h %s", commit)) for commit in commits}
    alpha = comparing.options.alpha / verdicts_at_most(len(commits))
    comparing.say(f"{len(commits)} commits, up to {verdicts_at_most(len(commits))} verdicts, {alpha:.4f} of error each")

    def judge(commit: str) -> Step:
        try:
            step = step_of(comparing.compare(start.commit, commit, alpha))
        except UsageError as error:  # it does not build: neither good nor bad
            comparing.say(str(error))
            step = Step.UNKNOWN
        comparing.say(f"{step.value}: {titles[commit]}")
        return step

    whole = judge(commits[-1])
    if whole is Step.GOOD:
        comparing.show(f"{bad} is not slower than {good} by this verdict: there is nothing to find")
        return ExitCode.OK
    if whole is Step.UNKNOWN:
        comparing.show(f"whether {bad} is slower than {good} is not known: give more --pairs or --budget")
        return ExitCode.UNDECIDED if comparing.options.strict else ExitCode.OK
    found = find_first(commits, judge)
    if len(found.suspects) > 1:
        comparing.show(f"one of {len(found.suspects)} commits, of which only the last could be judged:")
    for commit in found.suspects:
        comparing.show(f"first slower than {good}: {titles[commit]}" if len(found.suspects) == 1 else titles[commit])
    return ExitCode.REGRESSION
