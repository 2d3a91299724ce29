"""What a study amounts to: rates of each rule at each delay, with exact intervals, and the targets. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev

from harness.power.study import TRIALS, Result, Study
from harness.sequential import FIRST_LOOK

RULES: dict[str, Callable[[Result], bool]] = {
    "paired, interleaved, interval against margin (ours)": lambda result: _says_slower(result.ours, result.delay),
    "Mann-Whitney at 0.05, not interleaved (benchstat)": lambda result: _says_slower(result.mann_whitney, result.delay),
    "mean + 5 %, not interleaved (pytest-benchmark)": lambda result: _says_slower(result.mean_threshold, result.delay),
}
OURS = next(iter(RULES))
TRIAL_S = 90.0
TARGETS = {0: ("false alarms", 1 / 40), 2: ("found", 0.80), 3: ("found", 0.95)}
_SLOWER = ("WORSE", "slower")
_FASTER = ("BETTER", "faster")


def _says_slower(word: str, delay: int) -> bool:
    """Whether a rule raised an alarm: slower; with nothing planted, faster is a false one too."""
    return word in _SLOWER or (delay == 0 and word in _FASTER)


@dataclass(frozen=True, slots=True)
class Rate:
    """How often a rule raised an alarm at one delay, with the exact (Clopper-Pearson) 95 % interval."""

    rule: str
    delay: int
    alarms: int
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float:
        """Of all trials, those with an alarm, 0 to 1."""
        return self.alarms / self.trials


def rates(study: Study) -> list[Rate]:
    """Every rule at every delay that has a trial."""
    found = []
    for rule, alarm in RULES.items():
        for delay in TRIALS:
            trials = [result for result in study.results if result.delay == delay]
            if trials:
                count = sum(map(alarm, trials))
                found.append(Rate(rule, delay, count, len(trials), *_exact_interval(count, len(trials))))
    return found


def _exact_interval(count: int, trials: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    interval = binomtest(count, trials).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True, slots=True)
class Target:
    """One target in words, and whether it is met; ``None`` while there are too few trials to say."""

    text: str
    met: bool | None

    def __str__(self) -> str:
        return f"{self.text}: {'met' if self.met else 'MISSED'}" if self.met is not None else self.text


def targets_of(study: Study) -> list[Target]:
    """Each target with what was measured; a study without enough trials says so instead of passing."""
    found = [_of_rate(delay, rates(study)) for delay in TARGETS]
    seconds = [result.seconds for result in study.results]
    said = f"one trial: {min(seconds):.0f} to {max(seconds):.0f} s, target <= {TRIAL_S:g} s"
    return [*found, Target(said, max(seconds) <= TRIAL_S)]


def _of_rate(delay: int, found: Sequence[Rate]) -> Target:
    what, target = TARGETS[delay]
    rate = next((rate for rate in found if rate.rule == OURS and rate.delay == delay), None)
    have = 0 if rate is None else rate.trials
    if rate is None or have < TRIALS[delay]:
        return Target(f"{delay} %: {what}: not shown, {have} of {TRIALS[delay]} trials", None)
    sign = "<=" if delay == 0 else ">="
    said = f"{delay} %: {what} {rate.alarms} of {rate.trials}, target {sign} {100 * target:g} %"
    return Target(said, rate.share <= target if delay == 0 else rate.share >= target)


def accuracy_of(study: Study) -> list[str]:
    """How far the trials of each delay lay from it and how long they took, then how noisy the machine was, in words."""
    said = [_of_delay(delay, trials) for delay in TRIALS if (trials := [r for r in study.results if r.delay == delay])]
    deviation = median(pstdev(result.log_ratios) for result in study.results)
    apart = median(max(result.base) / min(result.base) - 1 for result in study.results)
    first = sum(result.pairs == FIRST_LOOK for result in study.results)
    said.append(f"{first} of {len(study.results)} trials ended at the first look, after {FIRST_LOOK} pairs")
    said.append(
        f"of the median trial: pairs differ by {100 * deviation:.1f} % (standard deviation); slowest and fastest "
        f"run of base one after the other lie {100 * apart:.0f} % apart"
    )
    return said


def _of_delay(delay: int, trials: Sequence[Result]) -> str:
    planted = 1 + delay / 100
    ours = [100 * (result.ratio - planted) for result in trials]
    means = [100 * (fmean(result.head) / fmean(result.base) - planted) for result in trials]
    seconds = [result.seconds for result in trials]
    undecided, late = sum(result.ours == "UNDECIDED" for result in trials), sum(one > TRIAL_S for one in seconds)
    return (
        f"{delay} %: ours lies {min(ours):+.1f} to {max(ours):+.1f} points off (median {median(ours):+.1f}), the ratio "
        f"of means {min(means):+.0f} to {max(means):+.0f}; {undecided} undecided; "
        f"{min(seconds):.0f} to {max(seconds):.0f} s, {late} over {TRIAL_S:g} s"
    )
